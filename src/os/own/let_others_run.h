// For a turn of a wait for what another thread does within microseconds.
//
// To yield is enough as a rule. A thread of a lower real-time priority (SCHED_RR, SCHED_FIFO) on the same processor
// runs only while this one sleeps, though: a wait that yields must end in a sleep.
#pragma once

#include "os/os.h"

namespace bypass::socket {

/// No cancellation point; a handler may end it early.
inline void sleep_a_little(std::int64_t nanoseconds = 50'000) {
  const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  os::call(SYS_nanosleep, os::address(&time), 0);
}

/// Yields, and sleeps now and then.
inline void let_others_run() {
  constexpr unsigned kTurnsASleep = 64;
  thread_local constinit unsigned turns = 0;
  if (++turns % kTurnsASleep == 0)
    sleep_a_little();
  else
    os::call(SYS_sched_yield);
}

}  // namespace bypass::socket
