#include "runtime/high_numbers.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "os/os.h"
#include "os/own/in_handler.h"
#include "runtime/host.h"

namespace bypass::runtime {

namespace {

/// The kernel's table has a place for each number up to the highest: 4,096 numbers cost 32 KiB, and a copy at each
/// fork.
constexpr rlim_t kHighest = 4096;
/// More than the library needs.
constexpr rlim_t kRoom = 1024;

long set_limits(const rlimit& limits) {
  return os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, os::address(&limits));
}

long duplicate(int fd, rlim_t from) {
  return os::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, static_cast<long>(from));
}

struct Raised {
  int fd;
  rlim_t from;
  rlimit limits;
  long copy = -1;
};

/// Runs in the child, which has a stack of its own in its parent's memory: only system calls are allowed.
int copy_in_child(void* argument) {
  auto& raised = *static_cast<Raised*>(argument);
  if (set_limits(raised.limits) == 0) raised.copy = duplicate(raised.fd, raised.from);
  return 0;
}

void copy_by_child(Raised& raised) {
  constexpr std::size_t kStack = 4096;
  alignas(16) std::array<std::byte, kStack> stack;
  // It sends no signal at its end, and no wait() of the program reports it.
  const int child = clone(copy_in_child, stack.data() + stack.size(), CLONE_VM | CLONE_FILES | CLONE_VFORK, &raised);
  if (child > 0) os::call(SYS_wait4, child, 0, __WCLONE, 0);
}

void copy_here(Raised& raised, const rlimit& before) {
  if (set_limits(raised.limits) != 0) return;
  raised.copy = duplicate(raised.fd, raised.from);
  set_limits(before);
}

/// All threads but the caller's are ours, and the caller's is not: nobody reads the limit, and nobody forks.
bool is_only_thread() {
  if (is_own_thread()) return false;
  if (__libc_single_threaded != 0) return true;
  return all_threads() == 1 + own_threads();
}

bool may_raise() {
  return os::call(SYS_prctl, PR_GET_SECCOMP) == 0;
}

/// -1: there is no number above the limit, or none can be had.
long copy_above_limit(int fd) {
  rlimit limits{};
  if (os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, os::address(&limits)) != 0) return -1;
  if (limits.rlim_cur >= kHighest || !may_raise()) return -1;
  const bool here = is_only_thread();
  if (!here && socket::is_in_handler()) return -1;  // its stack may be small
  // If the hard limit equals the soft one, a process with the right to raises it, too.
  const rlim_t most = limits.rlim_cur + kRoom;
  Raised raised{fd, limits.rlim_cur, {std::min(most, limits.rlim_max), limits.rlim_max}};
  if (limits.rlim_max == limits.rlim_cur) raised.limits = {most, most};
  const std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before = 0;
  os::call(SYS_rt_sigprocmask, SIG_SETMASK, os::address(&all), os::address(&before), sizeof all);
  here ? copy_here(raised, limits) : copy_by_child(raised);
  os::call(SYS_rt_sigprocmask, SIG_SETMASK, os::address(&before), 0, sizeof before);
  return raised.copy;
}

}  // namespace

rlim_t soft_limit() {
  rlimit limits{};
  return os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, os::address(&limits)) == 0 ? limits.rlim_cur : 3;
}

int descriptor_base() {
  constexpr rlim_t kHighestBase = 4000;
  const rlim_t soft = soft_limit();
  return static_cast<int>(std::min(soft - soft / 8, kHighestBase));
}

int copy_within_limit(int fd) {
  const int saved = errno;
  const long copy = duplicate(fd, static_cast<rlim_t>(descriptor_base()));
  errno = saved;
  return copy < 0 ? -1 : static_cast<int>(copy);
}

int copy_high(int fd) {
  const int saved = errno;
  const long copy = copy_above_limit(fd);
  errno = saved;  // undoes clone()'s change
  return copy >= 0 ? static_cast<int>(copy) : copy_within_limit(fd);
}

}  // namespace bypass::runtime
