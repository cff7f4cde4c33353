// connect(2) of a TCP socket: the choice of the path, the wait, and the bytes of sendto(2) with MSG_FASTOPEN.
#include <netinet/in.h>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/family/steering.h"
#include "socket/kernel_message.h"
#include "socket/objects.h"
#include "socket/options/options.h"
#include "socket/policy.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

using tcp::State;

// After a failed attempt the socket is unconnected and may try again (sock_error in inet_stream_connect).
long give_up(Guard& guard, Socket& socket) {
  if (socket.has(kReading | kWriting)) return failure(Error::kAlready);  // another thread still copies
  const Error error = tcp_engine().take_error(*socket.tcb);
  stream::close(guard.context(), *socket.tcb);
  socket.tcb = nullptr;
  socket.progress = Progress::kNone;
  socket.path = Path::kUndecided;
  return failure(error == Error::kNone ? Error::kAborted : error);
}

class Connecting final : public SocketCondition {
 public:
  explicit Connecting(Socket& socket) : SocketCondition(socket, kOut) {}

  long attempt(Guard& guard) override {
    if (dissolved()) return failure(Error::kBrokenPipe);
    if (connection_of(socket_) == nullptr) {  // shutdown()
      const long r = take_pending_error(socket_);
      return r != 0 ? r : failure(Error::kAborted);
    }
    switch (tcp_engine().state(*socket_.tcb)) {
      case State::kSynSent:
      case State::kSynReceived:
        return again();
      case State::kClosed:
        return give_up(guard, socket_);
      default:
        socket_.progress = Progress::kConnected;
        return 0;
    }
  }
};

// Waits for a connection attempt that is under way. `pending` is the answer while that continues.
long await(Socket& socket, Error pending) {
  Connecting connecting(socket);
  Patience patience;
  {
    Guard guard(shard());
    const long r = connecting.attempt(guard);
    if (r != kAgain) return r;
    if (non_blocking(socket, 0)) return failure(pending);
    patience = socket_patience(guard, socket.send_timeout_ms);
    hold(socket);
  }
  Pin pin(socket);
  const long r = wait_on(connecting, patience);
  return r == kTimedOutWait ? failure(pending) : r;
}

// Lets the kernel connect, by `call`, and gives it the socket.
template <typename Call>
long connect_in_kernel(Socket& socket, Call call) {
  note_kernel_activity();
  // Epoll sets see what they would have seen with the kernel: the unconnected socket's readiness was reported already.
  // During a blocking connect the sets wait as well.
  const bool block = !non_blocking(socket, 0);
  if (block) {
    Guard guard(shard());
    give_to_kernel(guard, socket);
  }
  const long r = call();
  if (!block) {
    Guard guard(shard());
    give_to_kernel(guard, socket);
  }
  return r;
}

// As connect_in_kernel(), for a socket that local_before_connect() has taken. `again`: it was taken earlier, so this
// need not be a new attempt.
long connect_local(Socket& socket, int fd, const sockaddr* address, socklen_t length, bool again) {
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    if (!again) socket.pending_error = 0;
    hold(socket);
  }
  const Pin pin(socket);
  const long r = kernel_result(kernel->connect(fd, address, length));
  const bool old = r == failure(Error::kAlready) || r == failure(Error::kIsConnected) ||
                   (r == 0 && non_blocking(socket, 0));  // the attempt is complete
  if (again && old) return r;
  Guard guard(shard());
  local_after_connect(socket, fd);
  return r;
}

Decision decide(Socket& socket, int fd, const sockaddr* address) {
  if (socket.has(kForceKernel)) {
    report_kernel_option(socket, fd);
    return Decision::kKernel;
  }
  SocketName local;
  const bool bound = socket.has(kBound);
  if (bound) write_name(socket.details->bound, socket.domain, local);
  return policy.decide_connect(fd, SOCK_STREAM, bound ? &local.base : nullptr, address);
}

long begin(Socket& socket, int fd, const Endpoint& remote) {
  policy.open_wire();
  Guard guard(shard());
  if (socket.path != Path::kUndecided) return failure(Error::kAlready);  // another thread was faster
  const auto local =
      reserve_endpoint(guard, socket, fd, socket.has(kBound) ? socket.details->bound : Endpoint{}, remote);
  if (!local.ok()) return failure(local.error());
  const auto made = tcp_engine().connect(guard.context(), *local, remote, socket.details->tcp, &socket);
  if (!made.ok()) return failure(made.error());
  socket.tcb = *made;
  socket.path = Path::kBypass;
  policy.ask_for_wire();
  socket.progress = Progress::kConnecting;
  socket.pending_error = 0;  // tcp_connect_init
  // From "unconnected" (HUP) to "connecting" (nothing): watchers must look again.
  signal_idle(socket);
  return 0;
}

