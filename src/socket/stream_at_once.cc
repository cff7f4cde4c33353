// Short copies between a program's buffers and a connection of the stack's: established, without an error, with nothing
// in the way of another thread or another process. Everything else is stream_receive.cc's and stream_send.cc's.
#include <algorithm>
#include <array>

#include "fastpath/framed.h"
#include "socket/at_once.h"
#include "socket/io_cursor.h"
#include "socket/socket_wait.h"

namespace bypass::socket {
namespace {

/// Spans of one look into the receive queue.
constexpr std::size_t kSpans = 4;

/// Null: there is something to be dealt with first.
[[gnu::always_inline]] inline tcp::Tcb* usual_connection(Socket& socket) {
  if (!socket.alive || socket.path.load(std::memory_order_relaxed) != Path::kBypass || socket.pending_error != 0)
    return nullptr;
  tcp::Tcb* const tcb = socket.tcb;
  if (tcb == nullptr || fastpath::FramedTcp::has(*tcb)) return nullptr;
  const tcp::Engine& engine = tcp_engine();
  const bool open = engine.state(*tcb) == tcp::State::kEstablished && engine.error(*tcb) == Error::kNone;
  return open ? tcb : nullptr;
}

/// Nobody has looked at the wire for a while: a call that has work to do does so, and that is the others' part.
bool is_stale(const Context& ctx) {
  return ctx.now - shard().last_poll() > kStale;
}

std::size_t take(Context& ctx, tcp::Tcb& tcb, std::span<const iovec> data, std::size_t bytes) {
  tcp::Engine& engine = tcp_engine();
  IoCursor cursor(data);
  for (std::size_t left = bytes; left != 0;) {
    std::array<std::span<const std::byte>, kSpans> spans;
    const std::size_t count = engine.peek(tcb, spans, left);
    std::size_t copied = 0;
    for (std::size_t i = 0; i < count && copied < left; i++) {
      const std::size_t n = std::min(spans[i].size(), left - copied);
      cursor.write(spans[i].data(), n);
      copied += n;
    }
    engine.consume(ctx, tcb, copied);
    left -= copied;
  }
  return bytes;
}

}  // namespace

long stream_receive_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortHold hold(shard());
  if (!hold.held()) return kNotSo;
  tcp::Tcb* const tcb = usual_connection(socket);
  if (tcb == nullptr || socket.has(kReading) || socket.low_water > 1) return kNotSo;
  if (tcp_engine().readable(*tcb) == 0) {
    if (non_blocking(socket, flags) || !shard().may_glance()) return kNotSo;
    if (!shard().glance(hold)) return kNothingYet;
  }
  const std::size_t bytes = std::min(tcp_engine().readable(*tcb), total);
  if (bytes == 0 || bytes > kCopyInLock || usual_connection(socket) == nullptr) return kNotSo;
  Context& ctx = hold.work();
  if (is_stale(ctx)) return kNotSo;
  at_once_counts.stream++;
  return static_cast<long>(take(ctx, *tcb, data, bytes));
}

long stream_send_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortHold hold(shard());
  if (!hold.held()) return kNotSo;
  tcp::Tcb* const tcb = usual_connection(socket);
  if (tcb == nullptr || socket.has(kShutSend | kWriting) || tcp_engine().send_room(*tcb) < total) return kNotSo;
  Context& ctx = hold.work();
  if (is_stale(ctx)) return kNotSo;
  const auto room = tcp_engine().reserve(*tcb, total);
  if (!room.ok()) return kNotSo;
  const bool fits = room->size() >= total;
  if (fits) [[likely]] {
    const std::size_t first = std::min(room->part[0].size(), total);
    IoCursor cursor(data);
    cursor.read(room->part[0].data(), first);
    cursor.read(room->part[1].data(), total - first);
  }
  tcp_engine().commit(ctx, *tcb, fits ? total : 0, (flags & MSG_MORE) != 0);
  if (!fits) return kNotSo;
  at_once_counts.stream++;
  return static_cast<long>(total);
}

}  // namespace bypass::socket
