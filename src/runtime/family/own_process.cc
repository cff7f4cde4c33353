#include "runtime/family/own_process.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "os/os.h"
#include "runtime/host.h"

namespace bypass::runtime {

pid_t fork_plainly() {
  using Fork = pid_t (*)();
  static const auto call = reinterpret_cast<Fork>(backend_host().libc("_Fork"));
  errno = ENOSYS;
  return call == nullptr ? -1 : call();
}

void reap(pid_t child) {
  sigset_t chld, pending;
  sigemptyset(&chld);
  sigaddset(&chld, SIGCHLD);
  sigpending(&pending);
  const bool others = sigismember(&pending, SIGCHLD) == 1;
  while (os::call(SYS_wait4, child, 0, __WALL, 0) == -EINTR) {
  }
  const timespec now{};
  if (!others) os::call(SYS_rt_sigtimedwait, os::address(&chld), 0, os::address(&now), 8);
}

void name_process(const char* name) {
  os::call(SYS_prctl, PR_SET_NAME, os::address(name));
}

void ignore_signals() {
  using Action = int (*)(int, const struct sigaction*, struct sigaction*);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;  // else no child can be waited for
  reinterpret_cast<Action>(backend_host().libc("sigaction"))(SIGCHLD, &plain, nullptr);
}

}  // namespace bypass::runtime
