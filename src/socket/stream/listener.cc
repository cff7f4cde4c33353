// listen(2) and accept(2): on the wire, in the kernel, or on both if the address is a wildcard.
#include <fcntl.h>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/family/kin.h"
#include "socket/family/receivers.h"
#include "socket/objects.h"
#include "socket/options/options.h"
#include "socket/policy.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

constexpr std::uint32_t kMaxBacklog = 4096;  // net.core.somaxconn's default
/// What a child inherits from its listener (sk_clone copies the whole socket).
constexpr std::uint32_t kInherited =
    kReuseAddress | kReusePort | kV6Only | kWantTimestamp | kWantTimestampNs | kWantTimestamping | kWantInq | kZerocopy;

std::uint32_t clamp_backlog(int backlog) {
  return static_cast<std::uint32_t>(backlog) > kMaxBacklog ? kMaxBacklog : static_cast<std::uint32_t>(backlog);
}

void report_why(int fd, observe::Reason reason, const char* detail) {
  policy.record_why(fd, static_cast<unsigned>(reason), detail);
}

Decision decide(const Socket& socket, int fd) {
  if (socket.has(kForceKernel)) {
    report_kernel_option(socket, fd);
    return Decision::kKernel;
  }
  if (socket.has(kV6Only)) {  // no IPv4 peer may come in here, and there is no IPv6 wire yet
    report_why(fd, observe::Reason::kAfUnsupported, "IPV6_V6ONLY");
    return Decision::kKernel;
  }
  SocketName name;
  const Endpoint local = socket.has(kBound) ? socket.details->bound : Endpoint{};
  write_name(local, socket.domain, name);
  return policy.decide_listen(fd, SOCK_STREAM, &name.base);
}

// Refused, it changes nothing: the socket may be a connection in shared memory.
long listen_in_kernel(Socket& socket, int fd, int backlog) {
  const long r = kernel_result(kernel->listen(fd, backlog));
  if (r != 0) return r;
  {
    Guard guard(shard());
    give_to_kernel(guard, socket);
  }
  local_note_listener(fd);
  return 0;
}

void report_failure(int fd, Error error) {
  switch (error) {
    case Error::kNoMemory:
      return report_why(fd, observe::Reason::kNoMemory, "the bypass half of the listener");
    case Error::kAddressInUse:  // the kernel has let it pass: by SO_REUSEPORT that one of them has given up since
      return report_why(fd, observe::Reason::kNotBuilt, "a second listener of one port");
    default:
      return report_why(fd, observe::Reason::kAddressNotOurs, "the bypass half of the listener");
  }
}

// The wire has turned out to be another process's.
bool is_taken(const Socket& socket, const Endpoint& local) {
  SocketName name;
  write_name(local, socket.domain, name);
  return policy.is_taken(&name.base);
}

// The bypass half. Where the stack refuses what the kernel has let pass, the port stays the kernel's alone.
long listen_on_wire(Socket& socket, int fd, int backlog, const Endpoint& local, bool dual) {
  // An address of its own is known to the stack once its port is open; a wildcard can wait for that.
  if (!local.address.is_any()) policy.open_wire();
  (void)shadow_placeholder(socket.domain);  // while there are descriptors to be had
  Guard guard(shard());
  const auto made = open_beside_dead(guard, [&] {
    return tcp_engine().listen(local, clamp_backlog(backlog), socket.details->tcp, &socket, socket.has(kReusePort));
  });
  if (!made.ok()) {
    report_failure(fd, made.error());
    if (!dual) return failure(is_taken(socket, local) ? Error::kAddressInUse : made.error());
    give_to_kernel(guard, socket);
    return 0;
  }
  socket.listener = *made;
  socket.path = dual ? Path::kDual : Path::kBypass;
  policy.ask_for_wire();
  socket.kind = FileKind::kListener;
  socket.details->backlog = clamp_backlog(backlog);
  socket.details->kernel_inode = static_cast<std::uint32_t>(os::inode_of(fd));  // of sockets they have 32 bits
  if (dual) {
    // accept() asks the kernel when its turn comes and must never block there.
    kernel->fcntl(fd, F_SETFL, static_cast<int>(socket.status) | O_NONBLOCK);
    watch_kernel_half(socket, fd);
  }
  signal(socket, kEverything);  // from "unconnected" to "listening"
  return 0;
}

