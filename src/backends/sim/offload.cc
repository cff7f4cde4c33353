#include "backends/sim/offload.h"

#include <algorithm>
#include <cstring>

#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"

namespace bypass::sim {
namespace {

struct TcpHeader {
  wire::Be16 source, destination;
  wire::Be32 sequence, acknowledgment;
  std::uint8_t offset, flags;
  wire::Be16 window, checksum, urgent;
};
static_assert(sizeof(TcpHeader) == wire::kMinTcpHeader);
constexpr std::uint8_t kFin = 0x01, kPsh = 0x08, kCwr = 0x80;

template <typename Header>
Header& header_at(std::span<std::byte> frame, std::size_t offset) {
  return *reinterpret_cast<Header*>(frame.data() + offset);
}
template <typename Header>
const Header& header_at(std::span<const std::byte> frame, std::size_t offset) {
  return *reinterpret_cast<const Header*>(frame.data() + offset);
}

PartialSum pseudo_sum(const wire::Ipv4& ip, std::size_t l4_len) {
  return checksum_pseudo(IpAddress::from_v4(ip.source), IpAddress::from_v4(ip.destination), ip.protocol,
                         static_cast<std::uint32_t>(l4_len));
}

wire::Be16& l4_checksum_field(std::span<std::byte> frame, std::size_t l2_len, std::size_t l3_len) {
  const auto protocol = header_at<wire::Ipv4>(frame, l2_len).protocol;
  const std::size_t l4 = l2_len + l3_len;
  if (protocol == wire::kProtocolUdp) return header_at<wire::Udp>(frame, l4).checksum;
  return header_at<TcpHeader>(frame, l4).checksum;
}

// The L4 bytes of a well-formed, unfragmented packet; empty for any other frame.
std::span<const std::byte> l4_bytes(std::span<const std::byte> frame) {
  if (frame.size() < wire::kHeaderPrefix) return {};
  const auto& ip = header_at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t header = ip.header_len(), total = ip.total_len;
  if (header < sizeof(wire::Ipv4) || total < header || total + sizeof(wire::Ethernet) > frame.size()) return {};
  return frame.subspan(sizeof(wire::Ethernet) + header, total - header);
}

void fix_segment(Bytes& frame, std::size_t l2_len, std::size_t l3_len, std::uint16_t id_step) {
  auto& ip = header_at<wire::Ipv4>(std::span{frame}, l2_len);
  ip.total_len = static_cast<std::uint16_t>(frame.size() - l2_len);
  ip.id = static_cast<std::uint16_t>(ip.id + id_step);
  fill_ip_checksum(frame, l2_len, l3_len);
  auto& field = l4_checksum_field(frame, l2_len, l3_len);
  field.set_raw(checksum_fold(pseudo_sum(ip, frame.size() - l2_len - l3_len)));
  fill_l4_checksum(frame, l2_len, l3_len);
}

}  // namespace

ChecksumVerdict verify_checksums(std::span<const std::byte> frame) {
  ChecksumVerdict verdict;
  if (frame.size() < wire::kHeaderPrefix) return verdict;
  if (header_at<wire::Ethernet>(frame, 0).type != wire::kEtherTypeIpv4) return verdict;
  const auto& ip = header_at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const auto l4 = l4_bytes(frame);
  if (l4.empty()) return verdict;
  verdict.ip_good = checksum_is_good(checksum(&ip, ip.header_len()));
  verdict.bad = !verdict.ip_good;
  const bool known = (ip.protocol == wire::kProtocolTcp && l4.size() >= sizeof(TcpHeader)) ||
                     (ip.protocol == wire::kProtocolUdp && l4.size() >= sizeof(wire::Udp));
  if (!known || (ip.fragment & ~wire::kDontFragment) != 0) return verdict;
  const bool unsummed = ip.protocol == wire::kProtocolUdp && header_at<wire::Udp>(l4, 0).checksum == 0;
  if (unsummed) return verdict;
  verdict.l4_good = checksum_is_good(checksum(l4.data(), l4.size()) + pseudo_sum(ip, l4.size()));
  verdict.bad |= !verdict.l4_good;
  return verdict;
}

void fill_ip_checksum(std::span<std::byte> frame, std::size_t l2_len, std::size_t l3_len) {
  auto& ip = header_at<wire::Ipv4>(frame, l2_len);
  ip.checksum = 0;
  ip.checksum.set_raw(checksum_finish(checksum(&ip, l3_len)));
}

void fill_l4_checksum(std::span<std::byte> frame, std::size_t l2_len, std::size_t l3_len) {
  auto& field = l4_checksum_field(frame, l2_len, l3_len);
  const auto l4 = frame.subspan(l2_len + l3_len);
  const std::uint16_t sum = checksum_finish(checksum(l4.data(), l4.size()));
  const bool udp = header_at<wire::Ipv4>(frame, l2_len).protocol == wire::kProtocolUdp;
  field.set_raw(udp && sum == 0 ? 0xffff : sum);  // RFC 768: zero says "no checksum"
}

std::vector<Bytes> cut_tcp(std::span<const std::byte> frame, std::size_t l2_len, std::size_t l3_len, std::size_t l4_len,
                           std::size_t mss) {
  const std::size_t headers = l2_len + l3_len + l4_len;
  std::vector<Bytes> out;
  for (std::size_t at = headers; at < frame.size(); at += mss) {
    const std::size_t len = std::min(mss, frame.size() - at);
    Bytes piece(headers + len);
    std::memcpy(piece.data(), frame.data(), headers);
    std::memcpy(piece.data() + headers, frame.data() + at, len);
    auto& tcp = header_at<TcpHeader>(std::span{piece}, l2_len + l3_len);
    tcp.sequence = static_cast<std::uint32_t>(tcp.sequence + (at - headers));
    if (at + len < frame.size()) tcp.flags &= static_cast<std::uint8_t>(~(kFin | kPsh));
    if (at != headers) tcp.flags &= static_cast<std::uint8_t>(~kCwr);
    fix_segment(piece, l2_len, l3_len, static_cast<std::uint16_t>(out.size()));
    out.push_back(std::move(piece));
  }
  return out;
}

}  // namespace bypass::sim
