#include "os/own/uncancelled.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "os/os.h"

namespace bypass::runtime {
namespace {

template <typename T>
long as_argument(T value) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<long>(value);
  else
    return static_cast<long>(value);
}

template <typename... Arguments>
long ask(long number, Arguments... arguments) {
  const long r = os::call(number, as_argument(arguments)...);
  if (r >= 0) return r;
  errno = static_cast<int>(-r);
  return -1;
}

/// A function with libc's signature that makes the system call with the same arguments.
template <long Number, typename Function>
struct Same;
template <long Number, typename Result, typename... Parameters>
struct Same<Number, Result(Parameters...)> {
  static Result call(Parameters... arguments) { return static_cast<Result>(ask(Number, arguments...)); }
};

// --- Those whose system call has more arguments, or others

ssize_t recv(int fd, void* data, std::size_t bytes, int flags) {
  return ask(SYS_recvfrom, fd, data, bytes, flags, 0L, 0L);
}
ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  return ask(SYS_sendto, fd, data, bytes, flags, 0L, 0L);
}
bool has_mode(int flags) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}
int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const int mode = has_mode(flags) ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return static_cast<int>(ask(SYS_openat, AT_FDCWD, path, flags, mode));
}
int openat(int folder, const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const int mode = has_mode(flags) ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return static_cast<int>(ask(SYS_openat, folder, path, flags, mode));
}

struct Entry {
  const char* name;
  void* function;
};

template <long Number, typename Function>
Entry same(const char* name) {
  return {name, reinterpret_cast<void*>(&Same<Number, Function>::call)};
}

}  // namespace

void* uncancelled(const char* name) {
  static const Entry kEntries[] = {
      same<SYS_accept, int(int, sockaddr*, socklen_t*)>("accept"),
      same<SYS_accept4, int(int, sockaddr*, socklen_t*, int)>("accept4"),
      same<SYS_close, int(int)>("close"),
      same<SYS_connect, int(int, const sockaddr*, socklen_t)>("connect"),
      same<SYS_epoll_wait, int(int, epoll_event*, int, int)>("epoll_wait"),
      same<SYS_nanosleep, int(const timespec*, timespec*)>("nanosleep"),
      {"open", reinterpret_cast<void*>(&open)},
      {"open64", reinterpret_cast<void*>(&open)},
      {"openat", reinterpret_cast<void*>(&openat)},
      {"openat64", reinterpret_cast<void*>(&openat)},
      same<SYS_poll, int(pollfd*, nfds_t, int)>("poll"),
      same<SYS_pread64, ssize_t(int, void*, size_t, off64_t)>("pread64"),
      same<SYS_pwrite64, ssize_t(int, const void*, size_t, off64_t)>("pwrite64"),
      same<SYS_read, ssize_t(int, void*, size_t)>("read"),
      same<SYS_readv, ssize_t(int, const iovec*, int)>("readv"),
      {"recv", reinterpret_cast<void*>(&recv)},
      same<SYS_recvfrom, ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)>("recvfrom"),
      same<SYS_recvmsg, ssize_t(int, msghdr*, int)>("recvmsg"),
      {"send", reinterpret_cast<void*>(&send)},
      same<SYS_sendmmsg, int(int, mmsghdr*, unsigned, int)>("sendmmsg"),
      same<SYS_sendmsg, ssize_t(int, const msghdr*, int)>("sendmsg"),
      same<SYS_sendto, ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)>("sendto"),
      same<SYS_write, ssize_t(int, const void*, size_t)>("write"),
      same<SYS_writev, ssize_t(int, const iovec*, int)>("writev"),
  };
  for (const Entry& entry : kEntries)
    if (std::strcmp(entry.name, name) == 0) return entry.function;
  return nullptr;
}

}  // namespace bypass::runtime
