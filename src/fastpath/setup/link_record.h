// The beginning of the bodies of LINK_REQ, LINK_ACC and LINK_READY, for every kind of link.
//
//   version:8 mover:8 reason:16 link:32
//
//   LINK_REQ    asks for a link; its sender has chosen the number
//   LINK_ACC    agrees, or refuses with a reason
//   LINK_READY  the link has been proven; or, with a reason, from either end: it will not be made
//
// The rest of the body belongs to the mover (rc_record.h, shm_record.h). Each value is checked before it is used.
// Tests: tests/fuzz/setup_records.cc, tests/fastpath/shm/setup_test.cc.
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

/// Covers the set-up, and the lane protocol on the link.
inline constexpr std::uint8_t kLinkRecordVersion = 2;
inline constexpr std::size_t kLinkHeadBytes = 8;
/// Below the least, control messages would starve; above the most, receives cost more memory than they gain.
inline constexpr std::uint16_t kLeastWindow = 16, kMostWindow = 4096;
/// Bytes of a link's memory at most. A lane's ring has at most 32 MiB, and lanes have 16-bit numbers.
inline constexpr std::uint64_t kMostLinkMemory = std::uint64_t{1} << 41;

/// Returns the bytes written; `room` holds kLinkHeadBytes.
std::size_t encode(const LinkHead& head, std::span<std::byte> room);
/// Returns kLinkVersion, kLinkValue, or kNone if the head was read. A reason that this version does not know reads as
/// kPolicy. The link's number is read wherever there is one, so that the peer can be told.
[[nodiscard]] Reason decode(std::span<const std::byte> body, LinkHead& out);
/// The same; a head of another mover gives kLinkVersion.
[[nodiscard]] Reason decode(std::span<const std::byte> body, Mover mover, LinkHead& out);

}  // namespace bypass::fastpath
