#include "backends/packet/flows/steering_program.h"

#include <linux/if_ether.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "backends/packet/flows/flow_map.h"

namespace bypass::packet {
namespace {

using Assembler = BpfAssembler;
using Jumps = BpfAssembler::Jumps;
using enum BpfAssembler::Register;

// What differs between the contexts of the three uses.
struct Context {
  std::int32_t load_bytes;  // the helper; its arguments are context, offset, destination, length, and it returns 0
  bool tells_tag;           // the VLAN tag does not lie in the frame
  bool finds_sockets;       // the program can look up the kernel's connections
};
constexpr Context kTap{BPF_FUNC_skb_load_bytes, true, false};
constexpr Context kBuffer{BPF_FUNC_skb_load_bytes, true, true};
constexpr Context kDriver{BPF_FUNC_xdp_load_bytes, false, true};

// The places to which the frame's possible outcomes jump.
struct Ends {
  Jumps taken, copied, passed;
};

// The layout of the program's stack frame: the key, below it a header of the packet, below that the key for a socket
// look-up. R6 holds the context.
constexpr std::int16_t kKey = -static_cast<std::int16_t>(sizeof(FlowKey)), kHeader = kKey - 40, kTuple = kHeader - 40;
static_assert(sizeof(bpf_sock_tuple) <= 40);
constexpr std::int32_t kIpv4Header = 20, kIpv6Header = 40;

constexpr std::int16_t key(std::size_t field) {
  return static_cast<std::int16_t>(kKey + static_cast<std::int16_t>(field));
}
constexpr std::int16_t header(int field) {
  return static_cast<std::int16_t>(kHeader + field);
}

template <typename T>
T as_it_lies(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

class Matcher {
 public:
  Matcher(Assembler& assembler, const Context& context, const SteeringPoint& point)
      : a_(assembler), context_(context), point_(point) {}

  Ends assemble();

 private:
  void load_frame(std::int32_t at, std::int32_t length, Jumps& too_short);
  void load_header(std::int32_t length, Jumps& too_short);
  void clear_key();
  void copy_address(std::int16_t from, std::size_t field);
  void only_to_us(Ends& ends);
  void read_ipv4(Jumps& ports, Jumps& no_flow);
  void read_ipv6(Jumps& ports, Jumps& no_flow, Ends& ends);
  void read_ports(Jumps& no_flow);
  void look_up(Jumps& found);
  void note_tuple();
  void leave_connections_to_kernel(Ends& ends);

  Assembler& a_;
  const Context& context_;
  const SteeringPoint& point_;
};

// Loads bytes of the packet into kHeader. The offset is already in R2 where `at` is negative.
void Matcher::load_frame(std::int32_t at, std::int32_t length, Jumps& too_short) {
  a_.move(kR1, kR6);
  if (at >= 0) a_.set(kR2, at);
  a_.move(kR3, kFrame);
  a_.increase(kR3, kHeader);
  a_.set(kR4, length);
  a_.call(context_.load_bytes);
  a_.jump_if_not(kR0, 0, too_short);
}

void Matcher::load_header(std::int32_t length, Jumps& too_short) {
  load_frame(ETH_HLEN, length, too_short);
}

void Matcher::clear_key() {
  for (std::int16_t at = kKey; at < 0; at = static_cast<std::int16_t>(at + 8)) a_.store_value(BPF_DW, kFrame, at, 0);
}

void Matcher::copy_address(std::int16_t from, std::size_t field) {
  for (std::int16_t i = 0; i < 16; i = static_cast<std::int16_t>(i + 8)) {
    a_.load(BPF_DW, kR1, kFrame, static_cast<std::int16_t>(from + i));
    a_.store(BPF_DW, kFrame, static_cast<std::int16_t>(key(field) + i), kR1);
  }
}

// Leaves R7: the Ethernet type.
void Matcher::only_to_us(Ends& ends) {
  if (context_.tells_tag) {
    a_.load(BPF_W, kR1, kR6, offsetof(__sk_buff, vlan_present));
    a_.jump_if_not(kR1, 0, ends.passed);
  }
  load_frame(0, ETH_HLEN, ends.passed);
  a_.load(BPF_H, kR7, kFrame, header(offsetof(ethhdr, h_proto)));
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_8021Q), ends.passed);
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_8021AD), ends.passed);
  a_.load(BPF_B, kR1, kFrame, header(0));
  a_.jump_if_any_bit(kR1, 1, ends.copied);  // a frame to a group
  a_.load(BPF_W, kR1, kFrame, header(0));
  a_.jump_if_not(kR1, as_it_lies<std::uint32_t>(point_.mac.bytes.data()), ends.passed);
  a_.load(BPF_H, kR1, kFrame, header(4));
  a_.jump_if_not(kR1, as_it_lies<std::uint16_t>(point_.mac.bytes.data() + 4), ends.passed);
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_ARP), ends.copied);
}

