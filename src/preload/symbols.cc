#include "preload/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstddef>

#include "os/kernel.h"
#include "os/os.h"
#include "preload/with_errno.h"

namespace bypass::preload {
namespace {

std::atomic<bool> resolved{false};
thread_local constinit bool resolving = false;

template <typename T>
long word(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

// An entry before the table is filled, for functions that are one system call.
template <long kNumber, typename Function>
struct Early;
template <long kNumber, typename R, typename... A>
struct Early<kNumber, R(A...)> {
  static R call(A... arguments) { return static_cast<R>(with_errno(os::call(kNumber, word(arguments)...))); }
};

int early_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  long argument = va_arg(arguments, long);
  va_end(arguments);
  return static_cast<int>(with_errno(os::call(SYS_fcntl, fd, command, argument)));
}
constexpr auto early_fcntl64 = early_fcntl;

int early_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  long argument = va_arg(arguments, long);
  va_end(arguments);
  return static_cast<int>(with_errno(os::call(SYS_ioctl, fd, static_cast<long>(request), argument)));
}

long early_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  return with_errno(os::call(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

// An entry before the table is filled, for all others. If it is still there afterwards, libc has no such function.
template <auto kMember>
struct Late;
template <typename R, typename... A, R (*Real::*kMember)(A...)>
struct Late<kMember> {
  static R call(A... arguments) {
    resolve_symbols();
    if (real.*kMember != call) return (real.*kMember)(arguments...);
    errno = ENOSYS;
    if constexpr (std::is_pointer_v<R>) {
      return nullptr;
    } else if constexpr (!std::is_void_v<R>) {
      return static_cast<R>(-1);
    }
  }
};

#define BYPASS_NAME(result, name, parameters) #name "\0"
constexpr char kNames[] =
    BYPASS_REAL_CALLS(BYPASS_NAME) BYPASS_REAL_VARIADIC(BYPASS_NAME) BYPASS_REAL_OTHERS(BYPASS_NAME);

}  // namespace

#define BYPASS_EARLY(result, name, parameters) .name = Early<SYS_##name, result parameters>::call,
#define BYPASS_VARIADIC(result, name, parameters) .name = early_##name,
#define BYPASS_LATE(result, name, parameters) .name = Late<&Real::name>::call,
constinit Real real = {BYPASS_REAL_CALLS(BYPASS_EARLY) BYPASS_REAL_VARIADIC(BYPASS_VARIADIC)
                           BYPASS_REAL_OTHERS(BYPASS_LATE)};

namespace {

socket::Kernel kernel_table;

void fill_kernel_table() {
  kernel_table = {.socket = real.socket,
                  .close = real.close,
                  .dup = real.dup,
                  .dup2 = real.dup2,
                  .dup3 = real.dup3,
                  .fcntl = real.fcntl,
                  .ioctl = real.ioctl,
                  .bind = real.bind,
                  .listen = real.listen,
                  .accept4 = real.accept4,
                  .connect = real.connect,
                  .shutdown = real.shutdown,
                  .getsockname = real.getsockname,
                  .getpeername = real.getpeername,
                  .getsockopt = real.getsockopt,
                  .setsockopt = real.setsockopt,
                  .read = real.read,
                  .write = real.write,
                  .pread = real.pread,
                  .readv = real.readv,
                  .writev = real.writev,
                  .recvmsg = real.recvmsg,
                  .sendmsg = real.sendmsg,
                  .ppoll = real.ppoll,
                  .epoll_create1 = real.epoll_create1,
                  .epoll_ctl = real.epoll_ctl,
                  .epoll_pwait = real.epoll_pwait,
                  .eventfd = real.eventfd};
  socket::kernel = &kernel_table;
}

}  // namespace

// Two threads may both run this: they write the same values. dlsym may call us again on this thread.
void resolve_symbols() {
  if (resolved.load(std::memory_order_acquire) || resolving) return;
  resolving = true;
  static_assert(sizeof(Real) % sizeof(void*) == 0);
  auto** entry = reinterpret_cast<void**>(&real);
  for (const char* name = kNames; *name != 0; name += __builtin_strlen(name) + 1, entry++) {
    if (void* found = dlsym(RTLD_NEXT, name); found != nullptr) *entry = found;
  }
  fill_kernel_table();
  resolved.store(true, std::memory_order_release);
  resolving = false;
}

}  // namespace bypass::preload
