#include "socket/stream/stream_receive.h"

#include <algorithm>
#include <array>
#include <optional>

#include "os/io_cursor.h"
#include "socket/control_message.h"
#include "socket/kernel_message.h"
#include "socket/stream/stream_calls.h"
#include "socket/stream/zerocopy.h"

namespace bypass::socket {

namespace {

/// Spans of one look into the receive queue: a burst of ordinary frames.
constexpr std::size_t kSpans = 64;

}  // namespace

// Linux's order (tcp_recvmsg): bytes, then the peer's FIN, then the error, once, then our own shutdown.
long Receiving::attempt(Guard& guard) {
  wait_for_copy(guard, kReading);
  if (dissolved()) return failure(Error::kBrokenPipe);
  if (connection_of(socket_) == nullptr) {
    if (is_moved()) return done_ != 0 ? static_cast<long>(done_) : kMoved;
    const long r = take_pending_error(socket_);
    return r != 0 ? r : failure(Error::kNotConnected);
  }
  // This repeats, because more may have come while the lock was released; no event is posted to a thread that does not
  // wait yet.
  while (const std::size_t readable = stream::readable(*socket_.tcb)) {
    if (total_ == 0) return 0;
    if ((flags_ & MSG_PEEK) != 0) {
      if (readable <= peek_offset()) return stream::peer_has_ended(*socket_.tcb) ? 0 : again();
      const long r = peek(guard, readable);
      if (r == kAgain && stream::readable(*socket_.tcb) > readable) continue;
      return r;
    }
    const std::size_t wanted = std::min(readable, total_ - done_), before = done_;
    const long r = take(guard, wanted);
    if (r < 0) return done_ != 0 ? static_cast<long>(done_) : r;
    if (done_ >= target() || done_ - before < wanted) return static_cast<long>(done_);
  }
  return ended();
}

long Receiving::ended() {
  tcp::Engine& engine = tcp_engine();
  if (socket_.pending_error != 0) return done_ != 0 ? static_cast<long>(done_) : take_pending_error(socket_);
  if (stream::at_eof(*socket_.tcb)) return static_cast<long>(done_);
  if (engine.error(*socket_.tcb) != Error::kNone)
    return done_ != 0 ? static_cast<long>(done_) : failure(engine.take_error(*socket_.tcb));
  if (socket_.has(kShutReceive)) return static_cast<long>(done_);
  if (engine.state(*socket_.tcb) != tcp::State::kClosed) return again();
  if (done_ != 0 || socket_.progress == Progress::kConnected) return static_cast<long>(done_);
  return failure(Error::kNotConnected);
}

long Receiving::peek(Guard& guard, std::size_t readable) {
  const std::size_t skip = peek_offset();
  const std::size_t bytes = std::min(readable - skip, total_);
  begin_again();
  note_arrival(guard, skip + bytes);
  // The result if the wait ends without more. MSG_TRUNC leaves the program's memory alone here, too.
  const long r = (flags_ & MSG_TRUNC) != 0 ? static_cast<long>(bytes) : take_some(guard, bytes, skip);
  if (r < 0) return r;
  done_ = static_cast<std::size_t>(r);
  // Also after our own shutdown.
  const bool more_may_come = !socket_.has(kShutReceive) && !stream::peer_has_ended(*socket_.tcb) &&
                             tcp_engine().state(*socket_.tcb) != tcp::State::kClosed;
  return !stream::has_low_water(*socket_.tcb, bytes, target()) && more_may_come ? again() : r;
}

std::size_t Receiving::peek_offset() const {
  return socket_.has(kPeeksOn) && socket_.details != nullptr ? socket_.details->peek_offset : 0;
}

// sk_peek_offset_fwd() and sk_peek_offset_bwd() of Linux.
void Receiving::move_peek_offset(std::size_t forward, std::size_t back) const {
  if (!socket_.has(kPeeksOn) || socket_.details == nullptr) [[likely]]
    return;
  std::uint32_t& offset = socket_.details->peek_offset;
  offset = static_cast<std::uint32_t>(offset + forward - std::min<std::size_t>(offset, back));
}

// A lane does not report when its bytes came, so the present time is used.
void Receiving::note_arrival(Guard& guard, std::size_t bytes) {
  if (!socket_.has(kWantTimestamp | kWantTimestampNs | kWantTimestamping)) [[likely]]
    return;
  const bool on_lane = stream::framed(*socket_.tcb) != nullptr;
  arrived_ = on_lane ? guard.context().now : tcp_engine().arrival_of(*socket_.tcb, bytes);
}

/// Returns a failure. Otherwise, fewer than `bytes` were taken, as done_ says, if the sink takes no more.
long Receiving::take(Guard& guard, std::size_t bytes) {
  while (bytes != 0) {
    const long r = (flags_ & MSG_TRUNC) != 0 ? static_cast<long>(bytes) : take_some(guard, bytes);
    if (r <= 0) return r;
    const auto n = static_cast<std::size_t>(r);
    note_arrival(guard, n);
    stream::consume(guard.context(), *socket_.tcb, n);
    move_peek_offset(0, n);
    done_ += n;
    bytes -= n;
    if (stopped_) return 0;
  }
  return 0;
}

// Takes up to `bytes` from the queue's front. Long copies release the lock. The spans stay valid until consume(), which
// only the thread that has set kReading may call.
long Receiving::take_some(Guard& guard, std::size_t bytes, std::size_t skip) {
  // The array is not zeroed first: most calls find one span.
  union Found {
    Found() {}
    std::array<std::span<const std::byte>, kSpans> spans;
  } found;
  const std::size_t count = skip == 0 ? stream::peek(*socket_.tcb, found.spans, bytes)
                                      : stream::peek_behind(*socket_.tcb, found.spans, bytes, skip);
  const Spans spans = std::span(found.spans).first(count);
  std::size_t there = 0;
  for (const auto& span : spans) there += span.size();
  there = std::min(there, bytes);
  // they lay in the memory of a link that ended with a process of the family
  if (there == 0) return failure(Error::kReset);
  std::optional<OutsideLock> outside;
  if (bytes > kCopyInLock || slow_sink()) outside.emplace(guard, socket_, kReading);
  const long r = copy_out(spans, there);
  stopped_ = r >= 0 && static_cast<std::size_t>(r) < there;
  return r;
}

long run_receiving(Socket& socket, Receiving& receiving, int flags) {
  Patience patience;
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    long r = receiving.attempt(guard);
    if (r == kAgain) {
      guard.shard().poll_locked();
      r = receiving.attempt(guard);
    } else {
      poll_if_stale(guard);
    }
    end_if_unused(guard, socket);  // its last number was closed during a long copy
    if (r != kAgain || non_blocking(socket, flags)) return wait_result(r, receiving.done());
    patience = socket_patience(guard, socket.receive_timeout_ms);
    hold(socket);
  }
  Pin pin(socket);
  const long r = wait_on(receiving, patience);  // must come before done() is read
  // In these cases tcp_recvmsg_locked() finds that nothing was wanted.
  if (receiving.wants_nothing() && (r == kTimedOutWait || r == kInterrupted)) return 0;
  return wait_result(r, receiving.done());
}

