// epoll sets: a set of ours holds both kernel descriptors and sockets of ours.
#include <limits.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <optional>

#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/timeouts.h"
#include "socket/wait/kernel_sleep.h"

namespace bypass::preload {
namespace {

/// False: there is no memory for it. The kernel's own set would report nothing about our sockets.
[[gnu::noinline]] bool adopt_epoll(int fd) {
  KeepErrno keep;
  drop_stale_number(fd);
  if (!is_accelerating()) return true;
  File* const file = socket::open_epoll(fd);
  if (file != nullptr) enter_number(fd, file);
  return file != nullptr;
}

int adopt_or_refuse(int fd) {
  if (fd < 0 || adopt_epoll(fd)) return fd;
  return refuse_without_memory(fd, ENOMEM, "epoll_create() was answered with ENOMEM");
}

BYPASS_EXPORT(int, epoll_create, (int size)) {
  return adopt_or_refuse(make_number([=] { return real.epoll_create(size); }));
}

BYPASS_EXPORT(int, epoll_create1, (int flags)) {
  return adopt_or_refuse(make_number([=] { return real.epoll_create1(flags); }));
}

int control_set(int set, int operation, int fd, epoll_event* event) {
  Use use(set, Use::kEpoll);
  if (!use) return real.epoll_ctl(set, operation, fd, event);
  epoll_event asked{};
  if (operation != EPOLL_CTL_DEL && !socket::copy_from_program(asked, event))
    return static_cast<int>(use.finish(-EFAULT));
  event = &asked;
  Use target(fd, Use::kAny, use);
  return static_cast<int>(
      use.finish(socket::epoll_control(*use, set, operation, fd, target ? &*target : nullptr, event)));
}

// A set whose making we did not see watches its first socket of ours. Removing something that is not in it gives ENOENT
// for a set, and EINVAL for any other descriptor.
void adopt_unseen_epoll(int set, int fd) {
  KeepErrno keep;
  if (real.epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) != 0 && errno != ENOENT) return;
  if (!adopt_epoll(set)) return;
  const Use use(set, Use::kEpoll);
  if (use) socket::note_unseen_items(*use);
}

BYPASS_EXPORT(int, epoll_ctl, (int set, int operation, int fd, epoll_event* event)) {
  if (!is_tracked(set)) [[likely]] {
    if (!is_tracked(fd)) [[likely]]
      return real.epoll_ctl(set, operation, fd, event);
    if (operation == EPOLL_CTL_ADD) adopt_unseen_epoll(set, fd);
  }
  return control_set(set, operation, fd, event);
}

int wait_for_set(int set, epoll_event* events, int count, Duration timeout, const sigset_t* mask, const Use& use) {
  pthread_testcancel();
  if (count <= 0 || count > INT_MAX / static_cast<int>(sizeof(epoll_event))) {
    errno = EINVAL;
    return -1;
  }
  const Mask masked(mask);
  // Programs have room for thousands of events: the room after the first few is checked only when events reach it.
  const std::size_t few = std::min(static_cast<std::size_t>(count), socket::kEventsLookedAt);
  const std::size_t front = socket::writable_front(events, few, sizeof *events);
  if (!masked || front == 0) return static_cast<int>(use.finish(-EFAULT));
  const std::size_t room = front < few ? front : static_cast<std::size_t>(count);
  return static_cast<int>(
      use.finish(socket::epoll_wait(*use, set, events, static_cast<int>(room), timeout, masked.get())));
}

/// `call` is the program's own. It is made if the set has nothing of ours, or is the kernel's. No Use protects it: an
/// object's place stays readable after its end, and nothing is changed there.
template <typename Call>
[[gnu::always_inline]] inline int wait_by(Call call, int set, epoll_event* events, int count, Duration timeout,
                                          const sigset_t* mask) {
  const Entry entry = fd_table.load(set);
  if (!entry.is_epoll() || goes_straight()) return call();
  if (timeout == Duration{} && socket::is_kernels_alone(*entry.file())) return call();
  const Deadline deadline(timeout);
  {
    socket::KernelSleep sleep(*entry.file(), timeout != Duration{});
    if (sleep) {
      const std::optional<int> told = sleep.told(set, events, call());
      if (told.has_value()) [[likely]]
        return *told;
    }
  }
  const Use use(set, Use::kEpoll);
  return use ? wait_for_set(set, events, count, deadline.left(), mask, use) : call();
}

[[gnu::noinline]] int epoll_wait_tracked(int set, epoll_event* events, int count, int timeout) {
  const auto call = [=] { return real.epoll_wait(set, events, count, timeout); };
  return wait_by(call, set, events, count, from_milliseconds(timeout), nullptr);
}

BYPASS_EXPORT(int, epoll_wait, (int set, epoll_event* events, int count, int timeout)) {
  if (!is_tracked(set)) [[likely]]
    return real.epoll_wait(set, events, count, timeout);
  return epoll_wait_tracked(set, events, count, timeout);
}

BYPASS_EXPORT(int, epoll_pwait, (int set, epoll_event* events, int count, int timeout, const sigset_t* mask)) {
  const auto call = [=] { return real.epoll_pwait(set, events, count, timeout, mask); };
  if (!is_tracked(set)) [[likely]]
    return call();
  return wait_by(call, set, events, count, from_milliseconds(timeout), mask);
}

BYPASS_EXPORT(int, epoll_pwait2,
              (int set, epoll_event* events, int count, const timespec* timeout, const sigset_t* mask)) {
  const auto call = [=] { return real.epoll_pwait2(set, events, count, timeout, mask); };
  const timespec* limit = timeout;
  Taken<timespec> taken;
  if (!is_tracked(set) || !taken.take(limit) || !is_valid(limit)) [[likely]]
    return call();
  return wait_by(call, set, events, count, from_timespec(limit), mask);
}

}  // namespace
}  // namespace bypass::preload
