// unshare and setns: the kernel lets some namespaces be changed by a process of one thread only, and the program may
// not know of ours.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "preload/acceleration.h"
#include "preload/inside.h"
#include "preload/symbols.h"
#include "runtime/process.h"
#include "socket/cancellation.h"

namespace bypass::preload {
namespace {

// mount_namespaces(7), user_namespaces(7): EINVAL; time_namespaces(7): EUSERS.
bool may_mean_several_threads(int error) {
  return error == EINVAL || error == EUSERS;
}

template <typename Call>
int alone_if_need_be(Call call) {
  const int before = errno;
  const int result = call();
  if (result == 0 || !may_mean_several_threads(errno) || !has_started() || goes_straight()) return result;
  const int refused = errno;
  const socket::CancellationOff off;  // these are no cancellation points
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  int again = result, error = refused;
  if (runtime::pause_threads()) {
    errno = before;
    again = call();
    error = errno;
    runtime::resume_threads();
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  errno = error;
  return again;
}

BYPASS_EXPORT(int, unshare, (int flags)) {
  return alone_if_need_be([=] { return real.unshare(flags); });
}

BYPASS_EXPORT(int, setns, (int fd, int type)) {
  return alone_if_need_be([=] { return real.setns(fd, type); });
}

}  // namespace
}  // namespace bypass::preload