// RFC 791 §3.1. Leaves R8: the offset of the ports.
void Matcher::read_ipv4(Jumps& ports, Jumps& no_flow) {
  load_header(kIpv4Header, no_flow);
  a_.load(BPF_B, kR1, kFrame, header(9));  // the protocol
  a_.store(BPF_B, kFrame, key(offsetof(FlowKey, protocol)), kR1);
  a_.load(BPF_H, kR2, kFrame, header(6));
  a_.jump_if_any_bit(kR2, host_to_be16(0x3fff), no_flow);  // more fragments, or an offset
  a_.load(BPF_B, kR8, kFrame, header(0));
  a_.jump_if_below(kR8, 0x45, no_flow);
  a_.jump_if_above(kR8, 0x4f, no_flow);
  a_.keep_bits(kR8, 0xf);
  a_.shift_left(kR8, 2);
  a_.increase(kR8, ETH_HLEN);
  for (const auto& [from, field] :
       {std::pair{16, offsetof(FlowKey, local)}, std::pair{12, offsetof(FlowKey, remote)}}) {
    a_.store_value(BPF_W, kFrame, key(field + 8), static_cast<std::int32_t>(0xffff0000));  // v4-mapped
    a_.load(BPF_W, kR2, kFrame, header(from));
    a_.store(BPF_W, kFrame, key(field + 12), kR2);
  }
  a_.jump(ports);
}

// RFC 8200 §3. Leaves R1: the protocol.
void Matcher::read_ipv6(Jumps& ports, Jumps& no_flow, Ends& ends) {
  load_header(kIpv6Header, no_flow);
  Jumps neighbour_discovery;
  copy_address(header(24), offsetof(FlowKey, local));
  copy_address(header(8), offsetof(FlowKey, remote));
  a_.set(kR8, ETH_HLEN + kIpv6Header);
  a_.load(BPF_B, kR1, kFrame, header(6));
  a_.store(BPF_B, kFrame, key(offsetof(FlowKey, protocol)), kR1);
  a_.jump_if_not(kR1, IPPROTO_ICMPV6, ports);
  load_frame(ETH_HLEN + kIpv6Header, 1, no_flow);
  a_.load(BPF_B, kR1, kFrame, header(0));
  a_.jump_if_below(kR1, ND_ROUTER_SOLICIT, no_flow);
  a_.jump_if_above(kR1, ND_REDIRECT, no_flow);
  a_.jump(ends.copied);
}

// Expects R1: the protocol. TCP and UDP have their ports in the same place.
void Matcher::read_ports(Jumps& no_flow) {
  Jumps known;
  a_.jump_if_equal(kR1, IPPROTO_TCP, known);
  a_.jump_if_not(kR1, IPPROTO_UDP, no_flow);
  a_.land(known);
  a_.move(kR2, kR8);
  load_frame(-1, 4, no_flow);
  a_.load(BPF_H, kR1, kFrame, header(0));
  a_.store(BPF_H, kFrame, key(offsetof(FlowKey, remote_port)), kR1);
  a_.load(BPF_H, kR1, kFrame, header(2));
  a_.store(BPF_H, kFrame, key(offsetof(FlowKey, local_port)), kR1);
}

void Matcher::look_up(Jumps& found) {
  a_.load_map(kR1, point_.flows);
  a_.move(kR2, kFrame);
  a_.increase(kR2, kKey);
  a_.call(BPF_FUNC_map_lookup_elem);
  a_.jump_if_not_null(kR0, found);
}

// Notes the ends that the key names, as the kernel's socket look-up wants them. It runs before the key drops the remote
// end.
void Matcher::note_tuple() {
  struct Part {
    std::uint8_t size;
    std::size_t from;
    std::size_t to;
  };
  const auto copy = [this](std::initializer_list<Part> parts) {
    for (const Part& part : parts) {
      a_.load(part.size, kR1, kFrame, key(part.from));
      a_.store(part.size, kFrame, static_cast<std::int16_t>(kTuple + static_cast<std::int16_t>(part.to)), kR1);
    }
  };
  constexpr std::size_t kRemote = offsetof(FlowKey, remote), kLocal = offsetof(FlowKey, local);
  Jumps v6, noted;
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_IPV6), v6);
  copy({{BPF_W, kRemote + 12, offsetof(bpf_sock_tuple, ipv4.saddr)},
        {BPF_W, kLocal + 12, offsetof(bpf_sock_tuple, ipv4.daddr)},
        {BPF_H, offsetof(FlowKey, remote_port), offsetof(bpf_sock_tuple, ipv4.sport)},
        {BPF_H, offsetof(FlowKey, local_port), offsetof(bpf_sock_tuple, ipv4.dport)}});
  a_.jump(noted);
  a_.land(v6);
  for (std::size_t i = 0; i < 16; i += 4)
    copy({{BPF_W, kRemote + i, offsetof(bpf_sock_tuple, ipv6.saddr) + i},
          {BPF_W, kLocal + i, offsetof(bpf_sock_tuple, ipv6.daddr) + i}});
  copy({{BPF_H, offsetof(FlowKey, remote_port), offsetof(bpf_sock_tuple, ipv6.sport)},
        {BPF_H, offsetof(FlowKey, local_port), offsetof(bpf_sock_tuple, ipv6.dport)}});
  a_.land(noted);
}