long listen_first(Socket& socket, int fd, int backlog) {
  switch (decide(socket, fd)) {
    case Decision::kFail:
      return failure(Error::kAccess);
    case Decision::kKernel:
      return listen_in_kernel(socket, fd, backlog);
    case Decision::kRelay:
      if (socket.has(kFreeBound)) return kRelayed;
      report_why(fd, observe::Reason::kPortUnavailable, "the kernel has the address, too, and listens there");
      return listen_in_kernel(socket, fd, backlog);
    case Decision::kBypass:
      break;
  }
  long r = 0;
  if (socket.has(kFreeBound)) {
    r = listen_on_wire(socket, fd, backlog, socket.details->bound, false);
  } else {
    // The kernel comes first: its errno is the program's, and an unbound socket gets its port from it.
    if (kernel->listen(fd, backlog) != 0) return kernel_failure();
    local_note_listener(fd);
    r = listen_on_wire(socket, fd, backlog, kernel_name(fd), true);
  }
  shard().await_steering();  // a peer may connect as soon as the program says that it listens
  return r;
}

long listen_again(Socket& socket, int fd, int backlog) {
  if (socket.path == Path::kDual && kernel->listen(fd, backlog) != 0) return kernel_failure();
  Guard guard(shard());
  if (listener_of(socket) == nullptr) return failure(Error::kInvalid);
  socket.details->backlog = clamp_backlog(backlog);
  tcp_engine().set_backlog(*socket.listener, clamp_backlog(backlog));
  return 0;
}

class Accepting final : public DualCondition {
 public:
  Accepting(Socket& socket, int flags) : DualCondition(socket, kIn, true), flags_(flags) {}

  long attempt(Guard& guard) override {
    for (;;) {
      if (listener_of(socket_) == nullptr) return failure(Error::kInvalid);
      const bool kernel_has = has_kernel_half(socket_) && kernel_half_state(socket_).in;
      const bool wire_has = tcp_engine().accept_queue_length(*socket_.listener) != 0;
      if (!kernel_has && !wire_has) return again();
      const bool from_kernel = kernel_has && (!wire_has || socket_.has(kKernelTurn));
      socket_.set(kKernelTurn, !from_kernel);
      const long r = from_kernel ? take_from_kernel(guard) : take_from_wire(guard);
      if (r != kAgain) return r;
    }
  }

  Accepted result;
  Endpoint peer;
  SocketName kernel_peer;
  socklen_t kernel_peer_length = sizeof(sockaddr_storage);

 private:
  long take_from_kernel(Guard& guard);
  long take_from_wire(Guard& guard);

