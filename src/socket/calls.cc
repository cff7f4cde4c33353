// The calls of api.h that carry no bytes: addresses, listening, connecting, shutting down, and the status flags.
// Tests: tests/socket/stream_test.cc, tests/socket/datagram_test.cc, tests/system/behaviour.py.
#include <netinet/in.h>

#include <optional>

#include "os/errno_map.h"
#include "socket/api.h"
#include "socket/family/kin.h"
#include "socket/objects.h"
#include "socket/options/options.h"
#include "socket/policy.h"
#include "socket/socket.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/async.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

Endpoint kernel_peer(int fd) {
  SocketName name;
  socklen_t length = sizeof name.storage;
  if (kernel->getpeername(fd, &name.base, &length) != 0) return {};
  return endpoint_of(&name.base, length).value_or(Endpoint{});
}

Endpoint kernel_name(int fd) {
  SocketName name;
  socklen_t length = sizeof name.storage;
  if (kernel->getsockname(fd, &name.base, &length) != 0) return {};
  return endpoint_of(&name.base, length).value_or(Endpoint{});
}

long bind_to_bypass(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  const int on = 1, off = 0;
  int before = 0;
  socklen_t size = sizeof before;
  kernel->getsockopt(fd, IPPROTO_IP, IP_FREEBIND, &before, &size);
  kernel->setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on);
  const long r = kernel_result(kernel->bind(fd, address, length));
  if (before == 0) kernel->setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &off, sizeof off);
  if (r == 0) socket.set(kFreeBound);
  return r;
}

namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;
/// What F_SETFL can change of a socket.
constexpr int kSettable = O_NONBLOCK | O_ASYNC | O_APPEND;

bool is_in_use(const Socket& socket, const Endpoint& wanted) {
  Guard guard(shard());
  const auto in_use = [&] { return tcp_engine().port_in_use(wanted, tcp_options(socket).sharing); };
  return in_use() && (sweep_family(guard) == 0 || in_use());
}

// The kernel does not know the stack's listeners, connections and TIME-WAITs. Listeners that nobody has any more are
// removed only when the driver looks.
bool is_taken_on_wire(const Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  const std::optional<Endpoint> wanted = endpoint_of(address, length);
  if (!wanted.has_value() || wanted->port == 0 || socket.has(kV6Only)) return false;
  if (!is_in_use(socket, *wanted)) return false;
  if (await_drivers_look() && !is_in_use(socket, *wanted)) return false;
  return kernel_name(fd).port == 0;  // if it is bound already, the kernel returns EINVAL
}

// By a connection or a listener.
bool has_port(const Socket& socket) {
  const Guard guard(shard());
  return (socket.path == Path::kBypass && !has_failed_attempt(socket)) || socket.path == Path::kDual;
}

long bind_stream(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  if (has_port(socket)) return failure(Error::kInvalid);
  if (is_taken_on_wire(socket, fd, address, length)) return failure(Error::kAddressInUse);
  long r = kernel_result(kernel->bind(fd, address, length));
  if (r == failure(Error::kAddressNotAvailable) && endpoint_of(address, length).has_value()) {
    const Decision decision = policy.decide_listen(fd, SOCK_STREAM, address);
    if (decision == Decision::kBypass || decision == Decision::kRelay) r = bind_to_bypass(socket, fd, address, length);
  }
  if (r == failure(Error::kAddressNotAvailable) && policy.is_taken(address)) return failure(Error::kAddressInUse);
  if (r != 0 || socket.path == Path::kKernel) return r;
  const Endpoint bound = kernel_name(fd);
  Guard guard(shard());
  socket.details->bound = bound;
  socket.set(kBound);
  return 0;
}

// The local name if no kernel socket knows it.
std::optional<Endpoint> connection_name(const Socket& socket) {
  Guard guard(shard());
  const bool bound_anew = socket.has(kBound) && has_failed_attempt(socket);
  if (connection_of(socket) == nullptr || bound_anew) return std::nullopt;
  return tcp_engine().local(*socket.tcb);
}

}  // namespace

long bind(File& file, int fd, const sockaddr* address, socklen_t length) {
  Socket& socket = socket_of(file);
  switch (kind(file)) {
    case FileKind::kStream:
      return bind_stream(socket, fd, address, length);
    case FileKind::kDatagram:
      return datagram_bind(socket, fd, address, length);
    default:
      return failure(Error::kInvalid);
  }
}

void adopt_bound(File& file, int fd, bool is_free) {
  const Endpoint bound = kernel_name(fd);
  if (bound.port == 0) return;
  const Guard guard(shard());
  Socket& socket = socket_of(file);
  socket.details->bound = bound;
  socket.set(is_free ? kBound | kFreeBound : kBound);
}

