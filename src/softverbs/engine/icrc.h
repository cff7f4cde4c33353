// The invariant CRC of RoCE v2 (InfiniBand specification, annex A17): the CRC-32 of Ethernet over what no router
// changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/packet.h"

namespace bypass::rdma {

/// The reflected CRC-32 (polynomial 0xEDB88320) of more bytes, without its final inversion. Begins with kCrcStart.
inline constexpr std::uint32_t kCrcStart = 0xffffffff;
[[nodiscard]] std::uint32_t crc32_update(std::uint32_t crc, const void* bytes, std::size_t len);
/// The same by table, on any processor.
[[nodiscard]] std::uint32_t crc32_update_table(std::uint32_t crc, const void* bytes, std::size_t len);

/// Where a RoCE frame's headers lie: offsets from the head's first byte.
struct IcrcLayout {
  std::uint16_t ip = 14;  // the IP header, of either family
  std::uint16_t udp = 34;
};

/// The state of the CRC over the masked headers, the base transport header included: what changes on the way (TOS,
/// TTL, checksums, the BTH's congestion bits) counts as ones, and so do the eight bytes of a local route header that
/// RoCE does not have. The rest of the packet follows through crc32_update.
[[nodiscard]] std::uint32_t icrc_headers(const std::byte* frame, const IcrcLayout& layout);

/// The bytes that follow the packet, in the order of memory on a little-endian machine.
[[nodiscard]] constexpr std::uint32_t icrc_finish(std::uint32_t crc) {
  return ~crc;
}

/// The ICRC that a frame's bytes up to `end` (an offset of the frame) make.
[[nodiscard]] std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end);

}  // namespace bypass::rdma