  // A duplicate of the placeholder, so that fstat says socket.
  [[nodiscard]] int make_number() const {
    const int placeholder = shadow_placeholder(socket_.domain);
    if (placeholder < 0) return kernel->socket(socket_.domain, SOCK_STREAM | (flags_ & SOCK_CLOEXEC), 0);
    return kernel->fcntl(placeholder, (flags_ & SOCK_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
  }

  int flags_;
};

long Accepting::take_from_kernel(Guard& guard) {
  kernel_peer_length = sizeof kernel_peer.storage;
  const long r = ask_kernel(guard, [this](int number) {
    return kernel_result(kernel->accept4(number, &kernel_peer.base, &kernel_peer_length, flags_));
  });
  if (r < 0) return r;
  result.kernel_fd = static_cast<int>(r);
  return 0;
}

long Accepting::take_from_wire(Guard& guard) {
  // Its number first: without one the connection stays in the queue.
  const int number = make_number();
  if (number < 0) return kernel_failure();
  Socket* child = objects->sockets.allocate();
  if (child == nullptr) {
    os::close(number);
    return failure(Error::kNoMemory);
  }
  const auto taken = tcp_engine().accept(guard.context(), *socket_.listener, child);
  if (!taken.ok()) {
    objects->sockets.free(child);
    os::close(number);
    return taken.error() == Error::kWouldBlock ? kAgain : failure(taken.error());
  }
  own_first(*child);
  child->tcb = *taken;
  child->path = Path::kBypass;
  child->progress = Progress::kConnected;
  child->domain = socket_.domain;
  child->flags = socket_.flags & kInherited;
  child->status = (flags_ & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0;
  child->receive_timeout_ms = socket_.receive_timeout_ms;
  child->send_timeout_ms = socket_.send_timeout_ms;
  child->linger_s = socket_.linger_s;
  child->low_water = socket_.low_water;
  peer = tcp_engine().remote(**taken);
  result.file = child;
  result.number = number;
  return 0;
}

long copy_peer(const Accepting& accepting, int domain, sockaddr* address, socklen_t* length) {
  if (address == nullptr) return 0;
  if (length == nullptr) return failure(Refusal::kBadPointer);
  if (accepting.result.file != nullptr) return copy_name(accepting.peer, domain, address, length);
  if (static_cast<int>(*length) < 0) return failure(Error::kInvalid);
  std::memcpy(address, &accepting.kernel_peer, std::min(*length, accepting.kernel_peer_length));
  *length = accepting.kernel_peer_length;
  return 0;
}

// A connection that the caller cannot be told of ends, as in do_accept.
void discard(const Accepted& accepted) {
  const CancellationOff off;
  if (accepted.file != nullptr) release(*accepted.file, accepted.number);
  kernel->close(accepted.file != nullptr ? accepted.number : accepted.kernel_fd);
}

long accept_one(Socket& socket, Accepting& accepting) {
  Patience patience;
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    note_receiver(socket);
    const long r = accepting.attempt(guard);
    if (r != kAgain) return r;
    patience = socket_patience(guard, socket.receive_timeout_ms);
    patience.block = !non_blocking(socket, 0);
    accepting.ration(!patience.block);
    hold(socket);
  }
  Pin pin(socket);
  const long r = wait(accepting, patience);
  return r == kTimedOutWait ? kAgain : r;
}

}  // namespace

long listener_listen(Socket& socket, int fd, int backlog) {
  if (socket.kind == FileKind::kListener) return listen_again(socket, fd, backlog);
  if (socket.path == Path::kKernel) return kernel_result(kernel->listen(fd, backlog));
  if (socket.path == Path::kBypass) return failure(Error::kInvalid);
  return listen_first(socket, fd, backlog);
}

long listener_accept(Socket& socket, int, sockaddr* address, socklen_t* length, int flags, Accepted& out) {
  Accepting accepting(socket, flags);
  // However many come in on the wire, the kernel's are heard.
  if (socket.path == Path::kDual) look_at_kernel_halves(shard().clock().now(), false);
  long r = accept_one(socket, accepting);
  if (r < 0) return r;
  r = copy_peer(accepting, socket.domain, address, length);
  if (r < 0)
    discard(accepting.result);
  else
    out = accepting.result;
  return r;
}

// shutdown(SHUT_RD) ends the listening (inet_shutdown): sleepers in accept() get EINVAL.
long listener_shutdown(Socket& socket, int fd, int how) {
  Guard guard(shard());
  if (socket.kind != FileKind::kListener) return failure(Error::kNotConnected);  // another thread was faster
  if (how == SHUT_WR) {  // nothing to shut, and an edge all the same (inet_shutdown)
    signal(socket, kEverything);
    return 0;
  }
  if (socket.path == Path::kDual) kernel->shutdown(fd, how);
  unwatch_kernel_half(socket);
  if (socket.listener != nullptr) tcp_engine().close_listener(guard.context(), *socket.listener);
  socket.listener = nullptr;
  socket.path = Path::kUndecided;
  socket.kind = FileKind::kStream;
  socket.clear(kShutReceive | kShutSend);  // tcp_disconnect
  signal(socket, kEverything);
  return 0;
}

std::uint32_t listener_bits(const Socket& socket) {
  if (socket.listener == nullptr) return kOut | kHangUp;
  std::uint32_t bits = 0;
  if (tcp_engine().accept_queue_length(*socket.listener) != 0) bits |= kIn;
  bits |= kernel_half_bits(socket) & kIn;
  return bits;
}

}  // namespace bypass::socket
