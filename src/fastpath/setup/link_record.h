// What the bodies of LINK_REQ, LINK_ACC and LINK_READY begin with, whatever kind of link they are about.
//
//   version:8 mover:8 reason:16 link:32
//
//   LINK_REQ    asks for a link; its sender has chosen the number
//   LINK_ACC    agrees, or refuses with a reason
//   LINK_READY  the link has been proven; or, with a reason, from either end: it will not be made
//
// What follows is the mover's (rc_record.h, shm_record.h). Each value is checked before anything is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/reason.h"

namespace bypass::fastpath {

/// A kind of link. Part of the format.
enum class Mover : std::uint8_t { kRc = 1, kShm = 2 };
inline constexpr std::size_t kMovers = 2;

struct LinkHead {
  std::uint32_t link = 0;
  Reason reason = Reason::kNone;
  Mover mover = Mover::kRc;
  friend bool operator==(const LinkHead&, const LinkHead&) = default;
};

/// Of the set-up, and of the lane protocol on the link.
inline constexpr std::uint8_t kLinkRecordVersion = 2;
inline constexpr std::size_t kLinkHeadBytes = 8;
/// Below, control would starve; above, receives cost more memory than they are good for.
inline constexpr std::uint16_t kLeastWindow = 16, kMostWindow = 4096;
/// Of a link's memory. A lane's ring has 32 MiB at most, and lanes have 16-bit numbers.
inline constexpr std::uint64_t kMostLinkMemory = std::uint64_t{1} << 41;

/// Returns the bytes written; `room` holds kLinkHeadBytes.
std::size_t encode(const LinkHead& head, std::span<std::byte> room);
/// kLinkVersion, kLinkValue; kNone: it is read. A reason that this version does not know reads as kPolicy. The link's
/// number is read wherever there is one, so that the peer can be told.
[[nodiscard]] Reason decode(std::span<const std::byte> body, LinkHead& out);
/// The same; a head of another mover is kLinkVersion.
[[nodiscard]] Reason decode(std::span<const std::byte> body, Mover mover, LinkHead& out);

}  // namespace bypass::fastpath
