#include "softverbs/engine/wire/icrc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "softverbs/engine/wire/crc32.h"
#include "stack/frame/wire.h"

namespace bypass::rdma {
namespace {

constexpr std::size_t kBthBytes = 12;
constexpr std::size_t kRouteHeader = 8;  // the local route header, which counts as ones
constexpr std::size_t kMostHeaders = 60 + sizeof(wire::Udp) + kBthBytes;
static_assert(kIcrcFirst >= kMostHeaders);

// Sets all masked header fields to ones.
template <std::size_t ip_len>
constexpr auto make_mask() {
  constexpr std::byte kOnes{0xff};
  std::array<std::byte, kRouteHeader + ip_len + sizeof(wire::Udp) + kBthBytes> mask{};
  for (std::size_t i = 0; i < kRouteHeader; i++) mask[i] = kOnes;
  std::byte* const ip = mask.data() + kRouteHeader;
  if (ip_len == 40) {
    ip[0] = std::byte{0x0f};  // traffic class, flow label, hop limit
    ip[1] = ip[2] = ip[3] = ip[7] = kOnes;
  } else {
    ip[1] = ip[8] = ip[10] = ip[11] = kOnes;  // TOS, TTL, header checksum
  }
  std::byte* const udp = ip + ip_len;
  udp[6] = udp[7] = kOnes;             // the checksum
  udp[sizeof(wire::Udp) + 4] = kOnes;  // FECN, BECN, reserved bits
  return mask;
}

// Word by word, so that the sum, which reads the words next, finds them as they were stored.
template <std::size_t ip_len>
void copy_masked(std::byte* to, const std::byte* ip) {
  static constexpr auto kMask = make_mask<ip_len>();
  using Word = std::uint32_t;
  static_assert(kMask.size() % sizeof(Word) == 0);
  std::memset(to, 0xff, kRouteHeader);
  for (std::size_t i = kRouteHeader; i < kMask.size(); i += sizeof(Word)) {
    Word word, mask;
    std::memcpy(&word, ip + i - kRouteHeader, sizeof word);
    std::memcpy(&mask, kMask.data() + i, sizeof mask);
    word |= mask;
    std::memcpy(to + i, &word, sizeof word);
  }
}

// An IPv4 header with options.
void copy_masked_options(std::byte* to, const std::byte* ip, std::size_t ip_len) {
  constexpr auto kPlain = sizeof(wire::Ipv4);
  static constexpr auto kMask = make_mask<kPlain>();
  const std::size_t headers = kRouteHeader + ip_len + sizeof(wire::Udp) + kBthBytes;
  std::memset(to, 0xff, kRouteHeader);
  std::memcpy(to + kRouteHeader, ip, headers - kRouteHeader);
  for (std::size_t i = 0; i < kMask.size(); i++) to[i < kRouteHeader + kPlain ? i : i + ip_len - kPlain] |= kMask[i];
}

}  // namespace

std::uint32_t icrc_first(const std::byte* ip, std::size_t ip_len, std::size_t len) {
  alignas(64) std::array<std::byte, kRouteHeader + kIcrcFirst> first;
  const std::size_t headers = ip_len + sizeof(wire::Udp) + kBthBytes;
  const bool v4 = (ip[0] >> 4) == std::byte{4};
  if (ip_len == sizeof(wire::Ipv4)) {
    copy_masked<sizeof(wire::Ipv4)>(first.data(), ip);
  } else if (ip_len == 40 && !v4) {
    copy_masked<40>(first.data(), ip);
  } else {
    copy_masked_options(first.data(), ip, ip_len);
  }
  if (len > headers) std::memcpy(first.data() + kRouteHeader + headers, ip + headers, len - headers);
  return crc32_update(kCrcStart, first.data(), kRouteHeader + len);
}

std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end) {
  const std::size_t headers = layout.udp + sizeof(wire::Udp) + kBthBytes;
  // A short packet is summed in one step.
  std::size_t from = end <= std::min<std::size_t>(head.len, layout.ip + kIcrcFirst) ? end : headers;
  std::uint32_t crc = icrc_first(head.data + layout.ip, layout.udp - layout.ip, from - layout.ip);
  for (const Packet* p = &head; p != nullptr && end != 0; p = p->next_segment) {
    const std::size_t here = std::min<std::size_t>(p->len, end);
    if (from < here) crc = crc32_update(crc, p->data + from, here - from);
    from -= std::min(from, here);
    end -= here;
  }
  return icrc_finish(crc);
}

}  // namespace bypass::rdma
