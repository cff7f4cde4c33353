// One cache line there, one back, between two pinned threads: what nothing that crosses cores can undercut.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace bypass::bench {

struct alignas(128) Line {
  std::atomic<unsigned> value{0};
};

inline void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

/// Nanoseconds a round trip.
inline double bounce(int cpu_a, int cpu_b) {
  constexpr unsigned kRounds = 4000;
  Line there, back;
  std::thread other([&] {
    pin(cpu_b);
    for (unsigned i = 1; i <= kRounds; i++) {
      while (there.value.load(std::memory_order_acquire) != i) {
      }
      back.value.store(i, std::memory_order_release);
    }
  });
  pin(cpu_a);
  auto start = std::chrono::steady_clock::now();
  for (unsigned i = 1; i <= kRounds; i++) {
    if (i == kRounds / 4) start = std::chrono::steady_clock::now();  // the other thread runs by now
    there.value.store(i, std::memory_order_release);
    while (back.value.load(std::memory_order_acquire) != i) {
    }
  }
  const double time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  other.join();
  return time / (kRounds * 3 / 4);
}

}  // namespace bypass::bench
