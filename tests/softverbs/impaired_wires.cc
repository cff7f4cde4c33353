#include "softverbs/impaired_wires.h"

#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {

void impair(Pair& pair, const sim::Impairment& impairment) {
  for (Half* half : {&pair.a, &pair.b})
    pair.fabric.run_until(
        [&] {
          Half& peer = half == &pair.a ? pair.b : pair.a;
          return half->end.device().resolve(peer.end.gid(half->config.gid), pair.fabric.now()) == Resolution::kKnown;
        },
        1s);
  pair.fabric.wire().set_impairment(impairment);
}

bool is_roce(std::span<const std::byte> frame) {
  if (frame.size() < kOpcodeAt + sizeof(Bth) + kIcrcBytes) return false;
  return reinterpret_cast<const wire::Ethernet*>(frame.data())->type == wire::kEtherTypeIpv4;
}

void unmark(sim::Bytes& frame) {
  if (!is_roce(frame)) return;
  auto& bth = *reinterpret_cast<Bth*>(frame.data() + kOpcodeAt);
  bth.psn = bth.psn & (kBthAckRequest | kPsnMask);
  fix_sums(frame);
}

void make_strangers(sim::Wire& wire) {
  wire.set_rewrite([](std::size_t, sim::Bytes& frame) { unmark(frame); });
}

}  // namespace bypass::rdma::test
