// IPv4 (RFC 791, RFC 1122 §3.2): checks what arrives, and writes the 34 bytes before what is sent.
//
// A path caches its Ethernet and IPv4 header; sending copies it and fills in what differs from packet to packet.
// The checksum is the cached sum of the words that never change, plus those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stack/frame/checksum.h"
#include "stack/frame/packet.h"
#include "stack/frame/port.h"
#include "stack/frame/wire.h"
#include "stack/ip/network.h"

namespace bypass {

enum class Ipv4Check : std::uint8_t { kGood, kMalformed, kFragment };

/// Checks the IPv4 header of a received frame or fragment and fills `input`; the caller sets port and broadcast. Trims
/// the frame to the IP packet, as Ethernet pads short ones.
Ipv4Check parse_ipv4(Packet& frame, L4Input& input);

/// Cuts the frame's bytes to `len`, over its chain; the chain keeps its (then empty) segments.
void trim_frame(Packet& frame, std::uint32_t len);

/// Fills path.header for its addresses. Sets header_len; does not set `generation`.
void build_prefix(Path& path, const MacAddress& from, const MacAddress& to);

/// Changes the word of flags and fragment offset, including the one in a cached header. With DF (RFC 1191 §6.1) the
/// identification has no meaning (RFC 6864 §4.1).
void set_fragment(Path& path, std::uint16_t fragment);

/// Puts the path's prefix in front of an L4 packet.
inline void prepend_prefix(Packet& packet, const Path& path, std::uint8_t protocol, std::uint16_t id) {
  packet.data -= wire::kHeaderPrefix;
  packet.len += static_cast<std::uint32_t>(wire::kHeaderPrefix);
  packet.frame_len += static_cast<std::uint32_t>(wire::kHeaderPrefix);
  packet.l2_len = sizeof(wire::Ethernet);
  packet.l3_len = sizeof(wire::Ipv4);
  std::memcpy(packet.data, path.header, wire::kHeaderPrefix);
  auto& ip = wire::at<wire::Ipv4>(packet, sizeof(wire::Ethernet));
  ip.tos = path.tos;
  ip.total_len = static_cast<std::uint16_t>(packet.frame_len - sizeof(wire::Ethernet));
  ip.id = id;
  ip.ttl = path.ttl;
  ip.protocol = protocol;
  std::uint32_t constant;
  std::memcpy(&constant, path.header + wire::kHeaderPrefix, sizeof constant);
  // The words version|tos and ttl|protocol, as they lie in memory.
  const std::uint32_t first = std::uint32_t{ip.version_ihl} | std::uint32_t{ip.tos} << 8;
  const std::uint32_t fifth = std::uint32_t{ip.ttl} | std::uint32_t{ip.protocol} << 8;
  ip.checksum.set_raw(checksum_finish({std::uint64_t{constant} + first + fifth + ip.total_len.raw() + ip.id.raw()}));
}

/// A port that cuts large frames can also fill in the pieces' IP checksums. It then needs the field to be zero.
inline void leave_ip_checksum(Packet& packet, const PortCaps& caps) {
  if ((packet.flags & kTxTso) == 0 || !caps.tx_ip_checksum) return;
  packet.flags |= kTxIpChecksum;
  wire::at<wire::Ipv4>(packet, sizeof(wire::Ethernet)).checksum = 0;
}

}  // namespace bypass
