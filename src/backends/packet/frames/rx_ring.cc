#include "backends/packet/frames/rx_ring.h"

#include <linux/filter.h>
#include <linux/if_ether.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

// The headers at the beginning of a slot. The frame's start is aligned behind them.
constexpr std::uint32_t kSlotHead = TPACKET_ALIGN(TPACKET2_HDRLEN + sizeof(VnetHeader)) + TPACKET_ALIGNMENT + ETH_HLEN;
constexpr std::uint32_t kPage = 4096;
constexpr std::uint32_t kBlock = 1u << 20;

std::uint32_t slot_for(std::uint32_t frame) {
  const std::uint32_t bytes = frame + kSlotHead;
  return bytes <= kPage ? std::bit_ceil(bytes) : (bytes + kPage - 1) / kPage * kPage;
}

sock_filter load(std::uint16_t what, std::uint32_t at) {
  return {static_cast<std::uint16_t>(BPF_LD | what), 0, 0, at};
}
// The targets are forward jumps, counted from the next instruction.
sock_filter jump(std::uint16_t test, std::uint32_t with, std::uint8_t if_true, std::uint8_t if_false) {
  return {static_cast<std::uint16_t>(BPF_JMP | BPF_K | test), if_true, if_false, with};
}

// Attaches a filter, so that the kernel copies nothing of a frame that is refused. A frame of a VLAN is not for us; the
// kernel has taken its tag off.
bool attach_filter(int socket, const RxShape& shape) {
  if (shape.program >= 0)
    return libc.setsockopt(socket, SOL_SOCKET, SO_ATTACH_BPF, &shape.program, sizeof shape.program) == 0;
  const auto& b = shape.mac.bytes;
  const std::uint32_t mac_head =
      std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  const std::uint32_t mac_tail = std::uint32_t{b[4]} << 8 | b[5];
  const auto vlan = static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT);
  sock_filter program[] = {
      load(BPF_W | BPF_LEN, 0),              //
      jump(BPF_JGE, shape.shortest, 0, 10),  //
      jump(BPF_JGT, shape.longest, 9, 0),    //
      load(BPF_B | BPF_ABS, vlan),           //
      jump(BPF_JEQ, 0, 0, 7),                //
      load(BPF_B | BPF_ABS, 0),              //
      jump(BPF_JSET, 1, 4, 0),               // frames to a group
      load(BPF_W | BPF_ABS, 0),              //
      jump(BPF_JEQ, mac_head, 0, 3),         //
      load(BPF_H | BPF_ABS, 4),              //
      jump(BPF_JEQ, mac_tail, 0, 1),         //
      {BPF_RET | BPF_K, 0, 0, 0xffff'ffff},  // the whole frame
      {BPF_RET | BPF_K, 0, 0, 0},            //
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return libc.setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

bool set(int socket, int option, int value) {
  return libc.setsockopt(socket, SOL_PACKET, option, &value, sizeof value) == 0;
}

}  // namespace

RxRing::~RxRing() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

bool RxRing::create(const RxShape& shape) {
  // The socket has no protocol yet, so nothing arrives before all is set.
  socket_ = Descriptor(libc.socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = socket_.get();
  return socket_.is_open() && attach_filter(fd, shape) && set(fd, PACKET_IGNORE_OUTGOING, 1) &&
         set(fd, PACKET_VERSION, TPACKET_V2) && set(fd, PACKET_VNET_HDR, 1) && map(shape);
}

bool RxRing::map(const RxShape& shape) {
  slot_bytes_ = slot_for(shape.longest);
  block_bytes_ = std::max(kBlock, std::bit_ceil(slot_bytes_));
  slots_a_block_ = block_bytes_ / slot_bytes_;
  blocks_ = std::max(1u, shape.ring_bytes / block_bytes_);
  tpacket_req ring{};
  ring.tp_block_size = block_bytes_;
  ring.tp_block_nr = blocks_;
  ring.tp_frame_size = slot_bytes_;
  ring.tp_frame_nr = slots_a_block_ * blocks_;
  if (libc.setsockopt(socket_.get(), SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0) return false;
  bytes_ = std::size_t{block_bytes_} * blocks_;
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, socket_.get(), 0);
  if (memory == MAP_FAILED) return false;
  // A forked child's mapping would keep the socket alive.
  madvise(memory, bytes_, MADV_DONTFORK);
  madvise(memory, bytes_, MADV_DONTDUMP);
  memory_ = slot_ = static_cast<std::byte*>(memory);
  return true;
}

bool RxRing::attach(int interface) const {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = host_to_be16(ETH_P_ALL);
  address.sll_ifindex = interface;
  return libc.bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void RxRing::advance() {
  // The release store comes after all reads of the slot.
  __atomic_store_n(&reinterpret_cast<tpacket2_hdr*>(slot_)->tp_status, std::uint32_t{TP_STATUS_KERNEL},
                   __ATOMIC_RELEASE);
  if (++slot_in_block_ == slots_a_block_) {
    slot_in_block_ = 0;
    if (++block_ == blocks_) block_ = 0;
  }
  slot_ = memory_ + std::size_t{block_} * block_bytes_ + std::size_t{slot_in_block_} * slot_bytes_;
}

void RxRing::take_error() const {
  int error = 0;
  socklen_t size = sizeof error;
  libc.getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
}

std::uint64_t RxRing::take_losses() const {
  tpacket_stats counted{};
  socklen_t size = sizeof counted;
  return libc.getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &counted, &size) == 0 ? counted.tp_drops : 0;
}

VnetHeader vnet_of(const tpacket2_hdr& slot) {
  VnetHeader header;
  std::memcpy(&header, reinterpret_cast<const std::byte*>(&slot) + slot.tp_mac - sizeof header, sizeof header);
  return header;
}

bool is_older(const tpacket2_hdr& a, const tpacket2_hdr& b) {
  return std::tie(a.tp_sec, a.tp_nsec) < std::tie(b.tp_sec, b.tp_nsec);
}

}  // namespace bypass::packet
