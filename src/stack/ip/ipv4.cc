#include "stack/ip/ipv4.h"

#include <algorithm>

namespace bypass {

void trim_frame(Packet& frame, std::uint32_t len) {
  frame.frame_len = len;
  for (Packet* p = &frame; p != nullptr; p = p->next_segment) {
    p->len = std::min(p->len, len);
    len -= p->len;
  }
}

Ipv4Check parse_ipv4(Packet& frame, L4Input& input) {
  if (!wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet))) return Ipv4Check::kMalformed;
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t header = ip.header_len(), total = ip.total_len;
  if (ip.version_ihl >> 4 != 4 || header < sizeof(wire::Ipv4) || total < header) return Ipv4Check::kMalformed;
  if (sizeof(wire::Ethernet) + header > frame.len) return Ipv4Check::kMalformed;
  if (sizeof(wire::Ethernet) + total > frame.frame_len) return Ipv4Check::kMalformed;
  if ((frame.flags & kRxIpChecksumGood) == 0 && !checksum_is_good(checksum(&ip, header))) return Ipv4Check::kMalformed;
  const auto whole = static_cast<std::uint32_t>(sizeof(wire::Ethernet) + total);
  if (frame.frame_len != whole) trim_frame(frame, whole);
  frame.l2_len = sizeof(wire::Ethernet);
  frame.l3_len = static_cast<std::uint16_t>(header);
  input.packet = &frame;
  input.source = IpAddress::from_v4(ip.source);
  input.destination = IpAddress::from_v4(ip.destination);
  input.l4_offset = static_cast<std::uint16_t>(sizeof(wire::Ethernet) + header);
  input.l4_len = static_cast<std::uint32_t>(total - header);
  input.protocol = ip.protocol;
  input.tos = ip.tos;
  const bool whole_packet = (ip.fragment & (wire::kMoreFragments | wire::kFragmentOffset)) == 0;
  return whole_packet ? Ipv4Check::kGood : Ipv4Check::kFragment;
}

void build_prefix(Path& path, const MacAddress& from, const MacAddress& to) {
  std::memset(path.header, 0, sizeof path.header);
  auto& ethernet = *reinterpret_cast<wire::Ethernet*>(path.header);
  ethernet.destination = to;
  ethernet.source = from;
  ethernet.type = wire::kEtherTypeIpv4;
  auto& ip = *reinterpret_cast<wire::Ipv4*>(path.header + sizeof(wire::Ethernet));
  ip.fragment = path.fragment;
  ip.source = path.local.v4();
  ip.destination = path.remote.v4();
  const std::uint32_t constant = checksum_fold(checksum(&ip, sizeof ip));
  ip.version_ihl = 0x45;
  std::memcpy(path.header + wire::kHeaderPrefix, &constant, sizeof constant);
  path.header_len = wire::kHeaderPrefix;
}

void set_fragment(Path& path, std::uint16_t fragment) {
  path.fragment = fragment;
  if (path.header_len == 0) return;
  auto& ip = *reinterpret_cast<wire::Ipv4*>(path.header + sizeof(wire::Ethernet));
  const std::uint16_t old = ip.fragment.raw();
  ip.fragment = fragment;
  std::uint32_t constant;
  std::memcpy(&constant, path.header + wire::kHeaderPrefix, sizeof constant);
  constant =
      checksum_fold({std::uint64_t{constant} + static_cast<std::uint16_t>(~old) + ip.fragment.raw()});  // RFC 1624
  std::memcpy(path.header + wire::kHeaderPrefix, &constant, sizeof constant);
}

}  // namespace bypass