// Linux reports that a non-blocking attempt is in progress even if the peer has answered within the call. Some programs
// wait for the socket to become writable whatever connect() returned.
long begin_and_wait(Socket& socket, int fd, const Endpoint& remote) {
  if (const long r = begin(socket, fd, remote); r != 0) return r;
  return non_blocking(socket, 0) ? failure(Error::kInProgress) : await(socket, Error::kInProgress);
}

// connect() with AF_UNSPEC: the connection is gone at once (tcp_disconnect), and the socket is like a new one.
long disconnect(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  KernelOptions options;
  {
    Guard guard(shard());
    const bool is_so =
        socket.kind == FileKind::kStream && (socket.path == Path::kUndecided || socket.path == Path::kBypass);
    if (!is_so) return kAgain;
    if (socket.has(kReading | kWriting)) return failure(Error::kAlready);
    if (socket.details == nullptr) give_kernel_socket(socket, fd);
    if (connection_of(socket) != nullptr) {
      if (socket.details != nullptr) options.take(socket);
      dissolve(guard.context(), socket);
    }
    socket.disconnects++;
    socket.clear(kShutReceive | kShutSend);
    const bool undecided = socket.details != nullptr;
    if (undecided) socket.path = Path::kUndecided;
    signal(socket, kEverything);
    if (!undecided) return 0;
  }
  options.set(fd);
  return kernel_result(kernel->connect(fd, address, length));
}

}  // namespace

bool has_failed_attempt(const Socket& socket) {
  const bool may_have_failed = socket.path == Path::kBypass && socket.progress == Progress::kConnecting &&
                               socket.details != nullptr && connection_of(socket) != nullptr;
  return may_have_failed && tcp_engine().state(*socket.tcb) == State::kClosed;
}

void give_kernel_socket(Socket& socket, int fd) {
  if (socket.references.total() != 1) return;
  Details* const details = objects->details.allocate();
  if (details == nullptr) return;
  const int status = non_blocking(socket, 0) ? SOCK_NONBLOCK : 0;
  const int made = kernel->socket(socket.domain, SOCK_STREAM | SOCK_CLOEXEC | status, 0);
  const bool closes = (kernel->fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
  const bool placed = made >= 0 && kernel->dup3(made, fd, closes ? O_CLOEXEC : 0) == fd;
  if (made >= 0) os::close(made);
  if (!placed) return objects->details.free(details);
  details->tcp = tcp_options(socket);
  socket.details = details;
}

long stream_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  const bool unspecified = is_unspecified(address, length);
  if (unspecified && (socket.path == Path::kBypass || socket.path == Path::kUndecided)) {
    const long r = disconnect(socket, fd, address, length);
    return r == kAgain ? connect(socket, fd, address, length) : r;  // another thread has changed it meanwhile
  }
  if (socket.path == Path::kBypass) {
    if (socket.progress == Progress::kConnecting) return await(socket, Error::kAlready);
    return failure(Error::kIsConnected);
  }
  const std::optional<Endpoint> remote = endpoint_of(address, length);
  // What the kernel refuses or dissolves concerns only the kernel, and changes nothing here.
  const bool refused = !remote.has_value() || address->sa_family != socket.domain;
  if (calls_of(socket).in_kernel && unspecified) {  // this dissolves the connection
    Guard guard(shard());
    calls_of(socket).leave(guard, socket);
    socket.disconnects++;
  }
  if (calls_of(socket).in_kernel) return connect_local(socket, fd, address, length, true);
  if (refused || socket.path == Path::kKernel) return kernel_result(kernel->connect(fd, address, length));
  switch (decide(socket, fd, address)) {
    case Decision::kFail:
      return failure(Error::kAccess);
    case Decision::kKernel:
      if (local_before_connect(socket, fd, address, length)) return connect_local(socket, fd, address, length, false);
      return connect_in_kernel(socket, [&] { return kernel_result(kernel->connect(fd, address, length)); });
    case Decision::kRelay:
      return kRelayed;
    case Decision::kBypass:
      break;
  }
  return begin_and_wait(socket, fd, *remote);
}

// There are no cookies on the wire: the bytes follow the handshake, as in Linux without a cookie. If the kernel gets
// the socket, it gets the whole call.
std::optional<long> stream_fast_open(Socket& socket, int fd, const Message& message, int flags) {
  long r = 0;
  if (socket.path == Path::kUndecided) {
    const std::optional<Endpoint> remote = endpoint_of(message.name, message.name_length);
    if (!remote.has_value() || is_unspecified(message.name, message.name_length)) return std::nullopt;
    const Decision decision = decide(socket, fd, message.name);
    if (decision == Decision::kFail) return failure(Error::kAccess);
    if (decision != Decision::kBypass)  // what a relay carries connects by connect(2)
      return connect_in_kernel(socket, [&] { return kernel_send(fd, message, flags); });
    r = begin_and_wait(socket, fd, *remote);
  } else if (socket.progress == Progress::kConnecting) {
    r = await(socket, Error::kAlready);
  } else {
    r = failure(Error::kIsConnected);
  }
  return r == 0 ? std::nullopt : std::optional<long>(r);
}

}  // namespace bypass::socket