namespace {

class ReceivingMessage final : public Receiving {
 public:
  ReceivingMessage(Socket& socket, std::span<const iovec> data, int flags)
      : ReceivingMessage(socket, data, flags, total_bytes(data)) {}

 private:
  ReceivingMessage(Socket& socket, std::span<const iovec> data, int flags, std::size_t total)
      : Receiving(socket, total, (flags & MSG_WAITALL) != 0 ? total : 0, flags), data_(data), cursor_(data) {}

  long copy_out(Spans from, std::size_t bytes) override {
    std::size_t copied = 0;
    for (std::size_t i = 0; copied < bytes; i++) {
      const std::size_t n = std::min(from[i].size(), bytes - copied);
      if (!cursor_.write(from[i].data(), n)) return copied != 0 ? static_cast<long>(copied) : bad_pointer();
      copied += n;
    }
    return static_cast<long>(copied);
  }
  static long bad_pointer() { return failure(Refusal::kBadPointer); }
  void begin_again() override { cursor_ = IoCursor(data_); }

  std::span<const iovec> data_;
  IoCursor cursor_;
};

// tcp_inq_hint() of Linux: 1 also stands for the peer's end.
std::size_t left_to_read(const Socket& socket) {
  const tcp::Tcb* const tcb = connection_of(socket);
  if (tcb == nullptr) return 0;
  const std::size_t bytes = stream::readable(*tcb);
  return bytes == 0 && stream::peer_has_ended(*tcb) ? 1 : bytes;
}

}  // namespace

long receive_unconnected(Socket& socket, int fd, Message& message, int flags) {
  const long left = (flags & (MSG_OOB | MSG_ERRQUEUE)) == 0 ? take_left_error(socket) : 0;
  return left != 0 ? left : kernel_read(fd, message, flags);
}

long receive_on_wire(Socket& socket, int, Message& message, int flags) {
  message.name_length = 0;
  message.flags = 0;
  if ((flags & MSG_ERRQUEUE) != 0) return report_copies(socket, message);
  if ((flags & MSG_OOB) != 0) return failure(Error::kInvalid);  // there is no urgent data
  const std::size_t room = message.control_length;
  message.control_length = 0;
  ReceivingMessage receiving(socket, message.data, flags);
  const long r = run_receiving(socket, receiving, flags);
  const bool moves = (flags & MSG_PEEK) != 0 && socket.has(kPeeksOn);
  if (r < 0 || (!moves && !reports_stream(socket))) [[likely]]
    return r;
  Guard guard(shard());
  if (moves) receiving.move_peek_offset(static_cast<std::size_t>(r), 0);
  message.control_length = room;
  report_stream(socket, receiving.arrived(), guard.context().now, left_to_read(socket), message);
  return r;
}

}  // namespace bypass::socket
