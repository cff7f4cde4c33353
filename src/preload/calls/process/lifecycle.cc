// Calls that make or end numbers: socket, close and close_range, dup and related calls, fcntl.
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "os/own/cancellation.h"
#include "preload/acceleration.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/own_descriptors.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/process.h"

namespace bypass::preload {
namespace {

/// False: there is no memory for it. The kernel's socket alone would not do: what it sends to a port's addresses might
/// go anywhere.
[[gnu::noinline]] bool adopt_socket(int fd, int domain, int type, int protocol) {
  KeepErrno keep;
  drop_stale_number(fd);
  if ((domain != AF_INET && domain != AF_INET6) || !is_accelerating()) return true;
  if (runtime::is_elsewhere(fd)) {
    note_escape(fd, observe::Reason::kOtherNetwork, "");
    return true;
  }
  File* file = socket::open_socket(fd, domain, type, protocol);
  if (file == nullptr) return !socket::is_our_kind(domain, type, protocol);
  if (!enter_number(fd, file)) note_escape(fd, observe::Reason::kNoMemory, "table of numbers");
  return true;
}

BYPASS_EXPORT(int, socket, (int domain, int type, int protocol)) {
  int fd = make_number([=] { return real.socket(domain, type, protocol); });
  if (fd < 0 || adopt_socket(fd, domain, type, protocol)) return fd;
  return refuse_without_memory(fd, ENOBUFS, "socket() was answered with ENOBUFS");
}

[[gnu::noinline]] int close_started(int fd) {
  if (is_tracked(fd)) {
    pthread_testcancel();  // before anything is done, or not at all: the number ends with its object
    const socket::CancellationOff off;
    {
      KeepErrno keep;
      leave_number(fd);
    }
    return real.close(fd);
  }
  if (!is_own_descriptor(fd)) [[likely]]
    return real.close(fd);
  errno = EBADF;
  return -1;
}

BYPASS_EXPORT(int, close, (int fd)) {
  return has_started() ? close_started(fd) : real.close(fd);
}
BYPASS_ALIAS(__close, close);

// Our numbers in the range leave the table first. Then the kernel closes everything but the library's own descriptors.
int close_numbers(unsigned first, unsigned last, int flags) {
  if ((flags & CLOSE_RANGE_CLOEXEC) != 0 || first > last || goes_straight())
    return real.close_range(first, last, flags);
  KeepErrno keep;
  for (int fd = static_cast<int>(first < INT_MAX ? first : INT_MAX); fd < fd_table.end(); fd++) {
    if (static_cast<unsigned>(fd) > last) break;
    if (is_tracked(fd)) leave_number(fd);
  }
  return close_around_own(first, last, flags);
}

BYPASS_EXPORT(int, close_range, (unsigned first, unsigned last, int flags)) {
  return close_numbers(first, last, flags);
}

BYPASS_EXPORT(void, closefrom, (int first)) {
  unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  if (!has_started() || close_numbers(from, UINT_MAX, 0) != 0) real.closefrom(first);
}

BYPASS_EXPORT(int, dup, (int fd)) {
  (void)exchange_called_number(fd);
  int copy = make_number([=] { return real.dup(fd); });
  if (copy >= 0 && (is_tracked(fd) || is_tracked(copy))) [[unlikely]]
    share_number(fd, copy);
  return copy;
}

// Duplicates onto a number that the program chose: the old object leaves the number first, while it is still open.
template <typename Duplicate>
int duplicate_onto(int fd, int target, Duplicate duplicate) {
  if ((!is_tracked(fd) && !is_tracked(target)) || fd == target) [[likely]]
    return duplicate();
  (void)exchange_called_number(fd);
  if (goes_straight()) {
    note_given_away(fd);
    return duplicate();
  }
  if (is_tracked(target)) {
    if (real.fcntl(fd, F_GETFD) < 0) return -1;
    KeepErrno keep;
    leave_number(target);
  }
  int result = duplicate();
  if (result >= 0) share_number(fd, target);
  return result;
}

bool refuses_target(int target) {
  if (!is_own_descriptor(target)) [[likely]]
    return false;
  errno = EBADF;
  return true;
}

BYPASS_EXPORT(int, dup2, (int fd, int target)) {
  if (refuses_target(target)) return -1;
  return duplicate_onto(fd, target, [=] { return real.dup2(fd, target); });
}
BYPASS_ALIAS(__dup2, dup2);

BYPASS_EXPORT(int, dup3, (int fd, int target, int flags)) {
  if (refuses_target(target)) return -1;
  if ((flags & ~O_CLOEXEC) != 0) return real.dup3(fd, target, flags);
  return duplicate_onto(fd, target, [=] { return real.dup3(fd, target, flags); });
}

int control_tracked(int fd, int command, void* argument) {
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
    (void)exchange_called_number(fd);
    int copy = make_number([=] { return real.fcntl(fd, command, argument); });
    if (copy >= 0) share_number(fd, copy);
    return copy;
  }
  Use use(fd);
  if (!use) return real.fcntl(fd, command, argument);
  if (command == F_GETFL) return static_cast<int>(use.finish(socket::status_flags(*use, fd)));
  if (command == F_SETFL) {
    return static_cast<int>(
        use.finish(socket::set_status_flags(*use, fd, static_cast<int>(reinterpret_cast<long>(argument)))));
  }
  if (socket::sets_async(command)) return static_cast<int>(use.finish(socket::set_async(*use, fd, command, argument)));
  return real.fcntl(fd, command, argument);
}

// Not variadic, as libc declares it: the argument is in the same register, and no other registers need saving.
BYPASS_EXPORT(int, fcntl, (int fd, int command, void* argument)) {
  if (!is_tracked(fd)) [[likely]]
    return real.fcntl(fd, command, argument);
  return control_tracked(fd, command, argument);
}
BYPASS_ALIAS(__fcntl, fcntl);

BYPASS_EXPORT(int, fcntl64, (int fd, int command, void* argument)) {
  if (!is_tracked(fd)) [[likely]]
    return real.fcntl64(fd, command, argument);
  return control_tracked(fd, command, argument);
}

}  // namespace
}  // namespace bypass::preload
