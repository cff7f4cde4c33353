#include <algorithm>
#include <array>
#include <optional>

#include "socket/io_cursor.h"
#include "socket/kernel_message.h"
#include "socket/socket_wait.h"
#include "socket/stream_calls.h"

namespace bypass::socket {

namespace {

/// Spans of one look into the receive queue: a burst of ordinary frames.
constexpr std::size_t kSpans = 64;

class Receiving final : public SocketCondition {
 public:
  Receiving(Socket& socket, std::span<const iovec> data, int flags)
      : SocketCondition(socket, kIn), data_(data), cursor_(data), flags_(flags), total_(total_bytes(data)) {}

  long attempt(Guard& guard) override;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_moved() const final { return done_ != 0; }

 private:
  [[nodiscard]] std::size_t target() const {
    const std::size_t least = (flags_ & MSG_WAITALL) != 0 ? total_ : socket_.low_water;
    return std::clamp<std::size_t>(least, 1, std::max<std::size_t>(total_, 1));
  }
  long ended();
  long peek(Guard& guard, std::size_t readable);
  void take(Guard& guard, std::size_t bytes);
  std::size_t copy_out(Guard& guard, std::size_t bytes);

  std::span<const iovec> data_;
  IoCursor cursor_;
  int flags_;
  std::size_t total_, done_ = 0;
};

// Linux's order (tcp_recvmsg): bytes, then the peer's FIN, then the error, once, then our own shutdown.
long Receiving::attempt(Guard& guard) {
  wait_for_copy(guard, kReading);
  if (socket_.tcb == nullptr) return failure(Error::kNotConnected);
  const std::size_t readable = stream::readable(*socket_.tcb);
  if (readable != 0) {
    if (total_ == 0) return 0;
    if ((flags_ & MSG_PEEK) != 0) return peek(guard, readable);
    take(guard, std::min(readable, total_ - done_));
    if (done_ >= target()) return static_cast<long>(done_);
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
  const std::size_t bytes = std::min(readable, total_);
  cursor_ = IoCursor(data_);
  done_ = copy_out(guard, bytes);  // what there is, should the wait end without more
  const bool more_may_come =
      tcp_engine().state(*socket_.tcb) == tcp::State::kEstablished && !stream::peer_has_ended(*socket_.tcb);
  return bytes < target() && more_may_come ? again() : static_cast<long>(done_);
}

void Receiving::take(Guard& guard, std::size_t bytes) {
  while (bytes != 0) {
    const std::size_t n = (flags_ & MSG_TRUNC) != 0 ? bytes : copy_out(guard, bytes);
    stream::consume(guard.context(), *socket_.tcb, n);
    done_ += n;
    bytes -= n;
  }
}

// Copies up to `bytes` from the queue's front; a long copy lets go of the lock. The spans stay valid until
// consume(), which only the thread that has set kReading may call.
std::size_t Receiving::copy_out(Guard& guard, std::size_t bytes) {
  std::array<std::span<const std::byte>, kSpans> spans;
  const std::size_t count = stream::peek(*socket_.tcb, spans, bytes);
  std::optional<OutsideLock> outside;
  if (bytes > kCopyInLock) outside.emplace(guard, socket_, kReading);
  std::size_t copied = 0;
  for (std::size_t i = 0; i < count && copied < bytes; i++) {
    const std::size_t n = std::min(spans[i].size(), bytes - copied);
    cursor_.write(spans[i].data(), n);
    copied += n;
  }
  return copied;
}

}  // namespace

long stream_receive(Socket& socket, int fd, Message& message, int flags) {
  if (socket.path == Path::kUndecided || socket.path == Path::kKernel) return kernel_receive(fd, message, flags);
  if (socket.path == Path::kLocal) return local_receive(socket, fd, message, flags);
  message.name_length = 0;
  message.control_length = 0;
  message.flags = 0;
  if ((flags & MSG_ERRQUEUE) != 0) return kAgain;
  if ((flags & MSG_OOB) != 0) return failure(Error::kInvalid);  // there is no urgent data
  Receiving receiving(socket, message.data, flags);
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
    end_if_unused(guard, socket);  // its last number went while a long copy was made
    if (r != kAgain || non_blocking(socket, flags)) return wait_result(r, receiving.done());
    patience = socket_patience(guard, socket.receive_timeout_ms);
    hold(socket);
  }
  Pin pin(socket);
  const long r = wait_on(receiving, patience);  // before done() is asked
  return wait_result(r, receiving.done());
}

}  // namespace bypass::socket
