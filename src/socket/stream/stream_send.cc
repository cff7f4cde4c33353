#include "socket/stream/stream_send.h"

#include <algorithm>
#include <optional>

#include "socket/control_message.h"
#include "socket/kernel_message.h"
#include "socket/stream/stream_calls.h"
#include "socket/stream/zerocopy.h"

namespace bypass::socket {

using tcp::State;

long Sending::attempt(Guard& guard) {
  wait_for_copy(guard, kWriting);
  if (const long r = refusal(); r != 0) return r;
  do {
    if (done_ == total_) return static_cast<long>(done_);
    const auto room = stream::reserve(guard.context(), *socket_.tcb, stream::piece_of(*socket_.tcb, total_ - done_));
    if (!room.ok()) return room.error() == Error::kWouldBlock ? full(guard.context()) : broken(room.error());
    const long n = fill(guard, *room);
    if (n < 0) return done_ != 0 ? static_cast<long>(done_) : n;
    done_ += static_cast<std::size_t>(n);
    if (n == 0) return static_cast<long>(done_);  // the source has ended
  } while (true);
}

// Linux's order (tcp_sendmsg): first the pending error, once; then EPIPE; then the wait for a handshake.
long Sending::refusal() {
  if (socket_.pending_error != 0) return done_ != 0 ? static_cast<long>(done_) : take_pending_error(socket_);
  if (connection_of(socket_) == nullptr || dissolved()) return done_ == 0 && is_moved() ? kMoved : pipe();
  const Error error = tcp_engine().error(*socket_.tcb);
  if (error != Error::kNone) return broken(error);
  if (socket_.has(kShutSend)) return pipe();
  switch (tcp_engine().state(*socket_.tcb)) {
    case State::kEstablished:
    case State::kCloseWait:
      return 0;
    case State::kSynSent:
    case State::kSynReceived:
      return again();
    default:
      return pipe();
  }
}

long Sending::full(Context& ctx) {
  tcp_engine().want_room(ctx, *socket_.tcb);
  return again();
}

long Sending::broken(Error error) {
  if (done_ != 0) return static_cast<long>(done_);
  tcp_engine().take_error(*socket_.tcb);
  if (error == Error::kBrokenPipe || error == Error::kNotConnected) return pipe();
  return failure(error);
}

long Sending::pipe() {
  if (done_ != 0) return static_cast<long>(done_);
  pipe_ = true;
  return failure(Error::kBrokenPipe);
}

namespace {

/// The engine gives out room only once. A thread that is cancelled while it fills the room must give it back.
class Filling {
 public:
  Filling(Guard& guard, tcp::Tcb& tcb, bool more) : guard_(guard), tcb_(tcb), more_(more) {}
  ~Filling() { stream::commit(guard_.context(), tcb_, filled, more_); }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

  std::size_t filled = 0;

 private:
  Guard& guard_;
  tcp::Tcb& tcb_;
  bool more_;
};

}  // namespace

long Sending::fill(Guard& guard, const tcp::Room& room) {
  const std::size_t bytes = std::min(room.size(), total_ - done_);
  Filling filling(guard, *socket_.tcb, more_);
  std::optional<OutsideLock> outside;
  if (bytes > kCopyInLock || slow_source()) outside.emplace(guard, socket_, kWriting);
  const long n = copy_in(room, bytes);
  if (n > 0) filling.filled = static_cast<std::size_t>(n);
  return n;
}

void give_room_back(Context& ctx, Socket& socket) {
  if (connection_of(socket) != nullptr && socket.tcb->ring.reserved()) stream::commit(ctx, *socket.tcb, 0, false);
}

long run_sending(Socket& socket, Sending& sending, int flags) {
  Patience patience;
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    long r = sending.attempt(guard);
    if (r == kAgain) {
      guard.shard().poll_locked();
      r = sending.attempt(guard);
    } else {
      poll_if_stale(guard);
    }
    end_if_unused(guard, socket);
    if (r != kAgain || non_blocking(socket, flags)) return wait_result(r, sending.done());
    patience = socket_patience(guard, socket.send_timeout_ms);
    hold(socket);
  }
  Pin pin(socket);
  const long r = wait_on(sending, patience);  // must come before done() is read
  return wait_result(r, sending.done());
}

namespace {

class SendingMessage final : public Sending {
 public:
  SendingMessage(Socket& socket, std::span<const iovec> data, bool more)
      : Sending(socket, total_bytes(data), more), cursor_(data) {}

 private:
  long copy_in(const tcp::Room& room, std::size_t bytes) override {
    const std::size_t first = std::min(room.part[0].size(), bytes);
    const bool copied = cursor_.read(room.part[0].data(), first) && cursor_.read(room.part[1].data(), bytes - first);
    return copied ? static_cast<long>(bytes) : failure(Refusal::kBadPointer);
  }

  IoCursor cursor_;
};

}  // namespace

long stream_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe) {
  const bool opens = (flags & MSG_FASTOPEN) != 0 && message.name != nullptr && socket.path != Path::kKernel;
  if (opens) {
    const std::optional<long> r = stream_fast_open(socket, fd, message, flags);
    if (r.has_value()) return *r;
  }
  return calls_of(socket).send(socket, fd, message, flags, sigpipe);
}

long send_unconnected(Socket& socket, int fd, const Message& message, int flags, bool&) {
  const long left = take_left_error(socket);
  return left != 0 ? left : kernel_write(fd, message, flags);
}

long send_on_wire(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe) {
  if ((flags & MSG_OOB) != 0) return failure(Error::kNotSupported);
  if (message.control_length != 0) [[unlikely]]
    if (const long refusal = stream_control_refusal(message); refusal != 0) return refusal;
  const bool tells = tells_of_copy(socket, flags);
  if (tells) [[unlikely]]
    if (const long r = prepare_copy(socket, fd); r != 0) return r;
  SendingMessage sending(socket, message.data, (flags & MSG_MORE) != 0);
  const long r = run_sending(socket, sending, flags);
  if (tells && r > 0) [[unlikely]]
    note_copy(socket);
  sigpipe = sending.is_pipe() && r < 0 && (flags & MSG_NOSIGNAL) == 0;
  return r;
}

}  // namespace bypass::socket
