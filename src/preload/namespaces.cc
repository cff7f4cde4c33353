// unshare and setns: the kernel lets some namespaces be changed by a process of one thread only, and the program may
// not know of ours.
#include <errno.h>
#include <sched.h>

#include "preload/acceleration.h"
#include "preload/inside.h"
#include "preload/symbols.h"
#include "runtime/process.h"
#include "runtime/undisturbed.h"

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
  const runtime::Undisturbed undisturbed;
  if (!runtime::pause_threads()) {
    errno = refused;
    return result;
  }
  errno = before;
  const int again = call();
  const int error = errno;
  runtime::resume_threads();
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
