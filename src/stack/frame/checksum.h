// The Internet checksum (RFC 1071), in the byte order of memory: sums of 16-bit words as they lie, so that
// nothing is swapped and a folded result is stored as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "stack/address.h"
#include "stack/frame/packet.h"

namespace bypass {

/// A sum that has not been folded to 16 bits. Partial sums add with `+`; any order, as long as each piece
/// begins at an even offset of the whole (else checksum_odd() first).
struct PartialSum {
  std::uint64_t value = 0;
};
constexpr PartialSum operator+(PartialSum a, PartialSum b) {
  const std::uint64_t sum = a.value + b.value;
  return {sum + (sum < a.value ? 1U : 0U)};
}
constexpr PartialSum& operator+=(PartialSum& a, PartialSum b) {
  return a = a + b;
}

/// One's-complement sum to 16 bits.
constexpr std::uint16_t checksum_fold(PartialSum sum) {
  std::uint64_t s = (sum.value & 0xffffffffU) + (sum.value >> 32);
  s = (s & 0xffffU) + (s >> 16 & 0xffffU) + (s >> 32);
  s = (s & 0xffffU) + (s >> 16);
  s = (s & 0xffffU) + (s >> 16);
  return static_cast<std::uint16_t>(s);
}
/// What the checksum field holds.
constexpr std::uint16_t checksum_finish(PartialSum sum) {
  return static_cast<std::uint16_t>(~checksum_fold(sum));
}
/// The sum of a piece that begins at an odd offset of the whole.
constexpr PartialSum checksum_odd(PartialSum sum) {
  return {__builtin_bswap16(checksum_fold(sum))};
}
/// Whether bytes that contain their checksum are correct. (The sum of all zero bytes is 0, not 0xffff: also wrong.)
constexpr bool checksum_is_good(PartialSum sum) {
  return checksum_fold(sum) == 0xffff;
}

[[nodiscard]] PartialSum checksum(const void* bytes, std::size_t len);
/// Copies and sums in one pass.
PartialSum copy_checksum(void* to, const void* from, std::size_t len);

/// The sum of `len` bytes of a frame from `offset` on, over its chain and then its `external` bytes. Stops at the
/// frame's end; missing bytes count as zero.
[[nodiscard]] PartialSum checksum_frame(const Packet& head, std::size_t offset, std::size_t len);

/// The pseudo header of TCP and UDP over IPv4 (RFC 9293 §3.1). `l4_len` may be that of a large receive.
[[nodiscard]] inline PartialSum checksum_pseudo(const IpAddress& source, const IpAddress& destination,
                                                std::uint8_t protocol, std::uint32_t l4_len) {
  std::uint32_t from, to;
  std::memcpy(&from, &source.bytes[12], 4);
  std::memcpy(&to, &destination.bytes[12], 4);
  const std::uint64_t type_and_len = std::uint64_t{host_to_be32(protocol)} + host_to_be32(l4_len);
  return {std::uint64_t{from} + to + type_and_len};
}

}  // namespace bypass
