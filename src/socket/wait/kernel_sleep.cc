#include "socket/wait/kernel_sleep.h"

#include <linux/membarrier.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>

#include "os/os.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/wait/epoll.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

std::atomic<int> call_descriptor{-1};  // the process's; never closed, always readable

/// The data of our descriptor in the kernel's set: an address of ours, which a program's data cannot be.
epoll_data_t call_data() {
  epoll_data_t data{};
  data.ptr = &call_descriptor;
  return data;
}

bool is_call(const epoll_event& event) {
  return event.data.ptr == &call_descriptor;
}

int the_call_descriptor() {
  int fd = call_descriptor.load(std::memory_order_acquire);
  if (fd >= 0) return fd;
  fd = kernel->eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  fd = policy.own_descriptor(fd);
  call_descriptor.store(fd, std::memory_order_release);
  return fd;
}

struct Sleepers {
  bool any = false, of_others = false;
};

// Lock held.
Sleepers sleepers_of(const Epoll& set) {
  Sleepers found;
  const std::uint32_t slot = shard().family().slot();
  objects->waiters.for_each([&](const Waiter& waiter) {
    if (waiter.kernel_set.load(std::memory_order_acquire) != &set) return;
    found.any = true;
    found.of_others = found.of_others || waiter.target.slot != slot;
  });
  return found;
}

bool is_family() {
  return shard().wires().members.load(std::memory_order_relaxed) != 0;
}

/// The fence between a sleeper's store and its look at the set. If only one process may add to the set, this only
/// orders the compiler. The adding thread then makes a fence in each thread of the process (membarrier(2), which
/// src/preload registers for).
void fence_for_sleeper() {
  if (is_family()) return std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void fence_of_sleepers() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (os::call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED) < 0) os::call(SYS_membarrier, MEMBARRIER_CMD_GLOBAL);
}

/// The value for the calling process; 0 means no process.
std::uint32_t caller_here() {
  return shard().family().slot() + 1;
}

// Lock held.
void stop_calling(Epoll& set, int number) {
  if (set.caller.load(std::memory_order_relaxed) != caller_here() || sleepers_of(set).any) return;
  epoll_event unused{};
  os::call(SYS_epoll_ctl, number, EPOLL_CTL_DEL, call_descriptor.load(), os::address(&unused));
  set.caller.store(0, std::memory_order_relaxed);
}

}  // namespace

bool is_kernels_alone(const File& epoll) {
  const auto& set = static_cast<const Epoll&>(epoll);
  return set.bypass_items.load(std::memory_order_relaxed) == 0 && !set.has_called.load(std::memory_order_relaxed);
}

bool call_kernel_sleepers(Epoll& set, int number) {
  fence_of_sleepers();
  const Sleepers sleepers = sleepers_of(set);
  if (!sleepers.any) return false;
  const int fd = the_call_descriptor();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data = call_data();
  if (fd < 0) return false;
  set.has_called.store(true, std::memory_order_relaxed);  // must come before the event can be seen
  set.caller.store(caller_here(), std::memory_order_relaxed);
  os::call(SYS_epoll_ctl, number, EPOLL_CTL_ADD, fd, os::address(&event));
  return sleepers.of_others;
}

void await_kernel_sleepers(Epoll& set, int number) {
  constexpr int kLooks = 200;
  constexpr timespec kPause{0, 50'000};
  for (int i = 0; i < kLooks && is_calling(set); i++) {
    {
      const Guard guard(shard());
      stop_calling(set, number);
    }
    if (is_calling(set)) os::call(SYS_nanosleep, os::address(&kPause), 0);
  }
}

int drop_calls(Epoll& set, int number, epoll_event* events, int count) {
  if (count <= 0 || !set.has_called.load(std::memory_order_relaxed)) return count;
  const epoll_event* const end = std::remove_if(events, events + count, is_call);
  const int left = static_cast<int>(end - events);
  if (left == count) return count;
  const Guard guard(shard());
  stop_calling(set, number);
  return left;
}

bool is_calling(const Epoll& set) {
  return set.caller.load(std::memory_order_relaxed) != 0;
}

void forget_call_descriptor() {
  call_descriptor.store(-1, std::memory_order_relaxed);
}

KernelSleep::KernelSleep(File& epoll, bool sleeps) : set_(static_cast<Epoll&>(epoll)) {
  if (set_.bypass_items.load(std::memory_order_relaxed) != 0) return;
  has_called_ = &set_.has_called;
  usable_ = !sleeps;
  if (usable_ || my_record() == nullptr) return;
  place_ = thread_signals.kernel_set;
  // Either this is a handler's call on top of another call, or a handler jumped out of an earlier call.
  if (thread_signals.handlers != 0) beneath_ = place_->load(std::memory_order_relaxed);
  place_->store(&set_, std::memory_order_relaxed);
  fence_for_sleeper();
  usable_ = set_.bypass_items.load(std::memory_order_relaxed) == 0;
}

std::optional<int> KernelSleep::told_of_calls(int number, epoll_event* events, int count) {
  wake();
  const int left = drop_calls(set_, number, events, count);
  return left == 0 ? std::nullopt : std::optional(left);
}

}  // namespace bypass::socket
