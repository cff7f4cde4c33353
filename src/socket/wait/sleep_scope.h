// SleepScope: what is registered about a thread's sleep, from the moment it links itself to what it waits for until it
// runs again. wait.h says how no wake-up is lost.
// Tests: tests/socket/stream_test.cc, tests/preload/programs/handlers.c.
#pragma once

#include <poll.h>

#include <span>

#include "socket/wait/wait.h"
#include "stack/time.h"

namespace bypass::socket {

/// A sleep: the thread's links, and its watch over the wires. Everything is released with it, also on cancellation.
class SleepScope {
 public:
  explicit SleepScope(Waiter& waiter) : waiter_(waiter) {}
  ~SleepScope();
  SleepScope(const SleepScope&) = delete;
  SleepScope& operator=(const SleepScope&) = delete;

  /// Links the waiter and looks a last time. If it returns kAgain and `quiet()` holds, the caller sleeps.
  long enter(Condition& condition, Instant deadline);
  /// After the sleep: looks at the wire once, makes an attempt, and leaves all lists. `kernels`: the kernel's answers,
  /// if it was asked. `hears`: the kernel's side must be looked at.
  long leave(Condition& condition, std::span<const pollfd> kernels, Instant now, bool& hears);
  /// The set in which the thread is about to sleep: a handler that runs from here on spoils the set, so that the sleep
  /// ends before it begins (end_sleep()).
  void sleeps_in(pollfd* set);
  /// The thread has left all lists; if a handler has run, earlier than usual.
  [[nodiscard]] bool ended() const;
  [[nodiscard]] bool quiet() const { return quiet_; }
  [[nodiscard]] bool watching() const;
  [[nodiscard]] Instant until(Instant deadline) const { return watching() ? until_ : deadline; }

 private:
  /// From now on a wake-up reaches it, if no thread has called it by now.
  void stay_asleep(bool quiet) {
    quiet_ = quiet && !waiter_.called;
    waiter_.looks = !quiet_;
  }

  Waiter& waiter_;
  bool quiet_ = false;
  Instant until_ = kNever;
};

}  // namespace bypass::socket
