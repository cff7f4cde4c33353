#include "softverbs/roce_frame.h"

#include "softverbs/engine/wire/icrc.h"
#include "stack/world.h"

namespace bypass::rdma::test {

namespace {

bool is_v6(const sim::Bytes& frame) {
  return reinterpret_cast<const wire::Ethernet*>(frame.data())->type == kEtherTypeIpv6;
}

sim::Bytes ipv6_frame(const RoceOptions& options, const sim::Bytes& l4) {
  wire::Ethernet ethernet;
  ethernet.destination = bypass::test::mac(1);
  ethernet.source = bypass::test::mac(2);
  ethernet.type = kEtherTypeIpv6;
  Ipv6 ip;
  ip.version_class_flow = std::uint32_t{6} << 28 | std::uint32_t{options.tos} << 20;
  ip.payload_len = static_cast<std::uint16_t>(l4.size());
  ip.next_header = wire::kProtocolUdp;
  ip.hop_limit = options.ttl;
  ip.source = link_local(2).bytes;
  ip.destination = link_local(1).bytes;
  sim::Bytes frame = bytes_of_headers(ethernet, ip);
  frame.insert(frame.end(), l4.begin(), l4.end());
  return frame;
}

}  // namespace

IpAddress link_local(std::uint8_t n) {
  return {{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, n}};
}

void fix_sums(sim::Bytes& frame) {
  const bool v6 = is_v6(frame);
  const std::uint16_t udp_at = sizeof(wire::Ethernet) + (v6 ? sizeof(Ipv6) : sizeof(wire::Ipv4));
  if (!v6) bypass::test::fix_ip_checksum(frame);
  Packet packet{};
  packet.data = packet.buffer = frame.data();
  packet.len = packet.frame_len = packet.capacity = static_cast<std::uint32_t>(frame.size());
  const std::uint32_t icrc = icrc_of(packet, {sizeof(wire::Ethernet), udp_at}, frame.size() - kIcrcBytes);
  std::memcpy(frame.data() + frame.size() - kIcrcBytes, &icrc, sizeof icrc);
}

sim::Bytes roce_frame(const RoceOptions& options, std::span<const std::byte> rest) {
  Bth bth;
  bth.opcode = options.opcode;
  const std::size_t pad = (0 - rest.size()) & 3;
  bth.flags = static_cast<std::uint8_t>((options.solicited ? kBthSolicited : 0) | options.migration | pad << 4);
  bth.pkey = options.pkey;
  bth.qpn = options.qpn;
  bth.psn = options.psn | std::uint32_t{options.mark} << 24 | (options.ack_request ? kBthAckRequest : 0);
  wire::Udp udp;
  udp.source = options.source_port;
  udp.destination = kRocePort;
  udp.length = static_cast<std::uint16_t>(sizeof udp + sizeof bth + rest.size() + pad + kIcrcBytes);
  udp.checksum = 0;
  sim::Bytes l4 = bytes_of_headers(udp, bth);
  l4.insert(l4.end(), rest.begin(), rest.end());
  l4.resize(l4.size() + pad + kIcrcBytes);
  sim::Bytes frame =
      options.v6 ? ipv6_frame(options, l4) : bypass::test::ipv4_frame({.ttl = options.ttl, .tos = options.tos}, l4);
  fix_sums(frame);
  return frame;
}

Reth reth(std::uint64_t address, std::uint32_t rkey, std::uint32_t length) {
  Reth header;
  header.address = address;
  header.rkey = rkey;
  header.length = length;
  return header;
}

Aeth aeth(std::uint8_t syndrome, std::uint32_t msn) {
  Aeth header;
  header.syndrome_msn = std::uint32_t{syndrome} << 24 | msn;
  return header;
}

}  // namespace bypass::rdma::test
