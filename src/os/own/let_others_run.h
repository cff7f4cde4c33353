// For one turn of a wait for something that another thread does within microseconds.
//
// Yielding is usually enough. But a thread with a lower real-time priority (SCHED_RR, SCHED_FIFO) on the same processor
// runs only while this one sleeps. So a wait that yields must end in a sleep.
#pragma once

#include "os/os.h"

namespace bypass::socket {

/// Sleeps. It is no cancellation point; a handler may end it early.
inline void sleep_a_little(std::int64_t nanoseconds = 50'000) {
  const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  os::call(SYS_nanosleep, os::address(&time), 0);
}

/// Yields, and sometimes sleeps.
inline void let_others_run() {
  constexpr unsigned kTurnsASleep = 64;
  thread_local constinit unsigned turns = 0;
  if (++turns % kTurnsASleep == 0)
    sleep_a_little();
  else
    os::call(SYS_sched_yield);
}

}  // namespace bypass::socket
