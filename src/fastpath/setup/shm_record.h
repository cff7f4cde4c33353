// What LINK_REQ, and LINK_ACC that agrees, say of links that are shared memory, behind the head (link_record.h).
//
//   name:128 secret:128 size:64 window:16 0:48
//
// The end that asks names the Unix socket in its run directory where it waits; the answer's name is 0. The secrets are
// the proof: the one that comes to that socket says the asker's, and gets the answerer's back, so that each end has it
// from the other by two ways.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/setup/link_record.h"

namespace bypass::fastpath {

using Nonce = std::array<std::byte, 16>;

/// One end of a link, as the other end must know it.
struct ShmEnd {
  Nonce name{};            // of the socket; all zero: it has none
  Nonce secret{};          // never all zero
  std::uint64_t size = 0;  // bytes of the link's memory
  std::uint16_t window = 0;
  friend bool operator==(const ShmEnd&, const ShmEnd&) = default;
};

inline constexpr std::size_t kShmEndBytes = 48;
inline constexpr std::size_t kShmBodyBytes = kLinkHeadBytes + kShmEndBytes;

/// Returns the bytes written; `room` holds kShmBodyBytes.
std::size_t encode(const LinkHead& head, const ShmEnd& end, std::span<std::byte> room);
/// Of what follows a head without a reason: kLinkValue; kNone: it is read. `names`: it must name a socket, or must not.
[[nodiscard]] Reason decode(std::span<const std::byte> body, bool names, ShmEnd& out);

}  // namespace bypass::fastpath
