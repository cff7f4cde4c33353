// What LINK_REQ, and a LINK_ACC that agrees, contain for links that are shared memory, after the head (link_record.h).
//
//   name:128 secret:128 size:64 window:16 0:48
//
// The end that asks names the Unix socket in its run directory where it waits; the answer's name is 0. The secrets are
// the proof. The process that comes to that socket sends the asker's secret and gets the answerer's back. So each end
// has the other's secret in two ways.
// Tests: tests/fuzz/setup_records.cc, tests/fastpath/shm/setup_test.cc.
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
  Nonce name{};            // of the socket; all zero: no socket
  Nonce secret{};          // never all zero
  std::uint64_t size = 0;  // bytes of the link's memory
  std::uint16_t window = 0;
  friend bool operator==(const ShmEnd&, const ShmEnd&) = default;
};

inline constexpr std::size_t kShmEndBytes = 48;
inline constexpr std::size_t kShmBodyBytes = kLinkHeadBytes + kShmEndBytes;

/// Returns the bytes written; `room` holds kShmBodyBytes.
std::size_t encode(const LinkHead& head, const ShmEnd& end, std::span<std::byte> room);
/// Reads what follows a head without a reason. Returns kLinkValue, or kNone if it was read. `names`: whether it must
/// name a socket, or must not.
[[nodiscard]] Reason decode(std::span<const std::byte> body, bool names, ShmEnd& out);

}  // namespace bypass::fastpath
