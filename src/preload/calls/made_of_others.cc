// Functions of libc that are made of other calls. libc makes those inside, where no interposer is called, so each is
// written here once more, in its steps.
#include <errno.h>
#include <execinfo.h>
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utmp.h>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "preload/acceleration.h"
#include "preload/numbers.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

BYPASS_EXPORT(int, eventfd_read, (int fd, eventfd_t* value)) {
  return ::read(fd, value, sizeof *value) == sizeof *value ? 0 : -1;
}

BYPASS_EXPORT(int, eventfd_write, (int fd, eventfd_t value)) {
  return ::write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}

BYPASS_EXPORT(int, sockatmark, (int fd)) {
  int is_at_mark = 0;
  return ::ioctl(fd, SIOCATMARK, &is_at_mark) == -1 ? -1 : is_at_mark;
}

// Ports for bindresvport(3), first those from kUsual on. Those below may be a service's.
constexpr int kLowest = 512, kUsual = 600, kEnd = IPPORT_RESERVED;
constinit pthread_mutex_t port_lock = PTHREAD_MUTEX_INITIALIZER;
constinit int next_port = 0;  // under port_lock

/// Tries each port of [`first`, `end`) once, from next_port on. Returns bind()'s result; the last port's if none is
/// free.
int bind_in_range(int fd, sockaddr_in& address, int first, int end) {
  int result = -1;
  for (int i = first; i < end; i++) {
    if (next_port < first || next_port >= end) next_port = first;
    address.sin_port = htons(static_cast<in_port_t>(next_port++));
    result = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (result >= 0 || errno != EADDRINUSE) break;
  }
  return result;
}

BYPASS_EXPORT(int, bindresvport, (int fd, sockaddr_in* address)) {
  sockaddr_in any{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {INADDR_ANY}, .sin_zero = {}};
  sockaddr_in& wanted = address != nullptr ? *address : any;
  if (wanted.sin_family != AF_INET) {
    errno = EAFNOSUPPORT;
    return -1;
  }
  const socket::CancellationOff off;
  pthread_mutex_lock(&port_lock);
  if (next_port == 0) next_port = kUsual + getpid() % (kEnd - kUsual);
  int result = bind_in_range(fd, wanted, kUsual, kEnd);
  if (result < 0 && errno == EADDRINUSE) result = bind_in_range(fd, wanted, kLowest, kUsual);
  pthread_mutex_unlock(&port_lock);
  return result;
}

BYPASS_EXPORT(int, login_tty, (int fd)) {
  setsid();
  if (::ioctl(fd, TIOCSCTTY, nullptr) == -1) return -1;
  for (int stream = 0; stream < 3; stream++) {
    while (::dup2(fd, stream) == -1 && errno == EBUSY) {
    }
  }
  if (fd > 2) ::close(fd);
  return 0;
}

BYPASS_EXPORT(pid_t, forkpty, (int* main_end, char* name, const termios* mode, const winsize* size)) {
  if (!has_started()) return real.forkpty(main_end, name, mode, size);
  int ours = -1, childs = -1;
  if (real.openpty(&ours, &childs, name, mode, size) == -1) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ours);
    if (::login_tty(childs) != 0) _exit(1);
    return 0;
  }
  ::close(child == -1 ? ours : childs);
  if (child == -1)
    ::close(childs);
  else
    *main_end = ours;
  return child;
}

// libc writes the lines by itself. A file in memory takes them, and the socket gets them from there: malloc() is not
// allowed here (signal handlers call this function).
[[gnu::noinline]] void write_symbols(void* const* addresses, int count, int fd) {
  const KeepErrno keep;
  const auto file = static_cast<int>(os::call(SYS_memfd_create, reinterpret_cast<long>("symbols"), MFD_CLOEXEC));
  if (file < 0) return;
  real.backtrace_symbols_fd(addresses, count, file);
  char part[512];
  for (long at = 0, bytes; (bytes = os::call(SYS_pread64, file, os::address(part), sizeof part, at)) > 0; at += bytes) {
    if (::write(fd, part, static_cast<size_t>(bytes)) < 0) break;
  }
  os::call(SYS_close, file);
}

BYPASS_EXPORT(void, backtrace_symbols_fd, (void* const* addresses, int count, int fd)) {
  if (!is_tracked(fd)) [[likely]]
    return real.backtrace_symbols_fd(addresses, count, fd);
  write_symbols(addresses, count, fd);
}
BYPASS_ALIAS(__backtrace_symbols_fd, backtrace_symbols_fd);

}  // namespace
}  // namespace bypass::preload
