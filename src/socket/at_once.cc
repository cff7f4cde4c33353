#include "socket/at_once.h"

#include <optional>

#include "os/io_cursor.h"
#include "socket/shared/local_path.h"
#include "socket/wait/socket_wait.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

AtOnceCounts at_once_counts;

namespace {

constexpr int kTakenFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC | MSG_MORE;
/// Looks of a blocking receive. Together they take some microseconds: a quick answer comes before the last one. Between
/// looks other threads can take the lock.
constexpr int kLooks = 24;

/// One in so many calls takes the slow path, which looks at all wires and links. Reading the clock instead, to decide,
/// would cost as much as this saves.
constexpr std::uint32_t kLongWay = 32;

/// Null: it is no such connection, or this call must take the slow path.
Socket* stream_of(File& file, int flags) {
  static thread_local constinit std::uint32_t calls = 0;
  if (file.kind != FileKind::kStream || (flags & ~kTakenFlags) != 0 || thread_signals.in_lock != 0) return nullptr;
  Socket& socket = socket_of(file);
  switch (socket.path.load(std::memory_order_relaxed)) {
    case Path::kLocal:
      return &socket;
    case Path::kBypass:
      return ++calls % kLongWay != 0 ? &socket : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

std::optional<long> receive_at_once(File& file, std::span<const iovec> data, int flags) {
  Socket* const socket = stream_of(file, flags);
  if (socket == nullptr) return std::nullopt;
  const std::size_t total = total_bytes(data);
  if (total == 0) return std::nullopt;
  const auto look = is_local(file) ? local_receive_look : stream_receive_look;
  const unsigned handlers = thread_signals.seen;
  long r = look(*socket, data, total, flags);
  for (int i = 1; r == kWouldWait && i < kLooks && spinning_pays(); i++) {
    __builtin_ia32_pause();  // gives other threads a chance to take the lock
    r = look(*socket, data, total, flags);
  }
  if (r == kWouldWait && thread_signals.seen != handlers) return kInterrupted;
  return r > 0 ? std::optional(r) : std::nullopt;
}

std::optional<long> send_at_once(File& file, std::span<const iovec> data, int flags) {
  Socket* const socket = stream_of(file, flags);
  if (socket == nullptr) return std::nullopt;
  const std::size_t total = total_bytes(data);
  if (total == 0 || total > kCopyInLock) return std::nullopt;
  if (is_local(file) && (flags & MSG_MORE) != 0) return std::nullopt;
  const long r = is_local(file) ? local_send_look(*socket, data, total) : stream_send_look(*socket, data, total, flags);
  return r > 0 ? std::optional(r) : std::nullopt;
}

}  // namespace bypass::socket
