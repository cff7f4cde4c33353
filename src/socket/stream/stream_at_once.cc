// Short copies between a program's buffers and a connection of the stack. The connection is established, has no error,
// and no other thread or process is in the way. Its bytes come by TCP, or both ways by a lane (peer_links.h).
// Everything else is in stream_receive.cc and stream_send.cc.
// Tests: tests/socket/stream_test.cc.
#include <algorithm>
#include <array>
#include <utility>

#include "fastpath/link/peer_links.h"
#include "os/io_cursor.h"
#include "socket/at_once.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {
namespace {

using fastpath::FramedTcp;
using fastpath::ShortCalls;
using fastpath::ShortPath;

/// Spans of one look into the receive queue.
constexpr std::size_t kSpans = 12;
/// Null: something else must be handled first.
[[gnu::always_inline]] inline tcp::Tcb* short_path_connection(Socket& socket) {
  if (!socket.alive || socket.pending_error != 0) return nullptr;
  tcp::Tcb* const tcb = connection_of(socket);
  if (tcb == nullptr) return nullptr;
  const tcp::Engine& engine = tcp_engine();
  const bool open = engine.state(*tcb) == tcp::State::kEstablished && engine.error(*tcb) == Error::kNone;
  return open ? tcb : nullptr;
}

/// True if no thread has looked at the wire for a while: then a call that has work to do must look, in the usual way.
bool is_stale(const Context& ctx) {
  return ctx.now - shard().last_poll() > kStale;
}
/// The same for a call on a lane that has bytes to move and has not waited for them: such calls look at most at one
/// link.
bool is_stale() {
  constexpr Duration kStaleBesideALink = std::chrono::microseconds(100);
  return shard().clock().now() - shard().last_poll() > kStaleBesideALink;
}
/// Whether the last call on a lane has waited. If so, an answer follows, and the clock need not be read. Lock held.
constinit bool has_waited = false;

/// Copies the program's bytes into the room, for commit(). False: the room is too small, or the bytes are not mapped.
bool fill(const tcp::Room& room, std::span<const iovec> data, std::size_t total) {
  if (room.size() < total) return false;
  const std::size_t first = std::min(room.part[0].size(), total);
  IoCursor cursor(data);
  return cursor.read(room.part[0].data(), first) && cursor.read(room.part[1].data(), total - first);
}

// --- By TCP

// Returns fewer than `bytes` if the program's memory is not mapped.
std::size_t take(Context& ctx, tcp::Tcb& tcb, std::span<const iovec> data, std::size_t bytes) {
  tcp::Engine& engine = tcp_engine();
  IoCursor cursor(data);
  // The array is not zeroed first: most calls find one span.
  union Found {
    Found() {}
    std::array<std::span<const std::byte>, kSpans> spans;
  } found;
  for (std::size_t left = bytes; left != 0;) {
    const auto& spans = found.spans;
    const std::size_t count = engine.peek(tcb, found.spans, left);
    std::size_t copied = 0;
    for (std::size_t i = 0; i < count && copied < left; i++) {
      const std::size_t n = std::min(spans[i].size(), left - copied);
      if (!cursor.write(spans[i].data(), n)) return bytes - left;
      copied += n;
    }
    engine.consume(ctx, tcb, copied);
    left -= copied;
  }
  return bytes;
}

long receive_segments(ShortHold& hold, Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  tcp::Tcb& tcb = *socket.tcb;
  if (tcp_engine().readable(tcb) == 0) {
    if (non_blocking(socket, flags) || !shard().may_glance()) return kSlowPath;
    if (!shard().glance(hold)) return kWouldWait;
  }
  const std::size_t bytes = std::min(tcp_engine().readable(tcb), total);
  if (bytes == 0 || bytes > kCopyInLock || short_path_connection(socket) == nullptr) return kSlowPath;
  Context& ctx = hold.work();
  if (is_stale(ctx)) return kSlowPath;
  const std::size_t taken = take(ctx, tcb, data, bytes);
  return taken != 0 ? static_cast<long>(taken) : kSlowPath;
}

long send_segments(ShortHold& hold, tcp::Tcb& tcb, std::span<const iovec> data, std::size_t total, int flags) {
  if (tcp_engine().send_room(tcb) < total) return kSlowPath;
  Context& ctx = hold.work();
  if (is_stale(ctx)) return kSlowPath;
  const auto room = tcp_engine().reserve(tcb, total);
  if (!room.ok()) return kSlowPath;
  const bool filled = fill(*room, data, total);
  tcp_engine().commit(ctx, tcb, filled ? total : 0, (flags & MSG_MORE) != 0);
  return filled ? static_cast<long>(total) : kSlowPath;
}

// --- By a lane

long receive_messages(ShortHold& hold, Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortCalls& links = shard().links()->short_calls();
  const ShortPath lane = links.path_of(*socket.tcb);
  if (!lane) return kSlowPath;
  auto there = ShortCalls::readable(lane, total);
  if (there.has_value() && there->empty()) {
    if (non_blocking(socket, flags)) return kSlowPath;
    has_waited = true;
    const ShortCalls::Glance found = links.glance(lane);
    if (found == ShortCalls::Glance::kNothing) return kWouldWait;
    if (found == ShortCalls::Glance::kOther) return links.finish_glance(hold.work(), lane), kSlowPath;
    there = ShortCalls::readable(lane, total);
    if (!there.has_value() || there->empty()) return links.take_turn(hold.work(), lane), kSlowPath;
  } else if (!there.has_value() || is_stale()) {
    return kSlowPath;
  }
  std::size_t bytes = there->size() <= kCopyInLock ? there->size() : 0;
  if (!IoCursor(data).write(there->data(), bytes)) bytes = 0;
  if (!ShortCalls::consume(lane, bytes)) links.take_turn(hold.work(), lane);
  return bytes != 0 ? static_cast<long>(bytes) : kSlowPath;
}

long send_message(tcp::Tcb& tcb, std::span<const iovec> data, std::size_t total, int flags) {
  ShortCalls& links = shard().links()->short_calls();
  const ShortPath lane = links.path_of(tcb);
  if ((flags & MSG_MORE) != 0) return kSlowPath;
  if (!lane || !links.may_write(lane, total)) return kSlowPath;
  if (!std::exchange(has_waited, false) && is_stale()) return kSlowPath;
  const auto room = tcp_engine().reserve(tcb, total);
  if (!room.ok()) return kSlowPath;
  const bool filled = fill(*room, data, total);
  tcp_engine().commit(shard().context(), tcb, filled ? total : 0, false);
  if (!filled) return kSlowPath;
  links.write(lane, total);
  return static_cast<long>(total);
}

}  // namespace

long stream_receive_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortHold hold(shard());
  if (!hold.held()) return kSlowPath;
  tcp::Tcb* const tcb = short_path_connection(socket);
  if (tcb == nullptr || socket.has(kReading | kNotAtOnce) || socket.low_water > 1) return kSlowPath;
  const long r = FramedTcp::has(*tcb) ? receive_messages(hold, socket, data, total, flags)
                                      : receive_segments(hold, socket, data, total, flags);
  if (r > 0) at_once_counts.stream++;
  return r;
}

long stream_send_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortHold hold(shard());
  if (!hold.held()) return kSlowPath;
  tcp::Tcb* const tcb = short_path_connection(socket);
  if (tcb == nullptr || socket.has(kShutSend | kWriting)) return kSlowPath;
  const long r =
      FramedTcp::has(*tcb) ? send_message(*tcb, data, total, flags) : send_segments(hold, *tcb, data, total, flags);
  if (r > 0) at_once_counts.stream++;
  return r;
}

}  // namespace bypass::socket
