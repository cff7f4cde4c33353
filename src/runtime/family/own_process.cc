#include "runtime/family/own_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "os/os.h"
#include "runtime/host.h"

namespace bypass::runtime {

pid_t fork_plainly() {
  using Fork = pid_t (*)();
  static const auto call = reinterpret_cast<Fork>(backend_host().libc("_Fork"));
  errno = ENOSYS;
  return call == nullptr ? -1 : call();
}

pid_t fork_unheard() {
  constexpr long kNoSignal = 0;  // clone(2): the lowest byte of the flags
  return static_cast<pid_t>(os::call(SYS_clone, kNoSignal, 0, 0, 0, 0));
}

void reap(pid_t child) {
  while (os::call(SYS_wait4, child, 0, __WALL, 0) == -EINTR) {
  }
}

void name_process(const char* name) {
  os::call(SYS_prctl, PR_SET_NAME, os::address(name));
}

void name_command_line(const char* name) {
  constexpr int kArgumentsBegin = 48 - 3;  // proc_pid_stat(5), counted from the state, which follows the name
  std::array<char, 1024> text{};
  const auto fd = static_cast<int>(os::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return;
  (void)os::read(fd, text.data(), text.size() - 1);
  os::close(fd);
  char* at = std::strrchr(text.data(), ')');
  for (int field = 0; at != nullptr && field <= kArgumentsBegin; field++) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return;
  auto* const begin = reinterpret_cast<char*>(std::strtoul(at, &at, 10));
  auto* const end = reinterpret_cast<char*>(std::strtoul(at, &at, 10));
  if (begin == nullptr || end <= begin) return;
  std::memset(begin, 0, static_cast<std::size_t>(end - begin));
  std::strncpy(begin, name, static_cast<std::size_t>(end - begin - 1));
}

void leave_group() {
  os::call(SYS_setsid);
}

void ignore_signals() {
  using Action = int (*)(int, const struct sigaction*, struct sigaction*);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;  // with SIGCHLD ignored, no child could be waited for
  reinterpret_cast<Action>(backend_host().libc("sigaction"))(SIGCHLD, &plain, nullptr);
}

}  // namespace bypass::runtime
