// Calls on a socket's names and connection: bind, listen, accept, connect, shutdown, getsockname, getpeername.
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/errno_map.h"
#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/relayed.h"
#include "preload/restart.h"
#include "preload/straight.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

// A name that the program passes; sets errno if it cannot be read.
class GivenName {
 public:
  GivenName(const sockaddr* address, socklen_t length) : problem_(socket::take_name(name_, address, length)) {
    if (problem_ != 0) errno = static_cast<int>(-problem_);
  }
  explicit operator bool() const { return problem_ == 0; }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name_); }

 private:
  sockaddr_storage name_;
  long problem_;
};

// A name that the program receives: `ask(address, length)` gets it.
template <typename Ask>
long receive_name(sockaddr* address, socklen_t* length, Ask ask) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  const long result = ask(reinterpret_cast<sockaddr*>(&name), &bytes);
  return result < 0 ? result : socket::copy_name_out(name, bytes, address, length);
}

BYPASS_EXPORT(int, bind, (int fd, const sockaddr* address, socklen_t length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.bind(fd, address, length);
  Use use(fd);
  if (!use) return real.bind(fd, address, length);
  const GivenName name(address, length);
  if (!name) return -1;
  long result = socket::bind(*use, fd, name.get(), length);
  if (result == -EADDRINUSE && bind_after_relay()) result = socket::bind(*use, fd, name.get(), length);
  drop_if_decided(use, fd);
  return static_cast<int>(use.finish(result));
}

int listen_in_kernel(int fd, int backlog) {
  const int saved = errno;
  const int r = real.listen(fd, backlog);
  if (r == 0 || errno != EINVAL) [[likely]]
    return r;
  errno = saved;
  return listen_relayed(fd);
}

BYPASS_EXPORT(int, listen, (int fd, int backlog)) {
  if (!is_tracked(fd)) [[likely]]
    return listen_in_kernel(fd, backlog);
  Use use(fd);
  if (!use) return listen_in_kernel(fd, backlog);
  long result = socket::listen(*use, fd, backlog);
  if (result == socket::kRelayed) return static_cast<int>(use.finish(listen_by_relay(use, fd, backlog)));
  drop_if_decided(use, fd);
  return static_cast<int>(use.finish(result));
}

bool adopts() {
  return has_started() && !goes_straight() && socket::adopts_accepted();
}

bool is_internet(const sockaddr& address) {
  return address.sa_family == AF_INET || address.sa_family == AF_INET6;
}

// Adopts a connection of the kernel: its other end may use libbypass, too.
void adopt_connection(int fd, const sockaddr* peer, socklen_t length, int flags) {
  KeepErrno keep;
  File* file = socket::adopt_accepted(fd, peer, length, flags);
  if (file != nullptr) enter_number(fd, file);
}

// The same if the program's room for the peer's name was null or may have been too small.
void adopt_unnamed(int fd, const sockaddr* peer, int flags) {
  if (!adopts() || (peer != nullptr && !is_internet(*peer))) return;
  KeepErrno keep;
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  if (real.getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return;
  adopt_connection(fd, reinterpret_cast<const sockaddr*>(&name), length, flags);
}

int number_connection(const socket::Accepted& accepted) {
  if (enter_number(accepted.number, accepted.file)) return accepted.number;
  real.close(accepted.number);
  errno = ENFILE;
  return -1;
}

int accept_tracked(const Use& use, int fd, sockaddr* address, socklen_t* length, int flags) {
  pthread_testcancel();
  Restart restart(use, fd, SO_RCVTIMEO);
  socket::Accepted accepted;
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  auto* const peer = reinterpret_cast<sockaddr*>(&name);
  long result;
  do result = socket::accept(*use, fd, peer, &bytes, flags, accepted);
  while (restart.again(result));
  result = use.finish(result);
  if (result < 0) return -1;
  int number = accepted.kernel_fd;
  if (accepted.file != nullptr) {
    number = number_connection(accepted);
  } else {
    drop_stale_number(number);
    adopt_unnamed(number, peer, flags);
  }
  if (number < 0 || address == nullptr) return number;
  const long problem = socket::copy_name_out(name, bytes, address, length);
  if (problem == 0) return number;
  ::close(number);  // a connection that the caller cannot get ends, as in do_accept()
  errno = static_cast<int>(-problem);
  return -1;
}

int accept_in_kernel(int fd, sockaddr* address, socklen_t* length, int flags) {
  const int connection = flags == 0 ? real.accept(fd, address, length) : real.accept4(fd, address, length, flags);
  if (connection >= 0) drop_stale_number(connection);
  return connection;
}

int accept_kernel(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (address == nullptr && adopts()) {  // the library needs the name anyway
    sockaddr_storage name{};
    socklen_t bytes = sizeof(name);
    auto* peer = reinterpret_cast<sockaddr*>(&name);
    const int connection = accept_in_kernel(fd, peer, &bytes, flags);
    if (connection >= 0 && is_internet(*peer)) adopt_connection(connection, peer, bytes, flags);
    return connection;
  }
  const int connection = accept_in_kernel(fd, address, length, flags);
  if (connection < 0) return connection;
  // Without room for the name the kernel has not checked the pointer to it.
  const bool told = address != nullptr && (fd_table.end() == 0 || socket::is_readable(address, sizeof(sa_family_t)));
  adopt_unnamed(connection, told ? address : nullptr, flags);
  return connection;
}

int accept_untracked(int fd, sockaddr* address, socklen_t* length, int flags) {
  const int saved = errno;
  const int connection = accept_kernel(fd, address, length, flags);
  if (connection >= 0 || errno != EINVAL) [[likely]]
    return connection;
  errno = saved;
  return accept_relayed(fd, address, length, flags);
}

int accept_any(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (!is_tracked(fd) || (flags & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) != 0) [[likely]]
    return accept_untracked(fd, address, length, flags);
  Use use(fd);
  return use ? accept_tracked(use, fd, address, length, flags) : accept_untracked(fd, address, length, flags);
}

BYPASS_EXPORT(int, accept, (int fd, sockaddr* address, socklen_t* length)) {
  return make_number([=] { return accept_any(fd, address, length, 0); });
}

BYPASS_EXPORT(int, accept4, (int fd, sockaddr* address, socklen_t* length, int flags)) {
  return make_number([=] { return accept_any(fd, address, length, flags); });
}

int connect_in_kernel(int fd, const sockaddr* address, socklen_t length) {
  const int saved = errno;
  const int r = real.connect(fd, address, length);
  if (r == 0 || errno != EINVAL) [[likely]]
    return r;
  errno = saved;
  return connect_relayed(fd);
}

BYPASS_EXPORT(int, connect, (int fd, const sockaddr* address, socklen_t length)) {
  if (!is_tracked(fd)) [[likely]]
    return connect_in_kernel(fd, address, length);
  Use use(fd);
  if (!use) return connect_in_kernel(fd, address, length);
  pthread_testcancel();
  const GivenName name(address, length);
  if (!name) return -1;
  Restart restart(use, fd, SO_SNDTIMEO);
  long result = socket::connect(*use, fd, name.get(), length);
  if (result == socket::kRelayed) return static_cast<int>(use.finish(connect_by_relay(use, fd, name.get(), length)));
  // A connect that continues after a signal has already begun: then EALREADY and EISCONN are its result.
  while (restart.again(result)) {
    result = socket::connect(*use, fd, name.get(), length);
    if (result == -EISCONN) result = 0;
  }
  drop_if_decided(use, fd);
  return static_cast<int>(use.finish(result));
}
BYPASS_ALIAS(__connect, connect);

BYPASS_EXPORT(int, shutdown, (int fd, int how)) {
  if (!is_tracked(fd)) [[likely]]
    return real.shutdown(fd, how);
  Use use(fd);
  if (!use) return real.shutdown(fd, how);
  long result = socket::shutdown(*use, fd, how);
  if (has_moved_to_kernel(use, fd, result)) return real.shutdown(fd, how);
  return static_cast<int>(use.finish(result));
}

BYPASS_EXPORT(int, getsockname, (int fd, sockaddr* address, socklen_t* length)) {
  if (!is_tracked(fd)) [[likely]]
    return name_in_kernel(fd, address, length, real.getsockname);
  Use use(fd);
  if (!use) return name_in_kernel(fd, address, length, real.getsockname);
  return static_cast<int>(use.finish(receive_name(
      address, length, [&](sockaddr* name, socklen_t* bytes) { return socket::local_name(*use, fd, name, bytes); })));
}

BYPASS_EXPORT(int, getpeername, (int fd, sockaddr* address, socklen_t* length)) {
  if (!is_tracked(fd)) [[likely]]
    return name_in_kernel(fd, address, length, real.getpeername);
  Use use(fd);
  if (!use) return name_in_kernel(fd, address, length, real.getpeername);
  return static_cast<int>(use.finish(receive_name(
      address, length, [&](sockaddr* name, socklen_t* bytes) { return socket::peer_name(*use, fd, name, bytes); })));
}

}  // namespace
}  // namespace bypass::preload
