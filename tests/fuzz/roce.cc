// RoCE packets for a queue pair of a software device, with a right ICRC, and any frames.
#include <algorithm>

#include "fuzz/check.h"
#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  using namespace bypass::rdma::test;
  constexpr std::size_t kBehindLength = 15;
  Fabric fabric(1);
  End& end = fabric.add_end({.buffers = 128});
  end.device().set_neighbour(test::ip("10.9.0.2"), test::mac(2));
  // Numbers 0x11 to 0x15. They expect packet 0, as the inputs' numbers are small.
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND}) {
    Half half(end, {.type = type, .depth = 8, .psn = 0});
    Pair::init(half);
    Pair::to_rtr(half, half);
    Pair::to_rts(half);
    half.receive(1, 0, 4096);
    half.remote_srqn = 1;
    half.send({.opcode = IBV_WR_SEND, .ah = half.ah}, 0, 3000);
  }
  fuzz::Input input(data, size);
  for (int frames = 0; !input.empty() && frames < 32; frames++) {
    RoceOptions options;
    options.opcode = input.byte();
    options.qpn = input.byte() & 31;
    options.psn = input.byte();
    const std::uint8_t how = input.byte();
    options.ack_request = (how & 1) != 0;
    options.mark = how >> 1 & 0x3f;
    sim::Bytes frame = roce_frame(options, input.bytes(input.byte()));
    if ((how & 0x80) != 0) {
      // Behind the byte that says how long the IP header is, which fix_sums() believes.
      for (int n = 0; n < 4; n++)
        frame[kBehindLength + input.byte() % (frame.size() - kBehindLength)] = static_cast<std::byte>(input.byte());
      fix_sums(frame);
    }
    if ((how & 0x40) != 0) frame[12 + input.byte() % 3] = static_cast<std::byte>(input.byte());
    fabric.wire().inject(0, frame);
    fabric.run_for(std::chrono::microseconds(10));
  }
  return 0;
}
