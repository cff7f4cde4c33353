#include "preload/acceleration.h"

#include <sched.h>

#include <atomic>

#include "preload/escape.h"
#include "preload/inside.h"
#include "preload/numbers.h"
#include "preload/process.h"
#include "preload/signals.h"
#include "runtime/process.h"
#include "runtime/unwinder.h"

namespace bypass::preload {

constinit std::atomic<bool> started{false};

namespace {

enum class State { kUndecided, kDeciding, kOn, kOff };
std::atomic<State> state{State::kUndecided};
constinit std::atomic<bool> loaded{false};
thread_local constinit bool deciding_here = false;

State decide() {
  KeepErrno keep;
  Inside inside;
  if (!runtime::accelerates()) return State::kOff;
  if (!started) prepare_uses();
  if (!runtime::start()) return State::kOff;
  if (started) return State::kOn;  // a forked child's own decision
  runtime::prepare_unwinder();
  wrap_signal_handlers();
  prepare_quick_exit();
  started = true;
  tell_early_escapes();
  return State::kOn;
}

[[gnu::noinline, gnu::cold]] State decide_once() {
  // Another library's constructor before ours: settings and addresses are not there yet. Its sockets are the kernel's.
  if (!loaded) return State::kOff;
  State seen = State::kUndecided;
  if (state.compare_exchange_strong(seen, State::kDeciding)) {
    deciding_here = true;
    seen = decide();
    state.store(seen);
    deciding_here = false;
  }
  // A signal handler on top of the decision has its sockets from the kernel; another thread waits: its
  // program was promised that every socket is looked at.
  while (seen == State::kDeciding && !deciding_here) {
    sched_yield();
    seen = state.load();
  }
  return seen;
}

}  // namespace

void begin_deciding() {
  loaded = true;
}

bool is_accelerating() {
  State seen = state.load(std::memory_order_acquire);
  if (seen == State::kOff || goes_straight()) return false;
  return seen == State::kOn || decide_once() == State::kOn;
}

void end_acceleration() {
  started = false;
  state = State::kOff;
  fd_table.forget();
}

void decide_again() {
  if (state.load() == State::kDeciding && !deciding_here) state = State::kOff;  // half done, by a thread left behind
  if (state.load() == State::kOn) state = State::kUndecided;
}

}  // namespace bypass::preload