// A connection that was made before its port's flow was steered goes on in the kernel. The only other socket there is
// the port's own listener, which keeps its number in the kernel, too.
void Matcher::leave_connections_to_kernel(Ends& ends) {
  constexpr std::uint32_t kListening = 10;  // BPF_TCP_LISTEN
  constexpr std::int32_t kThisNamespace = -1;
  Jumps v4;
  a_.load(BPF_B, kR1, kFrame, key(offsetof(FlowKey, protocol)));
  a_.jump_if_not(kR1, IPPROTO_TCP, ends.taken);
  a_.set(kR3, sizeof(bpf_sock_tuple::ipv4));
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_IP), v4);
  a_.set(kR3, sizeof(bpf_sock_tuple::ipv6));
  a_.land(v4);
  a_.move(kR1, kR6);
  a_.move(kR2, kFrame);
  a_.increase(kR2, kTuple);
  a_.set(kR4, kThisNamespace);
  a_.set(kR5, 0);
  a_.call(BPF_FUNC_skc_lookup_tcp);
  a_.jump_if_null(kR0, ends.taken);
  a_.load(BPF_W, kR7, kR0, offsetof(bpf_sock, state));
  a_.move(kR1, kR0);
  a_.call(BPF_FUNC_sk_release);
  a_.jump_if_equal(kR7, kListening, ends.taken);
  a_.jump(ends.passed);
}

Ends Matcher::assemble() {
  Ends ends;
  Jumps v6, ports, no_flow, by_port;
  a_.move(kR6, kR1);
  only_to_us(ends);
  clear_key();
  a_.jump_if_equal(kR7, host_to_be16(ETH_P_IPV6), v6);
  a_.jump_if_not(kR7, host_to_be16(ETH_P_IP), no_flow);
  read_ipv4(ports, no_flow);
  a_.land(v6);
  read_ipv6(ports, no_flow, ends);
  a_.land(ports);
  read_ports(no_flow);
  look_up(ends.taken);
  if (context_.finds_sockets) note_tuple();
  a_.store_value(BPF_H, kFrame, key(offsetof(FlowKey, remote_port)), 0);
  a_.store_value(BPF_DW, kFrame, key(offsetof(FlowKey, remote)), 0);
  a_.store_value(BPF_DW, kFrame, key(offsetof(FlowKey, remote) + 8), 0);
  look_up(by_port);
  a_.land(no_flow);
  clear_key();
  look_up(ends.taken);
  a_.jump(ends.passed);
  a_.land(by_port);
  if (context_.finds_sockets)
    leave_connections_to_kernel(ends);
  else
    a_.jump(ends.taken);
  return ends;
}

}  // namespace

BpfAssembler ring_filter(const SteeringPoint& point, std::uint32_t shortest, std::uint32_t longest) {
  Assembler a;
  Jumps other_length;
  a.load(BPF_W, kR2, kR1, offsetof(__sk_buff, len));
  a.jump_if_below(kR2, shortest, other_length);
  a.jump_if_above(kR2, longest, other_length);
  const Ends ends = Matcher(a, kTap, point).assemble();
  a.land(ends.taken);
  a.land(ends.copied);
  a.leave_with(-1);  // the whole frame
  a.land(ends.passed);
  a.land(other_length);
  a.leave_with(0);
  return a;
}

BpfAssembler ingress_filter(const SteeringPoint& point) {
  constexpr std::int32_t kNext = -1, kDrop = 2;  // TCX_NEXT, TCX_DROP
  Assembler a;
  const Ends ends = Matcher(a, kBuffer, point).assemble();
  a.land(ends.copied);
  a.land(ends.passed);
  a.leave_with(kNext);
  a.land(ends.taken);
  a.leave_with(kDrop);
  return a;
}

BpfAssembler xdp_redirect(const SteeringPoint& point, int socket_map) {
  Assembler a;
  const Ends ends = Matcher(a, kDriver, point).assemble();
  a.land(ends.copied);
  a.land(ends.passed);
  a.leave_with(XDP_PASS);
  a.land(ends.taken);
  a.load_map(kR1, socket_map);
  a.set(kR2, 0);
  a.set(kR3, XDP_PASS);  // the result when there is no socket
  a.call(BPF_FUNC_redirect_map);
  a.leave();
  return a;
}

}  // namespace bypass::packet
