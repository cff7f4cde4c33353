#include "preload/relayed.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "os/errno_map.h"
#include "os/net/address.h"
#include "os/net/rights_message.h"
#include "os/os.h"
#include "os/program_memory.h"
#include "os/pump_name.h"
#include "preload/calls/process/filter.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/symbols.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/undisturbed.h"

namespace bypass::preload {

namespace {

using socket::PumpName;

/// What a Unix socket takes over from the socket whose place it gets, or from its listener.
constexpr auto kCopied =
    std::to_array<int>({SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, SO_KEEPALIVE, SO_RCVLOWAT, SO_REUSEADDR, SO_OOBINLINE});

template <typename Get>
void copy_options(int end, const Get& get) {
  for (const int name : kCopied) {
    std::array<std::byte, sizeof(timeval)> value;
    socklen_t length = value.size();
    if (get(name, value.data(), &length) == 0) real.setsockopt(end, SOL_SOCKET, name, value.data(), length);
  }
}

void take_over(const Use& use, int fd, int end) {
  copy_options(end, [&](int name, void* value, socklen_t* length) {
    return socket::get_option(*use, fd, SOL_SOCKET, name, value, length);
  });
  real.fcntl(end, F_SETFL, static_cast<int>(socket::status_flags(*use, fd)) & O_NONBLOCK);
}

/// The number names the end from here on. `end` is closed.
long put_there(const Use& use, int fd, int end) {
  int at_once = 0;
  socklen_t length = sizeof at_once;
  (void)socket::get_option(*use, fd, IPPROTO_TCP, TCP_NODELAY, &at_once, &length);
  take_over(use, fd, end);
  const bool placed = give_number_to(fd, use.entry(), end);
  os::close(end);
  if (!placed) return -EBADF;
  if (at_once != 0) (void)set_kernel_option(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
  return 0;
}

/// How long connect() may wait, for poll(2).
int patience_of(int fd) {
  timeval limit{};
  socklen_t length = sizeof limit;
  if (real.getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &length) != 0) return -1;
  if (limit.tv_sec == 0 && limit.tv_usec == 0) return -1;
  const auto most = static_cast<time_t>(std::numeric_limits<int>::max() / 1000 - 1);
  return static_cast<int>(std::min(limit.tv_sec, most) * 1000 + (limit.tv_usec + 999) / 1000);
}

/// The error that an attempt has ended with, as a negative errno; 0: it stands.
long result_of(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return get_kernel_option(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? -error : -errno;
}

/// Waits for an attempt, as connect(2) does: a handler ends the wait, unless it has SA_RESTART and there is no limit
/// (signal(7)).
long await_attempt(int fd) {
  const int limit = patience_of(fd);
  for (;;) {
    const auto before = socket::thread_signals;
    pollfd item{fd, POLLOUT, 0};
    const int n = real.poll(&item, 1, limit);
    if (n > 0) return result_of(fd);
    if (n == 0) return -EINPROGRESS;
    const auto& now = socket::thread_signals;
    const bool restarts = now.seen - before.seen == now.restart_seen - before.restart_seen;
    if (errno != EINTR || limit >= 0 || !restarts) return -errno;
  }
}

/// The result of an attempt that has ended, or has not. The program knows of its end from here on.
long connected(int fd, long result) {
  const auto attempt = result != -EINPROGRESS ? stand_in_name(fd) : std::nullopt;
  if (attempt.has_value()) (void)take_unreported(*attempt);
  return result;
}

/// Whether the other end is a pump's.
bool stands(int fd) {
  socket::SocketName peer;
  socklen_t length = sizeof peer.storage;
  return name_in_kernel(fd, &peer.base, &length, real.getpeername) == 0;
}

/// Reads one connection's end. -1: there is none, and errno says why.
int receive_end(int fd) {
  char word = 0;
  os::RightsMessage<1> message(&word, 1);
  message.expect();
  const auto got = real.recvmsg(fd, &message.header(), MSG_CMSG_CLOEXEC);
  if (got < 0 && errno != ECONNRESET) return -1;
  if (got > 0 && message.lacks_descriptors()) return errno = EMFILE, -1;
  const auto [end] = got > 0 ? message.received() : std::array{-1};
  return end >= 0 ? end : (errno = EINVAL, -1);  // it listens no more
}

/// accept(2) leaves the connection where it is if the program can have no more descriptors. A message would lose it.
bool has_number(int fd) {
  const int probe = real.fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (probe < 0) return false;
  real.close(probe);
  return true;
}

long copy_peer(int connection, sockaddr* address, socklen_t* length) {
  if (address == nullptr) return 0;
  if (const auto name = stand_in_name(connection))
    return socket::copy_name(name->remote, name->domain, address, length);
  return real.getpeername(connection, address, length) == 0 ? 0 : -errno;  // the kernel's own
}

std::optional<PumpName> name_as(int fd, PumpName::End end) {
  auto name = stand_in_name(fd);
  if (name.has_value() && name->end != end) name.reset();
  return name;
}

}  // namespace

long listen_by_relay(const Use& use, int fd, int backlog) {
  const KeepErrno keep;
  const int end = is_filtered() ? -EADDRNOTAVAIL : runtime::ask_to_listen(fd, backlog);
  return end < 0 ? end : put_there(use, fd, end);
}

long connect_by_relay(const Use& use, int fd, const sockaddr* address, socklen_t length) {
  const KeepErrno keep;
  const auto remote = socket::endpoint_of(address, length);
  if (!remote.has_value()) return -EAFNOSUPPORT;
  const bool waits = (socket::status_flags(*use, fd) & O_NONBLOCK) == 0;
  const int end = is_filtered() ? -ENETUNREACH : runtime::ask_to_connect(fd, *remote);
  if (end < 0) return end;
  const long r = put_there(use, fd, end);
  if (r != 0) return r;
  if (const auto attempt = stand_in_name(fd)) mark_unreported(*attempt);
  return waits ? connected(fd, await_attempt(fd)) : -EINPROGRESS;
}

bool bind_after_relay() {
  const KeepErrno keep;
  return !is_filtered() && runtime::await_relays_look();
}

int accept_relayed(int fd, sockaddr* address, socklen_t* length, int flags) {
  constexpr int kKnown = SOCK_NONBLOCK | SOCK_CLOEXEC;
  const int saved = errno;
  if ((flags & ~kKnown) != 0 || !name_as(fd, PumpName::End::kListener)) return errno = EINVAL, -1;
  if (!has_number(fd)) return -1;
  const int connection = receive_end(fd);
  if (connection < 0) return -1;
  drop_stale_number(connection);
  int kind = 0;
  socklen_t bytes_of_kind = sizeof kind;
  if (real.getsockopt(connection, SOL_SOCKET, SO_TYPE, &kind, &bytes_of_kind) != 0 || kind != SOCK_STREAM) {
    real.close(connection);  // no relay has sent that
    return errno = ECONNABORTED, -1;
  }
  copy_options(connection, [&](int name, void* value, socklen_t* bytes) {
    return real.getsockopt(fd, SOL_SOCKET, name, value, bytes);
  });
  real.fcntl(connection, F_SETFL, (flags & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0);
  if ((flags & SOCK_CLOEXEC) == 0) real.fcntl(connection, F_SETFD, 0);
  const long problem = copy_peer(connection, address, length);
  if (problem != 0) {  // a connection that the caller cannot be told of ends, as in do_accept()
    real.close(connection);
    return errno = static_cast<int>(-problem), -1;
  }
  errno = saved;
  return connection;
}

int listen_relayed(int fd) {
  const int saved = errno;
  if (!name_as(fd, PumpName::End::kListener)) return errno = EINVAL, -1;
  errno = saved;
  return 0;
}

int connect_relayed(int fd) {
  const int saved = errno;
  const auto name = stand_in_name(fd);
  if (!name.has_value()) return errno = EINVAL, -1;
  const short now = os::poll_now(fd, POLLOUT);
  const bool begins = name->end == PumpName::End::kPrograms && (now & (POLLOUT | POLLERR | POLLHUP)) == 0;
  const bool blocks = (real.fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
  long r = begins ? -EALREADY : result_of(fd);
  if (begins && blocks)
    r = connected(fd, await_attempt(fd));
  else if (r == 0 && name->end == PumpName::End::kPrograms && !stands(fd))
    r = -ECONNABORTED;  // it has failed, and SO_ERROR has been told
  else if (r == 0 && !take_unreported(*name))
    r = -EISCONN;
  errno = r < 0 ? static_cast<int>(-r) : saved;
  return r < 0 ? -1 : 0;
}

}  // namespace bypass::preload
