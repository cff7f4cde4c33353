// The invariant CRC of RoCE v2 (InfiniBand specification, annex A17): the CRC-32 of Ethernet over what no router
// changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/packet.h"

namespace bypass::rdma {

/// Where a RoCE frame's headers lie: offsets from the head's first byte.
struct IcrcLayout {
  std::uint16_t ip = 14;  // the IP header, of either family
  std::uint16_t udp = 34;
};

/// Bytes of a local route header, which RoCE does not have: they count as ones, in front of the IP header.
inline constexpr std::size_t kMissingHeader = 8;

/// Changes a packet's headers, the base transport header included, into what the ICRC counts: ones for what changes on
/// the way (TOS, TTL, checksums, the BTH's congestion bits), and for the kMissingHeader bytes in front of `ip`. The sum
/// begins with those.
void icrc_mask(std::byte* ip, std::size_t ip_len);

/// The bytes that follow the packet, in the order of memory on a little-endian machine.
[[nodiscard]] constexpr std::uint32_t icrc_finish(std::uint32_t crc) {
  return ~crc;
}

/// The ICRC that a frame's bytes up to `end` (an offset of the frame) make.
[[nodiscard]] std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end);

}  // namespace bypass::rdma
