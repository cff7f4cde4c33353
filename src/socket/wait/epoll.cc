#include "socket/wait/epoll.h"

#include <sys/stat.h>

#include <algorithm>

#include "os/errno_map.h"
#include "os/os.h"
#include "os/program_memory.h"
#include "socket/objects.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/kernel_sleep.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

/// Bits of an item that are no events. A one-shot item that has fired keeps only these.
constexpr std::uint32_t kFlags = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
/// Bits that are allowed beside EPOLLEXCLUSIVE (EPOLLEXCLUSIVE_OK_BITS in fs/eventpoll.c).
constexpr std::uint32_t kExclusiveOk =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

void enqueue(EpollItem& item) {
  Epoll& set = *item.set;
  item.ready = true;
  item.ready_next = nullptr;
  (set.ready_tail != nullptr ? set.ready_tail->ready_next : set.ready_head) = &item;
  set.ready_tail = &item;
}

EpollItem* find_item(const Epoll& set, const File& target, int fd) {
  for (EpollItem* item = target.items; item != nullptr; item = item->target_next)
    if (item->set == &set && item->fd == fd) return item;
  return nullptr;
}

void unlink_from_target(EpollItem& item) {
  for (EpollItem** at = &item.target->items; *at != nullptr; at = &(*at)->target_next) {
    if (*at != &item) continue;
    *at = item.target_next;
    return;
  }
}

// Takes the item off its target's list. It is freed now, or by the thread that takes it off the ready list.
void remove_item(EpollItem& item) {
  unlink_from_target(item);
  Epoll& set = *item.set;
  set.bypass_items.fetch_sub(1, std::memory_order_relaxed);
  if (has_kernel_half(*item.target)) set.dual_items.fetch_sub(1, std::memory_order_relaxed);
  item.target = nullptr;
  if (item.ready)
    item.gone = true;
  else
    objects->items.free(&item);
}

std::uint32_t bits_now(const EpollItem& item) {
  return item.gone ? 0 : poll_bits(*item.target) & item.events;
}

// A set that is in another set is also in the kernel's set, with no events. So the kernel knows all nesting, also of
// sets that are not ours, and refuses loops, depth and too many paths (EP_MAX_NESTS, reverse_path_check() in
// fs/eventpoll.c).
long nest_in_kernel(int epoll_fd, int fd) {
  epoll_event nothing{};
  return os::call(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_ADD, fd, os::address(&nothing));
}

long refuse(const Epoll& set, int operation, const File& target, const epoll_event* event) {
  if (&set == &target) return failure(Error::kInvalid);
  if (event == nullptr || (event->events & EPOLLEXCLUSIVE) == 0) return 0;
  if (operation == EPOLL_CTL_MOD) return failure(Error::kInvalid);
  if (operation == EPOLL_CTL_ADD && (target.kind == FileKind::kEpoll || (event->events & ~kExclusiveOk) != 0))
    return failure(Error::kInvalid);
  return 0;
}

void note_seen(EpollItem& item) {
  const Readiness& r = item.target->readiness;
  item.seen_in = r.in;
  item.seen_out = r.out;
  item.seen_hup = r.hup;
  item.seen_err = r.err;
}

// As the kernel after ADD and MOD: what is ready now is reported, even if the item is edge-triggered.
void report_present(EpollItem& item) {
  note_seen(item);
  if (bits_now(item) != 0) item_signalled(item);
}

// Whether it is known, without a call of the kernel, that nothing has come yet.
bool is_known_empty(File& target) {
  return calls_of(target).is_known_empty(target);
}

// Earlier events of other items that were not heard yet must come before those of an added item. So both rings and
// kernel are heard while the item is not in the set, because its own events may come by either. This is not done before
// MOD, nor if nothing has come yet: programs make these calls for each request, and this look asks the kernel.
void hear_of_others(const Epoll& set, File& target, std::uint32_t events) {
  if ((events & kIn) == 0 || set.dual_items.load(std::memory_order_relaxed) == 0 || is_known_empty(target)) return;
  hear_kernel_halves();
  (void)poll_local();
}

// Threads that sleep in this set, or in one that contains it, now wait for one more object.
void arm_for_sleepers(File& target) {
  if (!is_waited_for(target)) return;
  if (target.kind == FileKind::kEpoll)
    (void)arm_local();
  else
    calls_of(target).add_sleeper(socket_of(target));
}

