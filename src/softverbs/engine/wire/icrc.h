// The invariant CRC of RoCE v2 (InfiniBand specification, annex A17): the CRC-32 of Ethernet over what no router
// changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/frame/packet.h"

namespace bypass::rdma {

/// Where a RoCE frame's headers lie, as offsets from the head's first byte.
struct IcrcLayout {
  std::uint16_t ip = 14;  // the IP header, of either family
  std::uint16_t udp = 34;
};

/// The CRC's state after a packet's first `len` bytes from its IP header on. They must contain all headers including
/// the base transport header, and be at most kIcrcFirst bytes. Fields that change on the way (TOS, TTL, checksums, the
/// BTH's congestion bits) count as ones. So do the eight bytes of a local route header, which RoCE does not have.
inline constexpr std::size_t kIcrcFirst = 168;
[[nodiscard]] std::uint32_t icrc_first(const std::byte* ip, std::size_t ip_len, std::size_t len);

/// The four bytes that follow the packet, in memory order on a little-endian machine.
[[nodiscard]] constexpr std::uint32_t icrc_finish(std::uint32_t crc) {
  return ~crc;
}

/// The ICRC of a frame's bytes up to `end` (an offset in the frame).
[[nodiscard]] std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end);

}  // namespace bypass::rdma
