#include "softverbs/engine/icrc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "softverbs/engine/crc32.h"
#include "stack/wire.h"

namespace bypass::rdma {
namespace {

constexpr std::size_t kBthBytes = 12;
constexpr std::size_t kMostHeaders = 60 + sizeof(wire::Udp) + kBthBytes;
// Of a short packet everything is summed at once, behind its headers.
constexpr std::size_t kTogether = 160;
static_assert(kTogether >= kMostHeaders);

}  // namespace

void icrc_mask(std::byte* ip, std::size_t ip_len) {
  constexpr std::byte kOnes{0xff};
  std::memset(ip - kMissingHeader, 0xff, kMissingHeader);
  if ((ip[0] >> 4) == std::byte{4}) {
    ip[1] = ip[8] = ip[10] = ip[11] = kOnes;  // TOS, TTL, header checksum
  } else {
    ip[0] |= std::byte{0x0f};  // traffic class, flow label, hop limit
    ip[1] = ip[2] = ip[3] = ip[7] = kOnes;
  }
  std::byte* const udp = ip + ip_len;
  udp[6] = udp[7] = kOnes;             // the checksum
  udp[sizeof(wire::Udp) + 4] = kOnes;  // FECN, BECN, reserved bits
}

std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end) {
  const std::size_t headers = layout.udp + sizeof(wire::Udp) + kBthBytes;
  const bool is_short = end <= std::min<std::size_t>(head.len, layout.ip + kTogether);
  std::size_t from = is_short ? end : headers;
  std::array<std::byte, kMissingHeader + kTogether> first;
  std::memcpy(first.data() + kMissingHeader, head.data + layout.ip, from - layout.ip);
  icrc_mask(first.data() + kMissingHeader, layout.udp - layout.ip);
  std::uint32_t crc = crc32_update(kCrcStart, first.data(), kMissingHeader + from - layout.ip);
  for (const Packet* p = &head; p != nullptr && end != 0; p = p->next_segment) {
    const std::size_t here = std::min<std::size_t>(p->len, end);
    if (from < here) crc = crc32_update(crc, p->data + from, here - from);
    from -= std::min(from, here);
    end -= here;
  }
  return icrc_finish(crc);
}

}  // namespace bypass::rdma
