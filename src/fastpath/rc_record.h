// The bodies of LINK_REQ, LINK_ACC and LINK_READY for links that are RC queue pairs.
//
//   version:8 mover:8 reason:16 link:32                                       all of them
//   gid:128 qpn:32 psn:32 key:32 mtu:8 0:8 window:16 address:64 size:64 nonce:64   LINK_REQ, and LINK_ACC that agrees
//
//   LINK_REQ    asks for a link; its sender has chosen the number
//   LINK_ACC    agrees, or refuses with a reason
//   LINK_READY  the link has been proven; or, with a reason, from either end: it will not be made
//
// Keys and addresses travel nowhere else. Each value is checked before anything is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/reason.h"
#include "stack/address.h"

namespace bypass::fastpath {

/// What all three begin with.
struct LinkHead {
  std::uint32_t link = 0;
  Reason reason = Reason::kNone;
  friend bool operator==(const LinkHead&, const LinkHead&) = default;
};

/// One end of a queue pair, as the other end must know it.
struct RcEnd {
  IpAddress gid;              // RoCE v2: the address of its device
  std::uint64_t address = 0;  // of the link's memory, as the key has it
  std::uint64_t size = 0;     // bytes of it
  std::uint64_t nonce = 0;    // what the first write into that memory shall say
  std::uint32_t qpn = 0, psn = 0;
  std::uint32_t key = 0;
  std::uint16_t window = 0;  // messages that it takes before it returns credits
  std::uint8_t mtu = 0;      // ibv_mtu: 1 … 5, 256 to 4096 bytes
  friend bool operator==(const RcEnd&, const RcEnd&) = default;
};

inline constexpr std::uint8_t kRcVersion = 1;
inline constexpr std::size_t kLinkHeadBytes = 8, kRcEndBytes = 56;
inline constexpr std::size_t kRcBodyBytes = kLinkHeadBytes + kRcEndBytes;
/// Below, control would starve; above, receives cost more memory than they are good for.
inline constexpr std::uint16_t kLeastWindow = 16, kMostWindow = 4096;
/// Of a link's memory. A lane's ring has 32 MiB at most, and lanes have 16-bit numbers.
inline constexpr std::uint64_t kMostLinkMemory = std::uint64_t{1} << 41;

/// Both return the bytes written; `room` holds kRcBodyBytes.
std::size_t encode(const LinkHead& head, std::span<std::byte> room);
std::size_t encode(const LinkHead& head, const RcEnd& end, std::span<std::byte> room);

/// kLinkVersion, kLinkValue; kNone: it is read. A reason that this version does not know reads as kPolicy.
[[nodiscard]] Reason decode(std::span<const std::byte> body, LinkHead& out);
/// The same, of what follows a head without a reason. `peer`: the only address that the other end may have.
[[nodiscard]] Reason decode(std::span<const std::byte> body, const IpAddress& peer, RcEnd& out);

}  // namespace bypass::fastpath
