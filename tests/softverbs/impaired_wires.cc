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

void make_strangers(sim::Wire& wire) {
  wire.set_rewrite([](std::size_t, sim::Bytes& frame) {
    constexpr std::size_t kBthAt = 42;
    if (frame.size() < kBthAt + sizeof(Bth)) return;
    if (reinterpret_cast<const wire::Ethernet*>(frame.data())->type != wire::kEtherTypeIpv4) return;
    auto& bth = *reinterpret_cast<Bth*>(frame.data() + kBthAt);
    bth.psn = bth.psn & (kBthAckRequest | kPsnMask);
    fix_sums(frame);
  });
}

}  // namespace bypass::rdma::test
