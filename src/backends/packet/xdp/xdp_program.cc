#include "backends/packet/xdp/xdp_program.h"

#include <linux/if_ether.h>
#include <linux/if_link.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "backends/packet/flows/bpf.h"

namespace bypass::packet {
namespace {

constexpr std::int16_t kEtherType = 12, kArpTarget = 38;  // offsets in an ARP frame: RFC 826
constexpr std::int32_t kArpFrame = 42;

std::uint32_t word(const std::uint8_t* bytes) {
  std::uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::uint16_t half(const std::uint8_t* bytes) {
  std::uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// R2: the frame's first byte, R3: its end. Values are compared in the frame's byte order.
BpfAssembler take_ours(int map, const MacAddress& mac, std::span<const IpAddress> addresses) {
  using enum BpfAssembler::Register;
  BpfAssembler a;
  BpfAssembler::Jumps pass, take, not_head;
  a.load(BPF_W, kR2, kR1, offsetof(xdp_md, data));
  a.load(BPF_W, kR3, kR1, offsetof(xdp_md, data_end));
  a.move(kR4, kR2);
  a.increase(kR4, kArpFrame);  // the shortest frame that is of use to us
  a.jump_if_greater(kR4, kR3, pass);
  a.load(BPF_W, kR4, kR2, 0);
  a.jump_if_not(kR4, word(mac.bytes.data()), not_head);
  a.load(BPF_H, kR4, kR2, 4);
  a.jump_if_equal(kR4, half(mac.bytes.data() + 4), take);
  a.land(not_head);
  a.load(BPF_B, kR4, kR2, 0);
  a.jump_if_not(kR4, 0xff, pass);
  a.load(BPF_H, kR4, kR2, kEtherType);
  a.jump_if_not(kR4, host_to_be16(ETH_P_ARP), pass);
  a.load(BPF_W, kR4, kR2, kArpTarget);
  for (const IpAddress& address : addresses)
    if (address.is_v4()) a.jump_if_equal(kR4, word(address.bytes.data() + 12), take);
  a.land(pass);
  a.leave_with(XDP_PASS);
  a.land(take);
  a.load_map(kR1, map);
  a.set(kR2, 0);
  a.set(kR3, XDP_PASS);  // the result when there is no socket
  a.call(BPF_FUNC_redirect_map);
  a.leave();
  return a;
}

Descriptor make_map(int xdp_socket) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_XSKMAP;
  attributes.key_size = attributes.value_size = sizeof(int);
  attributes.max_entries = 1;
  Descriptor map(bpf(BPF_MAP_CREATE, attributes));
  const std::uint32_t queue = 0;
  attributes = {};
  attributes.map_fd = static_cast<std::uint32_t>(map.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&queue);
  attributes.value = reinterpret_cast<std::uint64_t>(&xdp_socket);
  return map.is_open() && bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0 ? std::move(map) : Descriptor();
}

}  // namespace

bool XdpProgram::attach(int interface, int xdp_socket, const MacAddress& mac, std::span<const IpAddress> addresses) {
  const Descriptor map = make_map(xdp_socket);
  return map.is_open() && attach(interface, take_ours(map.get(), mac, addresses));
}

bool XdpProgram::attach(int interface, int xdp_socket, const SteeringPoint& point) {
  const Descriptor map = make_map(xdp_socket);
  return map.is_open() && attach(interface, xdp_redirect(point, map.get()));
}

bool XdpProgram::attach(int interface, const BpfAssembler& assembled) {
  const Descriptor program = load_program(kXdp, assembled);
  if (!program.is_open()) return false;
  for (const std::uint32_t mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    link_ = link_program(kXdp, program.get(), interface, mode);
    if (link_.is_open() || errno == EBUSY) break;
  }
  return link_.is_open();
}

}  // namespace bypass::packet
