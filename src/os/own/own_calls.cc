#include "os/own/own_calls.h"

#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/os.h"

namespace bypass::runtime {

namespace {

constexpr auto kCalls = std::to_array<OwnCall>({
    {SYS_epoll_create1, "epoll_create1"},
    {SYS_epoll_ctl, "epoll_ctl", EPOLL_CTL_ADD},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_eventfd2, "eventfd2"},
    {SYS_ppoll, "ppoll"},
    {SYS_futex, "futex", FUTEX_WAKE},
    {SYS_sendmsg, "sendmsg"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_ioctl, "ioctl", FIONREAD},
    {SYS_fcntl, "fcntl", F_GETFD},
    {SYS_dup, "dup"},
    {SYS_getsockopt, "getsockopt", SOL_SOCKET},
    {SYS_getsockname, "getsockname"},
    {SYS_getpeername, "getpeername"},
    {SYS_gettid, "gettid"},  // the thread id in the lock
    {SYS_getpid, "getpid"},
    {SYS_getrandom, "getrandom"},  // the only source of sequence numbers and keys
    {SYS_read, "read"},
    {SYS_write, "write"},
});

/// Arguments of -1 are invalid as descriptor, address and flags. So the call has no effect, and a kernel gives no such
/// answer.
bool is_refused(const OwnCall& call) {
  const long second = call.second != 0 ? call.second : -1;
  const long r = os::call(call.number, -1, second, -1, -1, -1, -1);
  return r == -EPERM || r == -ENOSYS || r == -EACCES;
}

}  // namespace

std::span<const OwnCall> own_calls() {
  return kCalls;
}

const OwnCall* find_refused_call() {
  if (os::call(SYS_prctl, PR_GET_SECCOMP) == SECCOMP_MODE_DISABLED) return nullptr;
  const auto* const found = std::find_if(kCalls.begin(), kCalls.end(), is_refused);
  return found == kCalls.end() ? nullptr : found;
}

}  // namespace bypass::runtime
