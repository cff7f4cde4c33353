// unshare and setns: the kernel lets some namespaces be changed by a process of one thread only, and the program may
// not know of ours.
#include <errno.h>
#include <linux/nsfs.h>
#include <sched.h>

#include "preload/acceleration.h"
#include "preload/calls/process/credentials.h"
#include "preload/numbers.h"
#include "preload/straight.h"
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

/// A process in another user namespace has no rights over those that stay. One of several threads is refused it
/// (user_namespaces(7)).
template <typename Call>
int change_namespaces(bool of_users, const Call& call) {
  const auto made = [](const void* argument) { return alone_if_need_be(*static_cast<const Call*>(argument)); };
  return of_users && runtime::has_one_thread() ? change_user_namespace(made, &call) : made(&call);
}

/// setns(2): what `fd` is, where the type does not say it. A pidfd has a type always.
int type_of(int fd, int type) {
  if (type != 0) return type;
  const int found = real.ioctl(fd, NS_GET_NSTYPE);
  return found < 0 ? 0 : found;
}

void before_network_change() {
  const KeepErrno keep;
  if (has_started() && !goes_straight()) runtime::before_network_change();
}

BYPASS_EXPORT(int, unshare, (int flags)) {
  if ((flags & CLONE_NEWNET) != 0) before_network_change();
  return change_namespaces((flags & CLONE_NEWUSER) != 0, [=] { return real.unshare(flags); });
}

BYPASS_EXPORT(int, setns, (int fd, int type)) {
  const int before = errno;
  const int of = has_started() ? type_of(fd, type) : 0;
  errno = before;
  const bool of_users = (of & CLONE_NEWUSER) != 0;
  if ((of & CLONE_NEWNET) != 0) before_network_change();
  return change_namespaces(of_users, [=] { return real.setns(fd, type); });
}

}  // namespace
}  // namespace bypass::preload