long add_item(Epoll& set, int epoll_fd, int fd, File& target, const epoll_event& event, bool& called) {
  if (find_item(set, target, fd) != nullptr) return failure(Refusal::kExists);
  if (target.kind == FileKind::kEpoll) {
    if (const long r = nest_in_kernel(epoll_fd, fd); r < 0) return r;
    watch_kernel_half(target, fd);
  }
  if (target.kind == FileKind::kDatagram || calls_of(target).in_kernel) watch_kernel_half(target, fd);
  hear_of_others(set, target, event.events);
  EpollItem* item = objects->items.allocate();
  if (item == nullptr) return failure(Error::kNoMemory);
  item->set = &set;
  item->target = &target;
  item->fd = fd;
  item->data = event.data;
  item->events = event.events | kAlways;
  item->target_next = target.items;
  target.items = item;
  // This comes before the check for sleepers. KernelSleep does the two steps in the opposite order.
  const bool first = set.bypass_items.fetch_add(1, std::memory_order_relaxed) == 0;
  const bool first_dual = has_kernel_half(target) && set.dual_items.fetch_add(1, std::memory_order_relaxed) == 0;
  // A thread that sleeps in the set does not look at the wire or at the kernel's halves.
  if (first || first_dual) signal_idle(set);
  if (first) called = call_kernel_sleepers(set, epoll_fd);
  report_present(*item);
  arm_for_sleepers(target);
  return 0;
}

long modify_item(Epoll& set, int fd, File& target, const epoll_event& event) {
  EpollItem* item = find_item(set, target, fd);
  if (item == nullptr) return failure(Refusal::kNotThere);
  if ((item->events & EPOLLEXCLUSIVE) != 0) return failure(Error::kInvalid);
  item->data = event.data;
  item->events = event.events | kAlways;
  report_present(*item);
  arm_for_sleepers(target);
  return 0;
}

// An exclusive item is removed. If it alone was told of an event that is still there, another item must be told.
void remove_and_pass_on(EpollItem& item) {
  File& target = *item.target;
  const std::uint32_t left = (item.events & EPOLLEXCLUSIVE) != 0 && item.ready ? bits_now(item) : 0;
  remove_item(item);
  if (left == 0) return;
  for (EpollItem* next = target.items; next != nullptr; next = next->target_next)
    if ((next->events & EPOLLEXCLUSIVE) != 0 && (next->events & left) != 0 && item_signalled(*next)) return;
}

long delete_item(Epoll& set, int epoll_fd, int fd, File& target) {
  EpollItem* item = find_item(set, target, fd);
  if (item == nullptr) return failure(Refusal::kNotThere);
  epoll_event unused{};
  if (target.kind == FileKind::kEpoll) os::call(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_DEL, fd, os::address(&unused));
  remove_and_pass_on(*item);
  return 0;
}

long control_kernel(Epoll& set, int epoll_fd, int operation, int fd, epoll_event* event) {
  if (kernel->epoll_ctl(epoll_fd, operation, fd, event) != 0) return kernel_failure();
  if (operation != EPOLL_CTL_ADD || set.kernel_items.exchange(true, std::memory_order_relaxed)) return 0;
  Guard guard(shard());
  signal_idle(set);  // a sleeper has to add the kernel's set to its poll
  return 0;
}

}  // namespace

bool item_signalled(EpollItem& item) {
  note_seen(item);
  if (!item.ready) enqueue(item);
  // A thread that was called and has not come yet may take only one event.
  bool somebody_sleeps = false;
  for (const WaitLink* link = item.set->waiters; link != nullptr; link = link->next)
    somebody_sleeps = somebody_sleeps || !link->waiter->called;
  signal(*item.set, kIn);
  return somebody_sleeps;
}

void forget_target(File& target) {
  while (target.items != nullptr) remove_item(*target.items);
}

namespace {

/// Whether both numbers refer to one file: a closed number may belong to another file by now.
bool is_same_file(int a, int b) {
  struct stat first {
  }, second{};
  const bool known =
      os::call(SYS_fstat, a, os::address(&first)) == 0 && os::call(SYS_fstat, b, os::address(&second)) == 0;
  return known && first.st_ino == second.st_ino && first.st_dev == second.st_dev;
}

/// Adds the item to the kernel's set under its number, or under `another` if that was closed.
void add_to_kernel(const EpollItem& item, int another) {
  Epoll& set = *item.set;
  epoll_event event{};
  event.events = item.events & ~kAlways;
  event.data = item.data;
  const int number = kernel_half_state(set).set_number;
  const bool by_another = another >= 0 && another != item.fd && !is_same_file(item.fd, another);
  if (number >= 0) kernel->epoll_ctl(number, EPOLL_CTL_ADD, by_another ? another : item.fd, &event);
  set.kernel_items.store(true, std::memory_order_relaxed);
}

}  // namespace

void move_items_to_kernel(File& target, int another) {
  while (target.items != nullptr) {
    Epoll& set = *target.items->set;
    add_to_kernel(*target.items, another);
    remove_item(*target.items);
    signal_idle(set);
  }
}

