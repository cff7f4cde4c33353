// The invariant CRC of RoCE v2 (InfiniBand specification, annex A17): the CRC-32 of Ethernet over what no router
// changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/frame/packet.h"

namespace bypass::rdma {

/// Where a RoCE frame's headers lie: offsets from the head's first byte.
struct IcrcLayout {
  std::uint16_t ip = 14;  // the IP header, of either family
  std::uint16_t udp = 34;
};

/// The CRC's state behind a packet's first `len` bytes from its IP header on, which hold all headers, the base
/// transport header included, and kIcrcFirst bytes at most. What changes on the way (TOS, TTL, checksums, the BTH's
/// congestion bits) counts as ones, and so do the eight bytes of a local route header that RoCE does not have.
inline constexpr std::size_t kIcrcFirst = 168;
[[nodiscard]] std::uint32_t icrc_first(const std::byte* ip, std::size_t ip_len, std::size_t len);

/// The bytes that follow the packet, in the order of memory on a little-endian machine.
[[nodiscard]] constexpr std::uint32_t icrc_finish(std::uint32_t crc) {
  return ~crc;
}

/// The ICRC that a frame's bytes up to `end` (an offset of the frame) make.
[[nodiscard]] std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end);

}  // namespace bypass::rdma
