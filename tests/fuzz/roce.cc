// RoCE packets for a queue pair of a software device, with a right ICRC, and any frames. A packet may have the right
// address and key of memory, or the right key of a memory window, which no input can know. It may be as long as a
// packet is that others follow.
#include <algorithm>

#include "fuzz/check.h"
#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace {

using namespace bypass;
using namespace bypass::rdma::test;

constexpr std::uint8_t kAnyFrame = 0xff;
constexpr std::uint64_t kReceive = 1;  // the number of receive requests

/// Connected to 10.9.0.2, where the inputs come from. There is nobody, so what is sent to it is never answered.
void connect(Half& half) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = half.end.gid();
  attr.ah_attr.grh.dgid.raw[15] = 2;
  attr.ah_attr.grh.sgid_index = 1;
  attr.path_mtu = half.config.mtu;
  attr.dest_qp_num = 0x99;
  attr.rq_psn = half.config.psn;
  attr.max_dest_rd_atomic = half.config.rd_atomic;
  attr.min_rnr_timer = half.config.rnr_timer;
  const ibv_qp_type type = half.config.type;
  unsigned mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (type == IBV_QPT_UD) half.ah = half.end.device().create_ah(half.end.pd(), attr.ah_attr).object;
  fuzz::expect(half.modify(attr, mask) == 0 && Pair::to_rts(half) == 0, "a queue pair is not connected");
}

/// The RDMA header that begins at `offset` gets that address and key.
void put_memory(sim::Bytes& rest, std::size_t offset, std::uint64_t address, std::uint32_t key) {
  constexpr std::size_t kReth = 12;
  if (rest.size() < offset + kReth) return;
  for (std::size_t i = 0; i < 8; i++) rest[offset + i] = static_cast<std::byte>(address >> (56 - 8 * i));
  for (std::size_t i = 0; i < 4; i++) rest[offset + 8 + i] = static_cast<std::byte>(key >> (24 - 8 * i));
}

void put_key(sim::Bytes& rest, std::size_t offset, std::uint32_t key) {
  for (std::size_t i = 0; i < 4 && offset + i < rest.size(); i++)
    rest[offset + i] = static_cast<std::byte>(key >> (24 - 8 * i));
}

/// A window of the device's memory, bound by the queue pair. Returns its key, which the peer may invalidate.
std::uint32_t bind_window(Fabric& fabric, Half& half) {
  rdma::Device& device = half.end.device();
  rdma::Mr* const region =
      device.reg_mr(half.end.pd(), half.end.at(0), 65'536, half.end.address(0), End::kAllAccess | IBV_ACCESS_MW_BIND)
          .object;
  rdma::Mr* const window = device.alloc_mw(half.end.pd(), IBV_MW_TYPE_2).object;
  const std::uint32_t key = rdma::Device::rkey(*window) + 1;
  half.send({.opcode = IBV_WR_BIND_MW,
             .rkey = key,
             .window = window,
             .region = region,
             .bind_addr = half.end.address(0),
             .bind_length = 4096,
             .bind_access = IBV_ACCESS_REMOTE_WRITE},
            {});
  fabric.run_for(std::chrono::microseconds(10));
  return key;
}

/// A frame that is not RoCE, or not quite: the input's bytes behind addresses.
sim::Bytes any_frame(fuzz::Input& input) {
  sim::Bytes frame = bytes_of_headers(mac(1), mac(2));
  const auto rest = input.bytes(2 + std::size_t{input.byte()});  // the type, and what follows
  frame.insert(frame.end(), rest.begin(), rest.end());
  return frame;
}

/// Returns how many messages the queue pairs have received.
std::size_t run(std::span<const std::uint8_t> data) {
  constexpr std::size_t kBehindLength = 15;
  constexpr std::uint8_t kRightMemory = 0x20, kRightWindow = 0x40, kWholePacket = 0x80;
  Fabric fabric(1);
  End& end = fabric.add_end({.buffers = 128});
  end.device().set_neighbour(test::ip("10.9.0.2"), test::mac(2));
  std::uint32_t window = 0;
  // Numbers 0x11 to 0x15. They expect packet 0, as the inputs' numbers are small.
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND}) {
    Half half(end, {.type = type, .mtu = IBV_MTU_256, .depth = 8, .psn = 0});
    Pair::init(half);
    connect(half);
    if (type == IBV_QPT_RC) window = bind_window(fabric, half);
    half.receive(kReceive, 0, 4096);
    half.remote_srqn = 1;
    half.send({.opcode = IBV_WR_SEND, .ah = half.ah}, 0, type == IBV_QPT_UD ? 200 : 700);
  }
  fabric.run_for(std::chrono::microseconds(10));
  fuzz::Input input(data.data(), data.size());
  std::size_t received = 0;
  for (int frames = 0; !input.empty() && frames < 32; frames++) {
    RoceOptions options;
    options.opcode = input.byte();
    if (options.opcode == kAnyFrame) {
      fabric.wire().inject(0, any_frame(input));
      fabric.run_for(std::chrono::microseconds(10));
      continue;
    }
    const std::uint8_t to = input.byte();
    options.qpn = to & 31;
    options.psn = input.byte();
    const std::uint8_t how = input.byte();
    options.ack_request = (how & 1) != 0;
    options.mark = how >> 1 & 0x3f;
    const auto given = input.bytes(input.byte());
    sim::Bytes rest(given.begin(), given.end());
    const std::size_t header = (options.opcode & rdma::kServiceMask) == rdma::kServiceXrc ? sizeof(rdma::Xrceth) : 0;
    if ((to & kWholePacket) != 0) rest.resize(header + rdma::extension_bytes(rdma::Op{options.opcode}) + 256);
    if ((to & kRightMemory) != 0) put_memory(rest, header, end.address(0), end.rkey());
    if ((to & kRightWindow) != 0) put_key(rest, header, window);
    sim::Bytes frame = roce_frame(options, rest);
    if ((how & 0x80) != 0) {
      // Behind the byte that says how long the IP header is, which fix_sums() believes.
      for (int n = 0; n < 4; n++)
        frame[kBehindLength + input.byte() % (frame.size() - kBehindLength)] = static_cast<std::byte>(input.byte());
      fix_sums(frame);
    }
    if ((how & 0x40) != 0) frame[12 + input.byte() % 3] = static_cast<std::byte>(input.byte());
    fabric.wire().inject(0, frame);
    fabric.run_for(std::chrono::microseconds(10));
    for (const ibv_wc& wc : end.poll())
      if (wc.wr_id == kReceive && wc.status == IBV_WC_SUCCESS) received++;
    (void)end.events();
  }
  return received;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // One to each queue pair that receives: inputs mean something only if the device takes them for its peer's.
  static constexpr std::uint8_t kSends[] = {0x04, 0x11, 0, 1, 1, 'a',  0x24, 0x12, 0,    1,  1, 'a',          //
                                            0x64, 0x13, 0, 1, 9, 0x11, 0x11, 0x11, 0x11, 0,  0, 0,   0, 'a',  //
                                            0xa4, 0x14, 0, 1, 5, 0,    0,    0,    1,    'a'};
  static const std::size_t reached = run(kSends);
  fuzz::expect(reached == 4, "packets do not reach the queue pairs");
  (void)run({data, size});
  return 0;
}
