#include "socket/wait/sleep_scope.h"

#include <limits.h>

#include <atomic>
#include <utility>

#include "socket/family/wires.h"
#include "socket/shared/local.h"
#include "socket/shared/local_link.h"
#include "socket/socket.h"

namespace bypass::socket {
namespace {

/// What is registered about the calling thread's sleep. It is not on the thread's stack, because a handler that
/// interrupts the sleep may never return.
struct Sleep {
  Waiter* waiter = nullptr;  // null: nothing is registered
  bool counted = false;      // counted among the sleepers that the wire has to wake
  bool watching = false;     // watches the wires for all
  Hearing hearing;
  pollfd* set = nullptr;  // the set in which it sleeps, or is about to
};
thread_local constinit Sleep my_sleep;
/// Sleeps of this process that hear all links, and number of links that the others hear. Changed with the lock held.
std::atomic<std::uint32_t> hear_all{0}, heard_links{0};

// Lock held.
void count_hearing(const Hearing& hearing, int change) {
  const auto add = [change](std::atomic<std::uint32_t>& count, std::uint32_t n) {
    if (n != 0) count.fetch_add(static_cast<std::uint32_t>(change) * n, std::memory_order_relaxed);
  };
  add(hear_all, hearing.all ? 1 : 0);
  add(heard_links, hearing.links);
}

// Lock held.
void end_my_sleep() {
  const Sleep ended = std::exchange(my_sleep, {});
  // It may be the parent's: a handler that the trampoline does not know has forked during the sleep.
  if (ended.waiter == nullptr || ended.waiter->target.slot != shard().family().slot()) return;
  if (ended.counted) shard().count_sleeper(-1);
  count_hearing(ended.hearing, -1);
  if (ended.watching) {
    if (!shard().progress_sleeps()) shard().disarm_locked();
    shard().end_watch();
  }
  unlink_waiter(*ended.waiter);
}

}  // namespace

SleepScope::~SleepScope() {
  if (ended()) return;
  const Guard guard(shard());
  end_my_sleep();
}

bool SleepScope::ended() const {
  return my_sleep.waiter == nullptr;
}

bool SleepScope::watching() const {
  return my_sleep.watching;
}

void SleepScope::sleeps_in(pollfd* set) {
  my_sleep.set = set;
}

long SleepScope::enter(Condition& condition, Instant deadline) {
  Guard guard(shard());
  end_my_sleep();
  if (condition.changed()) {
    const long r = condition.attempt(guard);
    if (r != kAgain) return r;
  }
  my_sleep.waiter = &waiter_;
  if (!condition.link(waiter_)) return kAgain;
  waiter_.asleep = waiter_.looks = true;
  my_sleep.hearing = condition.hearing();
  count_hearing(my_sleep.hearing, 1);
  my_sleep.counted = condition.needs_wire();
  if (my_sleep.counted) shard().count_sleeper(1);
  const bool come = my_sleep.counted && arm_local();
  if (condition.changed()) return condition.attempt(guard);
  if (!condition.needs_wire() || !shard().begin_watch(waiter_.target)) {
    stay_asleep(!come);
    return kAgain;
  }
  my_sleep.watching = true;
  const bool armed = shard().arm_locked();
  const std::size_t received = shard().poll_locked();
  dispatch_events(shard().stack());
  if (condition.changed()) return condition.attempt(guard);
  until_ = shard().watch_until(deadline);
  stay_asleep(armed && received == 0 && !come && !shard().frames_left());
  return kAgain;
}

long SleepScope::leave(Condition& condition, std::span<const pollfd> kernels, Instant now, bool& hears) {
  Guard guard(shard());
  hears = condition.on_slept(kernels, now);
  // In a child that a handler forked during this sleep, the sleep is the parent's.
  if (!ended()) waiter_.looks = true;
  if (condition.needs_wire()) shard().poll_locked();
  dispatch_events(shard().stack());
  const long r = condition.changed() ? condition.attempt(guard) : kAgain;
  end_my_sleep();
  return r;
}

void end_sleep() {
  if (my_sleep.waiter == nullptr) return;
  // The thread may be about to sleep only now: ppoll() then reports POLLNVAL for an impossible number.
  if (my_sleep.set != nullptr) my_sleep.set->fd = INT_MAX;
  const Guard guard(shard());
  end_my_sleep();
}

void forget_sleep() {
  my_sleep = {};
  hear_all.store(0, std::memory_order_relaxed);
  heard_links.store(0, std::memory_order_relaxed);
}

bool are_links_heard() {
  if (hear_all.load(std::memory_order_relaxed) != 0) return true;
  return heard_links.load(std::memory_order_relaxed) >= local_link_count();
}

}  // namespace bypass::socket