void give_number_to_kernel(File& file) {
  Guard guard(shard());
  if (file.alive && file.kind == FileKind::kStream) give_to_kernel(guard, socket_of(file));
}

long listen(File& file, int fd, int backlog) {
  if (kind(file) == FileKind::kDatagram) return failure(Error::kNotSupported);
  return listener_listen(socket_of(file), fd, backlog);
}

long connect(File& file, int fd, const sockaddr* address, socklen_t length) {
  switch (kind(file)) {
    case FileKind::kStream:
      return stream_connect(socket_of(file), fd, address, length);
    case FileKind::kDatagram:
      return datagram_connect(socket_of(file), fd, address, length);
    case FileKind::kListener:
      if (is_unspecified(address, length)) return listener_shutdown(socket_of(file), fd, SHUT_RD);  // tcp_disconnect
      return failure(Error::kIsConnected);
    default:
      return failure(Error::kIsConnected);
  }
}

long accept(File& file, int fd, sockaddr* address, socklen_t* length, int flags, Accepted& out) {
  if ((flags & ~kTypeFlags) != 0) return failure(Error::kInvalid);
  if (kind(file) == FileKind::kDatagram) return failure(Error::kNotSupported);
  if (kind(file) != FileKind::kListener) return failure(Error::kInvalid);
  return listener_accept(socket_of(file), fd, address, length, flags, out);
}

long shutdown(File& file, int fd, int how) {
  if (how < SHUT_RD || how > SHUT_RDWR) return failure(Error::kInvalid);
  switch (kind(file)) {
    case FileKind::kStream:
      return calls_of(file).shutdown(socket_of(file), fd, how);
    case FileKind::kListener:
      return listener_shutdown(socket_of(file), fd, how);
    case FileKind::kDatagram:
      return datagram_shutdown(socket_of(file), fd, how);
    default:
      return failure(Error::kInvalid);
  }
}

long local_name(File& file, int fd, sockaddr* address, socklen_t* length) {
  Socket& socket = socket_of(file);
  if (kind(file) == FileKind::kDatagram) return datagram_name(socket, fd, false, address, length);
  const std::optional<Endpoint> local = connection_name(socket);
  if (!local.has_value()) return kernel_result(kernel->getsockname(fd, address, length));
  return copy_name(*local, socket.domain, address, length);
}

long peer_name(File& file, int fd, sockaddr* address, socklen_t* length) {
  Socket& socket = socket_of(file);
  if (kind(file) == FileKind::kDatagram) return datagram_name(socket, fd, true, address, length);
  if (kind(file) == FileKind::kListener) return failure(Error::kNotConnected);
  if (socket.path != Path::kBypass) return kernel_result(kernel->getpeername(fd, address, length));
  Endpoint remote;
  {
    Guard guard(shard());
    look_before_asking(guard);
    if (connection_of(socket) == nullptr) return failure(Error::kNotConnected);
    const bool begins = tcp_engine().state(*socket.tcb) == tcp::State::kSynSent;
    if (begins || stream::is_over(*socket.tcb)) return failure(Error::kNotConnected);
    remote = tcp_engine().remote(*socket.tcb);
  }
  return copy_name(remote, socket.domain, address, length);
}

long status_flags(File& file, int fd) {
  (void)fd;
  Guard guard(shard());
  return O_RDWR | static_cast<long>(file.status);
}

long set_async(File& file, int fd, int command, void* argument) {
  if (kind(file) != FileKind::kEpoll && socket_of(file).details == nullptr) {
    const Guard guard(shard());
    if (socket_of(file).details == nullptr) give_kernel_socket(socket_of(file), fd);
  }
  const long r = kernel_result(kernel->fcntl(fd, command, argument));
  Guard guard(shard());
  if (r >= 0) note_async(file, fd);
  return r;
}

long set_status_flags(File& file, int fd, int flags) {
  if ((flags & O_ASYNC) != 0 && kind(file) != FileKind::kEpoll) {
    const Guard guard(shard());
    note_async(file, fd);
  }
  const bool own_kernel_socket = kind(file) == FileKind::kEpoll || socket_of(file).details != nullptr;
  if (own_kernel_socket) {
    // A listener's kernel half never blocks: accept() looks at it when its turn comes.
    const bool forced = kind(file) == FileKind::kListener;
    const long r = kernel_result(kernel->fcntl(fd, F_SETFL, forced ? flags | O_NONBLOCK : flags));
    if (r < 0) return r;
  }
  Guard guard(shard());
  file.status = static_cast<std::uint16_t>(flags & kSettable);
  if ((flags & O_ASYNC) == 0 || kind(file) == FileKind::kEpoll) return 0;
  Socket& socket = socket_of(file);
  calls_of(socket).leave(guard, socket);
  return 0;
}

}  // namespace bypass::socket
