#include "softverbs/roce_frame.h"

#include "softverbs/engine/icrc.h"
#include "stack/world.h"

namespace bypass::rdma::test {

constexpr std::size_t kUdpAt = 34, kBthAt = 42;

void fix_sums(sim::Bytes& frame) {
  bypass::test::fix_ip_checksum(frame);
  Packet packet{};
  packet.data = packet.buffer = frame.data();
  packet.len = packet.frame_len = packet.capacity = static_cast<std::uint32_t>(frame.size());
  const std::uint32_t icrc = icrc_of(packet, {14, kUdpAt}, frame.size() - kIcrcBytes);
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
  sim::Bytes frame = bypass::test::ipv4_frame({.ttl = options.ttl, .tos = options.tos}, l4);
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
