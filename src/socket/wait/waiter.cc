// A thread's Waiter (wait.h): what it holds of objects, who wakes it, and how this is undone when the thread is gone.
// Tests: tests/socket/kin_test.cc, tests/socket/kin_death_test.cc.
#include <pthread.h>
#include <sys/eventfd.h>

#include <new>
#include <utility>

#include "os/own/in_handler.h"
#include "socket/family/doorbell.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/socket.h"
#include "socket/wait/readiness.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

void undo_hold(const Waiter::Hold& hold) {
  hold.file->users--;
  if (hold.flag != 0) socket_of(*hold.file).clear(hold.flag);
}

/// Undoes holds of calls that no longer exist, as seen from stack address `bound`.
void drop_holds(Guard& guard, Waiter& waiter, std::uintptr_t bound) {
  for (std::uint32_t i = waiter.held; i-- > 0;) {
    const Waiter::Hold hold = waiter.holds[i];
    if (!is_abandoned(hold.frame, bound)) continue;
    waiter.holds[i] = waiter.holds[--waiter.held];
    undo_hold(hold);
    if (hold.flag == kWriting) give_room_back(guard.context(), socket_of(*hold.file));
    signal_idle(*hold.file);
    end_if_unused(guard, *hold.file);  // may release the lock for a moment, and a handler may run
    i = waiter.held;
  }
}

thread_local constinit Waiter* thread_waiter = nullptr;
bool is_forked = false;

/// Called when the waiter's thread ends.
void give_waiter_back(void*) {
  Waiter* const waiter = std::exchange(thread_waiter, nullptr);
  thread_signals.kernel_set = nullptr;
  if (waiter == nullptr || !has_shard() || shard().ended()) return;
  Guard guard(shard());
  if (waiter->target.slot != shard().family().slot()) return;  // it is the parent's
  unlink_waiter(*waiter);
  drop_holds(guard, *waiter, UINTPTR_MAX);
  waiter->kernel_set.store(nullptr, std::memory_order_relaxed);
  waiter->free_next = objects->idle_waiters;
  objects->idle_waiters = waiter;
}

/// A pthread key is used. A thread_local's destructor would allocate at its registration, and this may be a handler
/// that has interrupted malloc. The first 32 keys of a process need no memory. If a handler gets a later key, the
/// waiter stays taken. Lock held.
void call_at_thread_end() {
  static pthread_key_t key;
  static bool made = false;
  if (!made) made = pthread_key_create(&key, give_waiter_back) == 0;
  if (made && (key < 32 || !is_in_handler())) pthread_setspecific(key, &thread_waiter);
}

void link_one(WaitLink& link, Waiter& waiter, File& file, std::uint32_t mask, bool exclusive) {
  link = {&waiter, nullptr, &file, mask, exclusive};
  // In the order of arrival: of exclusive waiters the one that has slept longest is called first.
  WaitLink** end = &file.waiters;
  while (*end != nullptr) end = &(*end)->next;
  *end = &link;
}

void unlink_one(WaitLink& link) {
  if (link.file == nullptr) return;
  File& file = *link.file;
  for (WaitLink** at = &file.waiters; *at != nullptr; at = &(*at)->next) {
    if (*at != &link) continue;
    *at = link.next;
    break;
  }
  link.file = nullptr;
  // It alone was called, and leaves something behind: the next waiter is called.
  if (link.exclusive && link.waiter->called) pass_on(file, link.mask);
}

int make_event_fd() {
  int fd = kernel->eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  fd = policy.own_descriptor(fd);
  return fd;
}

// A waiter that a thread of this process has left, otherwise a new one. Lock held.
Waiter* find_waiter() {
  const std::uint32_t slot = shard().family().slot();
  for (Waiter** at = &objects->idle_waiters; *at != nullptr; at = &(*at)->free_next) {
    Waiter& idle = **at;
    if (idle.target.slot != slot) continue;
    *at = idle.free_next;
    return &idle;
  }
  Waiter* made = objects->waiters.allocate();
  if (made != nullptr) made->target.slot = slot;
  return made;
}

/// The calling thread's waiter, which may not be able to sleep yet. Lock held.
Waiter* record() {
  if (thread_waiter == nullptr && prepare_objects(shard())) {
    thread_waiter = find_waiter();
    thread_signals.kernel_set = thread_waiter != nullptr ? &thread_waiter->kernel_set : nullptr;
    call_at_thread_end();
  }
  return thread_waiter;
}

}  // namespace

Waiter* my_record() {
  if (thread_waiter != nullptr) [[likely]]
    return thread_waiter;
  Guard guard(shard());
  return record();
}

