#include "preload/acceleration.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>

#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/unwinder.h"
#include "preload/calls/process/process.h"
#include "preload/calls/process/signals.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/streams.h"
#include "runtime/process.h"

namespace bypass::preload {

constinit std::atomic<bool> started{false};

namespace {

enum class State : std::uint32_t { kUndecided, kDeciding, kOn, kOff };
std::atomic<State> state{State::kUndecided};
constinit std::atomic<bool> loaded{false};
thread_local constinit bool deciding_here = false;

/// Waits by yielding, usually not for long. But a thread of a lower real-time priority gets the processor only while
/// this one sleeps.
State await_decision() {
  constexpr int kYields = 100;
  constexpr std::int64_t kLook = 10'000'000;  // ns
  State seen = state.load();
  for (int i = 0; seen == State::kDeciding; i++, seen = state.load()) {
    if (i < kYields)
      sched_yield();
    else
      os::futex_wait(reinterpret_cast<const std::uint32_t*>(&state), static_cast<std::uint32_t>(seen), kLook);
  }
  return seen;
}

enum class Asks : std::uint8_t { kSocket, kFork };

State decide(Asks asks) {
  KeepErrno keep;
  Inside inside;
  if (asks == Asks::kFork && !runtime::names_ports()) return State::kUndecided;
  if (!runtime::accelerates()) return State::kOff;
  if (!started) prepare_uses();
  if (!runtime::start()) return State::kOff;
  if (started) return State::kOn;  // for a forked child's own decision
  runtime::prepare_unwinder();
  wrap_signal_handlers();
  catch_streams();
  prepare_quick_exit();
  started = true;
  report_early_escapes();
  return State::kOn;
}

[[gnu::noinline, gnu::cold]] State decide_once(Asks asks) {
  // Another library's constructor runs before ours: settings and addresses are not known yet. Its sockets are the
  // kernel's.
  if (!loaded) return State::kOff;
  // A handler that interrupts the decision gets sockets of the kernel, and so does a handler that interrupts anything
  // else: malloc's lock may be held, and the decision allocates. A later call decides.
  if (deciding_here) return State::kOff;
  if (socket::is_in_handler()) {
    note_left_by_handler();
    return State::kOff;
  }
  // Another thread decides: this one waits, because the program was promised that every socket is looked at. A fork may
  // have left it undecided.
  for (State seen = State::kUndecided; !state.compare_exchange_strong(seen, State::kDeciding);) {
    seen = await_decision();
    if (seen != State::kUndecided || asks == Asks::kFork) return seen;
  }
  deciding_here = true;
  const State seen = decide(asks);
  state.store(seen);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&state), INT_MAX);
  deciding_here = false;
  return seen;
}

}  // namespace

void begin_deciding() {
  // An allocator may make a socket when it first starts, with its lock held. It starts here, so that this socket is the
  // kernel's.
  void* volatile first = malloc(1);
  free(first);
  loaded = true;
}

bool is_accelerating() {
  State seen = state.load(std::memory_order_acquire);
  if (seen == State::kOff || goes_straight()) return false;
  return seen == State::kOn || decide_once(Asks::kSocket) == State::kOn;
}

void decide_before_fork() {
  const bool undecided = state.load(std::memory_order_acquire) == State::kUndecided && !has_started();
  if (undecided && !goes_straight() && runtime::may_name_ports()) (void)decide_once(Asks::kFork);
}

void end_acceleration() {
  started = false;
  state = State::kOff;
  fd_table.forget();
}

void decide_again() {
  // left half done by a thread that does not exist in the child
  if (state.load() == State::kDeciding && !deciding_here) state = State::kOff;
  if (state.load() == State::kOn) state = State::kUndecided;
}

}  // namespace bypass::preload
