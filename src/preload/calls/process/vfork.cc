#include "preload/calls/process/vfork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/in_handler.h"
#include "os/own/own_descriptors.h"
#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "runtime/host.h"
#include "runtime/process.h"
#include "socket/family/kin.h"

namespace bypass::preload {

namespace {

/// A pipe that exec closes. Its write end is the child's alone: the parent reads its end when that has happened.
class UntilExec {
 public:
  UntilExec() {
    std::array<int, 2> ends{-1, -1};
    if (os::call(SYS_pipe2, os::address(ends.data()), O_CLOEXEC) != 0) return;
    // Above the program's numbers. A forked child closes what is the library's own: so they are not, for the fork.
    for (std::size_t i = 0; i < ends.size(); i++) ends_[i] = runtime::own_high(ends[i]);
    protect(false);
  }
  UntilExec(const UntilExec&) = delete;
  UntilExec& operator=(const UntilExec&) = delete;

  /// In the child, whose program is not to close it.
  void keep_in_child() {
    close_end(0);
    if (ends_[1] >= 0) runtime::own_descriptor(ends_[1], true);
  }
  void wait() {
    char none;
    close_end(1);
    while (ends_[0] >= 0 && os::read(ends_[0], &none, 1) == -EINTR) {
    }
    close_end(0);
  }
  void drop() {
    close_end(0);
    close_end(1);
  }

 private:
  void protect(bool own) {
    for (const int fd : ends_)
      if (fd >= 0) runtime::own_descriptor(fd, own);
  }
  void close_end(std::size_t i) {
    if (ends_[i] >= 0) os::close(ends_[i]);
    ends_[i] = -1;
  }

  std::array<int, 2> ends_{-1, -1};
};

}  // namespace

bool has_sockets_for_children() {
  if (!has_started() || goes_straight() || is_filtered() || socket::is_in_handler()) return false;
  const KeepErrno keep;
  return socket::refers_to_wire();
}

pid_t fork_and_wait_for_exec() {
  const socket::CancellationOff off;
  const int before = errno;
  UntilExec life;
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  runtime::expect_exec_in_child(true);
  const pid_t child = ::fork();  // the child allocates memory: libc's fork() takes care of other threads' locks
  const int problem = errno;
  runtime::expect_exec_in_child(false);
  if (child == 0)
    life.keep_in_child();
  else
    child > 0 ? life.wait() : life.drop();
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  errno = child < 0 ? problem : before;
  return child;
}

}  // namespace bypass::preload