bool is_watched_here(const File& target) {
  for (const EpollItem* item = target.items; item != nullptr; item = item->target_next)
    if (kernel_half_state(*item->set).set_number >= 0) return true;
  return false;
}

bool can_move_items(const File& target) {
  for (const EpollItem* item = target.items; item != nullptr; item = item->target_next) {
    const bool is_spent = (item->events & EPOLLONESHOT) != 0 && (item->events & ~kFlags) == 0;
    if (is_spent || kernel_half_state(*item->set).set_number < 0) return false;
  }
  return true;
}

void keep_items_in_kernel(File& target, int fd) {
  const bool has_more = !calls_of(target).in_kernel;  // true if the object has more than the kernel's side: the wire's
  if (has_more && !has_kernel_half(target)) return;
  for (EpollItem* item = target.items; item != nullptr;) {
    EpollItem& here = *item;
    item = here.target_next;
    if (kernel_half_state(*here.set).set_number < 0) continue;
    add_to_kernel(here, fd);
    signal_idle(*here.set);
    if (!has_more) remove_item(here);
  }
}

void count_dual(File& target, int change) {
  for (EpollItem* item = target.items; item != nullptr; item = item->target_next) {
    item->set->dual_items.fetch_add(static_cast<std::uint32_t>(change), std::memory_order_relaxed);
    if (change > 0) signal_idle(*item->set);
  }
}

void end_epoll(Epoll& epoll) {
  unwatch_kernel_half(epoll);
  objects->items.for_each([&](EpollItem& item) {
    if (item.set == &epoll && !item.gone) remove_and_pass_on(item);
  });
  while (EpollItem* item = epoll.ready_head) {
    epoll.ready_head = item->ready_next;
    objects->items.free(item);
  }
}

std::size_t harvest(Epoll& set, std::span<epoll_event> out) {
  EpollItem* list = set.ready_head;
  EpollItem* const last = set.ready_tail;
  set.ready_head = set.ready_tail = nullptr;
  std::size_t n = 0, room = 0;
  while (list != nullptr && n < out.size()) {
    if (n == room) room += writable_front(&out[n], std::min(out.size() - n, kEventsLookedAt), sizeof out[n]);
    if (n == room) break;
    EpollItem& item = *list;
    list = item.ready_next;
    item.ready = false;
    if (item.gone) {
      objects->items.free(&item);
      continue;
    }
    const std::uint32_t bits = bits_now(item);
    if (bits == 0) continue;
    out[n].events = bits;
    out[n].data = item.data;
    n++;
    if ((item.events & EPOLLONESHOT) != 0)
      item.events &= kFlags;
    else if ((item.events & EPOLLET) == 0 && !item.ready)  // poll_bits() may have signalled the item itself
      enqueue(item);
  }
  if (list != nullptr) {  // there was no room for these: they come first next time
    last->ready_next = set.ready_head;
    if (set.ready_tail == nullptr) set.ready_tail = last;
    set.ready_head = list;
  }
  return n;
}

std::uint32_t epoll_bits(Epoll& epoll) {
  for (const EpollItem* item = epoll.ready_head; item != nullptr; item = item->ready_next)
    if (bits_now(*item) != 0) return kIn;
  KernelHalf* const half = kernel_half(epoll);
  if (half == nullptr || !half->in || half->set_number < 0) return 0;
  half->in = os::readable(half->set_number);
  return half->in ? kIn : 0U;
}

namespace {

// Called without the lock.
long control_ours(Epoll& set, int epoll_fd, int operation, int fd, File& target, const epoll_event* event,
                  bool& called) {
  Guard guard(shard());
  note_set_number(set, epoll_fd);
  if (const long r = refuse(set, operation, target, event); r != 0) return r;
  switch (operation) {
    case EPOLL_CTL_ADD:
      return add_item(set, epoll_fd, fd, target, *event, called);
    case EPOLL_CTL_MOD:
      return modify_item(set, fd, target, *event);
    case EPOLL_CTL_DEL:
      return delete_item(set, epoll_fd, fd, target);
    default:
      return failure(Error::kInvalid);
  }
}

}  // namespace

long epoll_control(File& file, int epoll_fd, int operation, int fd, File* target, epoll_event* event) {
  auto& set = static_cast<Epoll&>(file);
  const bool ours = target != nullptr && target->alive && !decided_for_kernel(*target);
  if (!ours) {
    {
      const Guard guard(shard());
      note_set_number(set, epoll_fd);
    }
    return control_kernel(set, epoll_fd, operation, fd, event);
  }
  if (event == nullptr && operation != EPOLL_CTL_DEL) return failure(Refusal::kBadPointer);
  bool called = false;
  const long r = control_ours(set, epoll_fd, operation, fd, *target, event, called);
  if (called) await_kernel_sleepers(set, epoll_fd);
  return r;
}

}  // namespace bypass::socket
