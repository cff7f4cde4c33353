// Transfers that find a connection as it usually is, and take a copy and no more: what their files have in common.
//
// A call looks whether there is anything in its way, in one short hold of the lock; if so it is made anew as if nobody
// had looked (receive(), send()). So nothing here waits, and nothing unusual is dealt with.
// Tests: tests/socket/stream_test.cc, tests/system/local.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "socket/socket.h"

namespace bypass::socket {

/// Of this process's calls, those that were done so; written with the shard's lock, read without.
struct AtOnceCounts {
  std::uint64_t local = 0, stream = 0;
};
extern AtOnceCounts at_once_counts;

/// What one look comes to where it is not a count of bytes.
inline constexpr long kWouldWait = -1;  // there are none, and the call may wait for them
inline constexpr long kSlowPath = -2;   // not in this way

/// A connection within the host (local_at_once.cc).
long local_receive_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags);
long local_send_look(Socket& socket, std::span<const iovec> data, std::size_t total);
/// One of the stack's (stream_at_once.cc).
long stream_receive_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags);
long stream_send_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags);

}  // namespace bypass::socket