Waiter* my_waiter() {
  if (my_record() == nullptr) return nullptr;
  Waiter& waiter = *thread_waiter;
  if (waiter.target.event_fd < 0) waiter.target.event_fd = make_event_fd();
  if (waiter.target.event_fd < 0) return nullptr;
  const bool family = shard().wires().members.load(std::memory_order_relaxed) != 0;
  if (family && waiter.doorbell_fd < 0 && !has_few_doorbells())
    waiter.doorbell_fd = make_doorbell(waiter.target.doorbell);
  return &waiter;
}

void forget_waiter() {
  drop_my_waiter();
  is_forked = true;
}

void drop_my_waiter() {
  thread_waiter = nullptr;
  thread_signals.kernel_set = nullptr;
}

void hold(File& file, std::uint32_t flag) {
  file.users++;
  if (flag != 0) socket_of(file).set(flag);
  Waiter* const waiter = record();
  // A hold beyond the places is not undone at a death: the object then stays.
  if (waiter != nullptr && waiter->held < Waiter::kHolds)
    waiter->holds[waiter->held++] = {&file, flag, reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0))};
}

void hold_end(File& file, std::uint32_t flag) {
  Waiter* const waiter = thread_waiter;
  if (waiter == nullptr && is_forked) return;  // it is the parent's: a handler that interrupted its call has forked
  undo_hold({&file, flag, 0});
  if (waiter == nullptr) return;
  for (std::uint32_t i = waiter->held; i-- > 0;) {
    if (waiter->holds[i].file != &file || waiter->holds[i].flag != flag) continue;
    waiter->holds[i] = waiter->holds[--waiter->held];
    return;
  }
}

void drop_left(std::uintptr_t bound) {
  Waiter* const waiter = thread_waiter;
  if (waiter == nullptr || !has_shard() || thread_signals.in_lock != 0) return;
  Guard guard(shard());
  drop_holds(guard, *waiter, bound);
}

void drop_waiters(Guard& guard, std::uint32_t slot) {
  if (objects == nullptr) return;
  for (Waiter** at = &objects->idle_waiters; *at != nullptr;) {
    if ((*at)->target.slot == slot)
      *at = (*at)->free_next;
    else
      at = &(*at)->free_next;
  }
  objects->waiters.for_each([&](Waiter& waiter) {
    if (waiter.target.slot != slot) return;
    unlink_waiter(waiter);
    drop_holds(guard, waiter, UINTPTR_MAX);
    if (waiter.links != nullptr) objects->memory.release(waiter.links);
    objects->waiters.free(&waiter);
  });
}

bool is_copied_here(const File& file) {
  const std::uint32_t slot = shard().family().slot();
  bool any = false;
  objects->waiters.for_each([&](const Waiter& waiter) {
    for (std::uint32_t i = 0; i < waiter.held; i++)
      any = any || (waiter.target.slot == slot && waiter.holds[i].file == &file && waiter.holds[i].flag != 0);
  });
  return any;
}

void wake_told() {
  if (objects == nullptr) return;
  objects->waiters.for_each([](const Waiter& waiter) {
    if (waiter.asleep && waiter.called) collect_wake(waiter.target);
  });
}

void pass_on_wakes() {
  if (objects == nullptr) return;
  const std::uint32_t slot = shard().family().slot();
  objects->waiters.for_each([slot](Waiter& waiter) {
    if (waiter.target.slot == slot && waiter.called && waiter.doorbell_fd < 0) collect_wake(waiter.target);
  });
}

bool reserve_links(Waiter& waiter, std::size_t count) {
  if (count <= waiter.room) return true;
  void* block = objects->memory.allocate(count * sizeof(WaitLink));
  if (block == nullptr) return false;
  if (waiter.links != nullptr) objects->memory.release(waiter.links);
  waiter.room = static_cast<std::uint32_t>(Memory::block_size(count * sizeof(WaitLink)) / sizeof(WaitLink));
  waiter.links = static_cast<WaitLink*>(block);
  for (std::size_t i = 0; i < waiter.room; i++) new (waiter.links + i) WaitLink{};
  return true;
}

bool link_waiter(Waiter& waiter, File& file, std::uint32_t mask, bool exclusive) {
  if (waiter.link.file == nullptr) {
    link_one(waiter.link, waiter, file, mask, exclusive);
    return true;
  }
  if (waiter.linked == waiter.room) return false;
  link_one(waiter.links[waiter.linked++], waiter, file, mask, exclusive);
  return true;
}

void unlink_waiter(Waiter& waiter) {
  unlink_one(waiter.link);
  for (std::uint32_t i = 0; i < waiter.linked; i++) unlink_one(waiter.links[i]);
  waiter.linked = 0;
  waiter.asleep = waiter.called = waiter.looks = false;
}

}  // namespace bypass::socket
