#include "socket/wait/wait.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "os/errno_map.h"
#include "os/own/let_others_run.h"
#include "os/poll_by_parts.h"
#include "socket/family/doorbell.h"
#include "socket/policy.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"
#include "socket/wait/sleep_scope.h"
#include "socket/wait/spin_habit.h"

namespace bypass::socket {

constinit thread_local ThreadSignals thread_signals;
void (*redeliver_signals)() = nullptr;

namespace {

/// The longest sleep of a watcher while a port has no wake-up descriptor.
constexpr Duration kBlindSleep = std::chrono::milliseconds(1);
/// After so many turns in a row that find the lock taken, its holder is probably off the processor, perhaps because of
/// this thread.
constexpr unsigned kManyMisses = 1024;
/// Work that a spinning wait causes does not count as waiting, up to so many budgets.
constexpr int kMostWork = 8;

thread_local constinit SpinHabit spin_habit;

/// What the last yields of this thread found on its processor.
enum class Neighbour : std::uint8_t {
  kNone,    // no other thread: a yield returns at once
  kPolite,  // a thread that runs for microseconds and yields, too: probably the other end of our wire
  kGreedy,  // a thread that keeps the processor: a yield costs a time slice, and a sleep costs less
};
thread_local Neighbour neighbour = Neighbour::kNone;
/// The longest time of a yield to which no other thread ran.
constexpr Duration kEmptyYield = std::chrono::nanoseconds(1200);
/// Longer than the other end needs for an answer.
constexpr Duration kGreedyYield = std::chrono::microseconds(200);

void yield_and_learn(Instant before) {
  sched_yield();
  const Duration away = shard().clock().now() - before;
  neighbour = away < kEmptyYield ? Neighbour::kNone : away < kGreedyYield ? Neighbour::kPolite : Neighbour::kGreedy;
}

/// The signal mask that ppoll() and epoll_pwait() set, for the whole call.
class CallMask {
 public:
  explicit CallMask(const sigset_t* mask) : set_(mask != nullptr) {
    if (set_) pthread_sigmask(SIG_SETMASK, mask, &before_);
  }
  ~CallMask() {
    if (set_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  CallMask(const CallMask&) = delete;
  CallMask& operator=(const CallMask&) = delete;

 private:
  bool set_;
  sigset_t before_;
};

timespec to_timespec(Duration d) {
  const std::int64_t ns = std::max<std::int64_t>(0, d.count());
  return {ns / 1'000'000'000, ns % 1'000'000'000};
}

void drain(int event_fd) {
  std::uint64_t count = 0;
  const int saved = errno;
  (void)!kernel->read(event_fd, &count, sizeof count);
  errno = saved;
}

class Waiting {
 public:
  Waiting(Condition& condition, const Patience& patience)
      : condition_(condition),
        patience_(patience),
        seen_(thread_signals.seen),
        restart_seen_(thread_signals.restart_seen) {}

  /// Makes the first attempt, with one look at the wire.
  long begin();
  /// Does everything after a failed attempt.
  long go_on();

 private:
  long spin();
  long turn();
  long attempt();
  long look(bool always);
  long pause();
  long sleep();
  long sleep_in(Waiter& waiter);
  bool interrupted();
  void learn(bool at_once);
  [[nodiscard]] static Duration budget() { return shard().budgets().spin + shard().budgets().yield; }
  [[nodiscard]] static Duration most_work() { return kMostWork * budget(); }

  Condition& condition_;
  const Patience& patience_;
  unsigned seen_, restart_seen_;
  bool foreign_handler_ = false;  // a handler ran that the trampoline does not know
  bool worked_ = false;           // the last turn did some work
  bool hears_ = false;            // the kernel's side must be looked at immediately
  bool looks_ = true;             // looks at the kernel now and then, before it sleeps
  bool slept_ = false;
  unsigned misses_ = 0;  // times in a row that the lock was taken
  Instant begun_{}, started_{}, now_{};
  Duration spin_{}, yield_{};
};

long Waiting::attempt() {
  Guard guard(shard());
  return condition_.attempt(guard);
}

long Waiting::begin() {
  const bool wire = condition_.needs_wire();
  if (wire) policy.open_wire_for_wait();
  Guard guard(shard());
  if (wire && condition_.polls_first()) {
    shard().poll_locked();
    dispatch_events(shard().stack());
    return condition_.attempt(guard);
  }
  const long r = condition_.attempt(guard);
  if (r != kAgain || !wire) return r;
  shard().poll_locked();
  dispatch_events(shard().stack());
  return condition_.changed() ? condition_.attempt(guard) : kAgain;
}

long Waiting::go_on() {
  begun_ = started_ = now_ = shard().clock().now();
  const Budgets& budgets = shard().budgets();
  const bool bounded = budgets.yield >= Duration{} && budgets.spin >= Duration{};
  const bool learns = bounded && budget() != Duration{} && condition_.needs_wire();
  const bool at_once = learns && !spin_habit.spins();
  if (condition_.needs_wire() && !at_once) {
    spin_ = budgets.spin;
    yield_ = budgets.yield;
  }
  // A sleep asks the kernel for all its descriptors.
  const bool sleeps = spin_ == Duration{} && yield_ == Duration{};
  looks_ = !patience_.block || !sleeps || is_watch_set_readable();
  long r = looks_ ? look(!patience_.block) : kAgain;
  if (r != kAgain || !patience_.block) return r;
  r = spin();
  if (learns) learn(at_once);
  return r;
}

void Waiting::learn(bool at_once) {
  if (at_once)
    spin_habit.on_slept_at_once(now_ - begun_ <= budget());
  else
    slept_ ? spin_habit.on_missed() : spin_habit.on_caught();
}

long Waiting::spin() {
  for (;;) {
    pthread_testcancel();
    long r = turn();
    if (r != kAgain) return r;
    if (interrupted()) return kInterrupted;
    const bool late = now_ >= patience_.deadline;
    r = looks_ || hears_ || late ? look(hears_ || late) : kAgain;
    hears_ = false;
    looks_ = true;
    if (r != kAgain) return r;
    if (late) return kTimedOutWait;
    r = pause();
    if (r != kAgain) return r;
  }
}

// Polls once, and makes an attempt in the same hold of the lock if that changed anything.
long Waiting::turn() {
  // Another process polls the wires: there is nothing to do in the lock until it has brought something.
  if (!shard().owns_wires() && condition_.needs_wire() && !condition_.changed() && !has_active_local()) [[unlikely]] {
    __builtin_ia32_pause();
    now_ = shard().clock().now();
    return kAgain;
  }
  {
    Guard guard(shard(), std::try_to_lock);
    if (guard.held()) {
      misses_ = 0;
      if (condition_.needs_wire()) shard().poll_locked();
      dispatch_events(shard().stack());
      // Work that the last look caused is no waiting: a bulk sender's writes may take longer than the budget. (Only up
      // to a limit: a wire that stays full, or others' traffic, must not prevent sleep for ever.)
      if (worked_ && now_ - begun_ <= most_work()) started_ += guard.context().now - now_;
      now_ = guard.context().now;
      worked_ = condition_.needs_wire() && !shard().poll_was_idle();
      if (condition_.changed()) return condition_.attempt(guard);
      if (condition_.needs_wire() && shard().poll_was_idle()) guard.leave_untouched();
      return kAgain;
    }
  }
  if (++misses_ % kManyMisses == 0)
    sleep_a_little();
  else
    __builtin_ia32_pause();
  now_ = shard().clock().now();
  return condition_.changed() ? attempt() : kAgain;
}

long Waiting::look(bool always) {
  if (!condition_.has_kernel()) return kAgain;
  const long r = condition_.look_at_kernel(now_, always);
  if (r != kAgain || !condition_.changed()) return r;
  return attempt();
}

long Waiting::pause() {
  const Duration waited = now_ - started_;
  // A peer that shares the processor with us cannot answer before it gets the processor.
  const bool give_way = neighbour == Neighbour::kPolite;
  if (!give_way && (spin_ < Duration{} || waited < spin_)) return kAgain;
  const bool greedy = neighbour == Neighbour::kGreedy && yield_ >= Duration{};
  if (yield_ < Duration{} || (waited < spin_ + yield_ && !greedy)) {
    yield_and_learn(shard().clock().now());
    return kAgain;
  }
  neighbour = Neighbour::kNone;  // measured again after the sleep
  return sleep();
}

long Waiting::sleep() {
  Waiter* waiter = my_waiter();
  if (waiter == nullptr) {  // there is no descriptor or no memory for a waiter
    sleep_a_little(kBlindSleep.count());
    return kAgain;
  }
  return sleep_in(*waiter);
}

long Waiting::sleep_in(Waiter& waiter) {
  SleepScope sleep(waiter);
  const long r = sleep.enter(condition_, patience_.deadline);
  if (r != kAgain || !sleep.quiet()) return r;

  std::array<int, Shard::kMostWaitDescriptors> wires;
  const std::size_t wire_count = sleep.watching() ? shard().wait_descriptors(wires) : 0;
  const bool bell = waiter.doorbell_fd >= 0;
  const std::span<pollfd> set = condition_.sleep_set(1 + wire_count + (bell ? 1 : 0));
  if (set.empty()) {
    sleep_a_little(kBlindSleep.count());
    return kAgain;
  }
  set[0] = {waiter.target.event_fd, POLLIN, 0};
  for (std::size_t i = 0; i < wire_count; i++) set[1 + i] = {wires[i], POLLIN, 0};
  if (bell) set[1 + wire_count] = {waiter.doorbell_fd, POLLIN, 0};

  Instant until = sleep.until(patience_.deadline);
  now_ = shard().clock().now();
  if (sleep.watching() && wire_count < shard().watchable()) until = std::min(until, now_ + kBlindSleep);
  if (const Duration most = condition_.longest_sleep(); most >= Duration{}) until = std::min(until, now_ + most);
  const timespec limit = until == kNever ? timespec{} : to_timespec(until - now_);
  // A handler that runs from here on ends the sleep before it begins: end_sleep() spoils the set.
  sleep.sleeps_in(set.data());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (interrupted()) return kInterrupted;
  if (sleep.ended()) return kAgain;  // a handler has run, and the call is one that continues
  const unsigned seen = thread_signals.seen;
  const timespec* const most = until == kNever ? nullptr : &limit;
  int ready = kernel->ppoll(set.data(), set.size(), most, nullptr);
  if (ready < 0 && errno != EINTR) [[unlikely]]
    ready = poll_by_parts(set, most);
  const bool by_handler = ready < 0 && errno == EINTR;
  foreign_handler_ = by_handler && thread_signals.seen == seen;
  slept_ = true;
  now_ = shard().clock().now();
  // A sleep that could ask about nothing (RLIMIT_NOFILE is 0) has learned nothing.
  const bool asked = ready >= 0 || by_handler;
  if ((set[0].revents & POLLIN) != 0) drain(waiter.target.event_fd);
  if (bell && (set[1 + wire_count].revents & POLLIN) != 0) silence_doorbell(waiter.doorbell_fd);
  const auto kernels = set.subspan(1 + wire_count + (bell ? 1 : 0));
  if (asked) condition_.hear_kernel(kernels, now_);
  const long awake = sleep.leave(condition_, asked ? kernels : std::span<pollfd>{}, now_, hears_);
  hears_ = hears_ || !asked;
  if (hears_ && awake != kAgain && condition_.hearing().all) note_watch_set_readable();
  return awake;
}

bool Waiting::interrupted() {
  if (foreign_handler_) return true;
  const unsigned ran = thread_signals.seen - seen_;
  if (ran == 0) return false;
  if (!patience_.restart || condition_.has_transferred() || thread_signals.restart_seen - restart_seen_ != ran)
    return true;
  seen_ = thread_signals.seen;
  restart_seen_ = thread_signals.restart_seen;
  return false;
}

}  // namespace

std::uintptr_t forget_left_handlers(std::uintptr_t here) {
  ThreadSignals& t = thread_signals;
  while (has_left_handler(here)) t.handlers--;
  return t.handlers == 0 ? UINTPTR_MAX : t.handler_frames[std::min(t.handlers, ThreadSignals::kHandlers) - 1];
}

bool Condition::on_slept(std::span<const pollfd> kernels, Instant /*now*/) {
  return std::any_of(kernels.begin(), kernels.end(), [](const pollfd& each) { return each.revents != 0; });
}

std::span<pollfd> Condition::sleep_set(std::size_t spare) {
  return {few_, std::min(spare, kFewDescriptors)};
}

long wait(Condition& condition, const Patience& patience) {
  Waiting waiting(condition, patience);
  CallMask mask(patience.mask);
  const long r = waiting.begin();
  return r != kAgain ? r : waiting.go_on();
}

long wait_on(Condition& condition, const Patience& patience) {
  Waiting waiting(condition, patience);
  return waiting.go_on();
}

bool spinning_pays() {
  return spin_habit.spins() && neighbour == Neighbour::kNone && shard().budgets().spin != Duration{};
}

bool sleeps_at_once() {
  const Budgets& budgets = shard().budgets();
  return !spin_habit.spins() || (budgets.spin == Duration{} && budgets.yield == Duration{});
}

Instant deadline_after(Duration timeout) {
  if (timeout < Duration{}) return kNever;
  const Instant now = shard().clock().now();
  return timeout > kNever - now ? kNever : now + timeout;
}

}  // namespace bypass::socket
