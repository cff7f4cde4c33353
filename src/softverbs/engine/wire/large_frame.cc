#include "softverbs/engine/wire/large_frame.h"

#include <algorithm>
#include <cstring>

#include "stack/frame/checksum.h"

namespace bypass::rdma {
namespace {

constexpr std::size_t kFlagsAt = 13, kSequenceAt = 4;  // in a TCP header
constexpr std::byte kFin{0x01}, kPush{0x08}, kCwr{0x80};

}  // namespace

LargeFrame::LargeFrame(const Packet& frame, std::uint32_t mtu) : rest_(frame, 0) {
  constexpr std::size_t kEthernet = sizeof(wire::Ethernet);
  if (!wire::fits<wire::Ipv4>(frame, kEthernet) || wire::at<wire::Ethernet>(frame, 0).type != wire::kEtherTypeIpv4)
    return;
  const auto& ip = wire::at<wire::Ipv4>(frame, kEthernet);
  ip_len_ = static_cast<std::uint32_t>(ip.header_len());
  const std::size_t tcp = kEthernet + ip_len_;
  const bool fragment = (ip.fragment & (wire::kMoreFragments | wire::kFragmentOffset)) != 0;
  if (ip_len_ < sizeof ip || ip.protocol != wire::kProtocolTcp || fragment || frame.len < tcp + wire::kMinTcpHeader)
    return;
  tcp_len_ = (std::to_integer<std::uint32_t>(frame.data[tcp + 12]) >> 4) * 4;
  const std::uint32_t headers = ip_len_ + tcp_len_;
  const std::uint32_t total = ip.total_len;
  if (tcp_len_ < wire::kMinTcpHeader || headers >= mtu || total <= headers || frame.frame_len < kEthernet + total)
    return;
  header_len_ = static_cast<std::uint32_t>(kEthernet) + headers;
  rest_.copy(header_.data(), header_len_);
  const std::uint32_t most = mtu - headers;
  size_ = frame.tso_mss != 0 ? std::min<std::uint32_t>(frame.tso_mss, most) : most;
  left_ = total - headers;
}

bool LargeFrame::next() {
  if (left_ == 0) return false;
  rest_.advance(unread_);
  auto& ip = *reinterpret_cast<wire::Ipv4*>(header_.data() + sizeof(wire::Ethernet));
  std::byte* const tcp = header_.data() + sizeof(wire::Ethernet) + ip_len_;
  std::byte& flags = tcp[kFlagsAt];
  if (first_) {
    kept_ = flags & (kFin | kPush);
  } else {
    wire::Be32 sequence;
    std::memcpy(&sequence, tcp + kSequenceAt, sizeof sequence);
    sequence = sequence + payload_;
    std::memcpy(tcp + kSequenceAt, &sequence, sizeof sequence);
    ip.id = static_cast<std::uint16_t>(ip.id + 1);
    flags &= ~kCwr;  // RFC 3168 §6.1.2: only once
  }
  payload_ = unread_ = std::min(size_, left_);
  left_ -= payload_;
  flags = (flags & ~(kFin | kPush)) | (left_ == 0 ? kept_ : std::byte{});
  ip.total_len = static_cast<std::uint16_t>(ip_len_ + tcp_len_ + payload_);
  ip.checksum = 0;
  ip.checksum.set_raw(checksum_finish(checksum(&ip, ip_len_)));
  read_ = 0;
  first_ = false;
  return true;
}

void LargeFrame::copy(std::byte* to, std::size_t len) {
  const std::size_t of_header = std::min<std::size_t>(len, header_len_ - read_);
  std::memcpy(to, header_.data() + read_, of_header);
  read_ += of_header;
  rest_.copy(to + of_header, len - of_header);
  unread_ -= static_cast<std::uint32_t>(len - of_header);
}

}  // namespace bypass::rdma
