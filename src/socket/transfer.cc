// The calls that transfer: each becomes one receive or send of the object's kind, recvmmsg(2) and sendmmsg(2) included.
#include <algorithm>
#include <cerrno>

#include "os/errno_map.h"
#include "os/io_cursor.h"
#include "os/program_memory.h"
#include "socket/datagram/datagram.h"
#include "socket/socket.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

// True in a signal handler that interrupted this thread's own hold of the lock: it may wait for nothing here.
bool busy_here() {
  return thread_signals.in_lock != 0;
}

/// The name is written last. If that fails, the received bytes are lost, as in the kernel.
long receive_named(File& file, int fd, msghdr& header, int flags) {
  sockaddr_storage name;
  Message message = message_of(header);
  const std::size_t room = message.name_length;
  message.name = reinterpret_cast<sockaddr*>(&name);
  message.name_length = sizeof name;
  const long r = receive(file, fd, message, flags);
  if (r < 0) return r;
  const bool told = copy_program_bytes(header.msg_name, &name, std::min<std::size_t>(room, message.name_length));
  return told && report(message, header, flags) ? r : failure(Refusal::kBadPointer);
}

}  // namespace

long receive(File& file, int fd, Message& message, int flags) {
  if (busy_here()) return kAgain;
  switch (kind(file)) {
    case FileKind::kStream:
      return calls_of(file).receive(socket_of(file), fd, message, flags);
    case FileKind::kDatagram:
      return datagram_receive(socket_of(file), fd, message, flags);
    case FileKind::kListener:
      return failure(Error::kNotConnected);
    case FileKind::kEpoll:
      break;
  }
  return failure(Error::kInvalid);
}

long receive_header(File& file, int fd, msghdr& header, int flags) {
  if (header.msg_name != nullptr) return receive_named(file, fd, header, flags);
  Message message = message_of(header);
  const long r = receive(file, fd, message, flags);
  return r < 0 || report(message, header, flags) ? r : failure(Refusal::kBadPointer);
}

long send(File& file, int fd, const Message& message, int flags, bool& sigpipe) {
  sigpipe = false;
  if (busy_here()) return kAgain;
  switch (kind(file)) {
    case FileKind::kStream:
      return stream_send(socket_of(file), fd, message, flags, sigpipe);
    case FileKind::kDatagram:
      return datagram_send(socket_of(file), fd, message, flags, sigpipe);
    case FileKind::kListener:
      sigpipe = (flags & MSG_NOSIGNAL) == 0;
      return failure(Error::kBrokenPipe);
    case FileKind::kEpoll:
      break;
  }
  return failure(Error::kInvalid);
}

namespace {

// recvmmsg() returns the socket's error first, whatever is queued before it.
long earlier_error(File& file, int flags) {
  if (busy_here() || (flags & MSG_ERRQUEUE) != 0) return 0;
  Socket& socket = socket_of(file);
  Guard guard(shard());
  if (!socket.alive) return 0;
  if (socket.kind == FileKind::kDatagram) return pending_error_of(socket);
  if (connection_of(socket) == nullptr) return 0;
  if (const long r = take_pending_error(socket); r != 0) return r;
  const Error error = tcp_engine().take_error(*socket.tcb);
  return error == Error::kNone ? 0 : failure(error);
}

// The error that ended a batch is returned by the next call, as sk_err. "Nothing there" and a handler are no errors of
// the socket.
void keep_error(File& file, long failed) {
  if (failed == kAgain || failed == kInterrupted || failed == kMoved || file.kind == FileKind::kEpoll) return;
  Guard guard(shard());
  if (!file.alive) return;
  socket_of(file).pending_error = static_cast<std::uint8_t>(-failed);
  signal(file, kError);
}

}  // namespace

namespace {

/// The time limit of recvmmsg(), and the remaining time that the program gets back.
class BatchTime {
 public:
  explicit BatchTime(timespec* timeout) : timeout_(timeout) {
    if (timeout != nullptr && is_valid())
      end_ = deadline_after(std::chrono::seconds(timeout->tv_sec) + Duration(timeout->tv_nsec));
  }
  [[nodiscard]] bool is_valid() const {
    return timeout_ == nullptr ||
           (timeout_->tv_sec >= 0 && timeout_->tv_nsec >= 0 && timeout_->tv_nsec < 1'000'000'000);
  }
  /// To be called after a message. True: the time is over.
  bool is_over() {
    if (timeout_ == nullptr || end_ == kNever) return false;
    const Duration left = std::max(end_ - shard().clock().now(), Duration{});
    timeout_->tv_sec = left / std::chrono::seconds(1);
    timeout_->tv_nsec = (left % std::chrono::seconds(1)).count();
    return left == Duration{};
  }

 private:
  timespec* timeout_;
  Instant end_ = kNever;
};

/// The most messages of one call (UIO_MAXIOV, sendmmsg(2)). recvmmsg() has no such limit.
constexpr unsigned kMostMessages = 1024;

}  // namespace

// As do_recvmmsg: the timeout is checked only between messages. Received messages count more than an error that came
// after them.
long receive_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  BatchTime time(timeout);
  if (!time.is_valid()) return failure(Error::kInvalid);
  if (const long r = earlier_error(file, flags); r != 0) return r;
  const bool wait_for_one = (flags & MSG_WAITFORONE) != 0;
  flags &= ~MSG_WAITFORONE;
  unsigned done = 0;
  while (done < count) {
    long r = check_header(&messages[done].msg_hdr);
    if (r == 0) r = receive_header(file, fd, messages[done].msg_hdr, flags);
    if (r >= 0 && !copy_to_program(&messages[done].msg_len, static_cast<unsigned>(r)))
      r = failure(Refusal::kBadPointer);
    if (r < 0) {
      if (done == 0) return r;
      keep_error(file, r);
      break;
    }
    done++;
    if (wait_for_one) flags |= MSG_DONTWAIT;
    if (time.is_over()) break;
  }
  return done;
}

long send_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, bool& sigpipe) {
  sigpipe = false;
  count = std::min(count, kMostMessages);
  unsigned done = 0;
  while (done < count) {
    mmsghdr& each = messages[done];
    long r = check_header_to_send(&each.msg_hdr);
    if (r == 0) r = send(file, fd, message_of(each.msg_hdr), flags, sigpipe);
    if (r >= 0 && !copy_to_program(&each.msg_len, static_cast<unsigned>(r))) r = failure(Refusal::kBadPointer);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    done++;
    if (static_cast<std::size_t>(r) < total_bytes({each.msg_hdr.msg_iov, each.msg_hdr.msg_iovlen}))
      break;  // otherwise the next message's bytes would follow a gap
  }
  return done;
}

}  // namespace bypass::socket
