#include <pthread.h>
#include <sys/eventfd.h>

#include <new>

#include "socket/objects.h"
#include "socket/readiness.h"
#include "socket/wait.h"

namespace bypass::socket {

namespace {

/// Gives the waiter back when its thread ends.
struct ThreadWaiter {
  Waiter* waiter = nullptr;
  ~ThreadWaiter() {
    if (waiter == nullptr || environment.shard == nullptr) return;
    Guard guard(shard());
    unlink_waiter(*waiter);
    waiter->free_next = objects->idle_waiters;
    objects->idle_waiters = waiter;
    waiter = nullptr;
  }
};
thread_local ThreadWaiter thread_waiter;

void link_one(WaitLink& link, Waiter& waiter, File& file, std::uint32_t mask, bool exclusive) {
  link = {&waiter, nullptr, &file, mask, exclusive};
  // In the order of arrival: of exclusive waiters the one that has slept longest is called.
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
  // Called alone, and leaving something behind: it is the next one's.
  if (link.exclusive && link.waiter->called) pass_on(file, link.mask);
}

int make_event_fd() {
  int fd = kernel->eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd >= 0 && environment.own_descriptor != nullptr) fd = environment.own_descriptor(fd);
  return fd;
}

Waiter* idle_waiter() {
  Guard guard(shard());
  if (!prepare_objects(shard())) return nullptr;
  Waiter* idle = objects->idle_waiters;
  if (idle != nullptr) objects->idle_waiters = idle->free_next;
  return idle;
}

}  // namespace

Waiter* my_waiter() {
  if (thread_waiter.waiter != nullptr) return thread_waiter.waiter;
  if ((thread_waiter.waiter = idle_waiter()) != nullptr) return thread_waiter.waiter;
  const int fd = make_event_fd();
  if (fd < 0) return nullptr;
  Guard guard(shard());
  Waiter* made = objects == nullptr ? nullptr : objects->waiters.allocate();
  if (made == nullptr)
    close_own(fd);
  else
    made->event_fd = fd;
  return thread_waiter.waiter = made;
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
  waiter.asleep = waiter.called = false;
}

void forget_family() {
  thread_waiter.waiter = nullptr;
  environment.shard = nullptr;
}

}  // namespace bypass::socket
