// cacheline: the round trip of one cache line between two pinned threads, in nanoseconds (median of several
// short runs). On a virtual machine it tells whether the two cores are near (same L3) or far at the moment.
//
//   cacheline [CPU CPU]      prints {"ns": N}
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

struct alignas(128) Line {
  std::atomic<unsigned> value{0};
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double bounce(int cpu_a, int cpu_b) {
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

}  // namespace

int main(int argc, char** argv) {
  const int a = argc > 2 ? std::atoi(argv[1]) : 0, b = argc > 2 ? std::atoi(argv[2]) : 1;
  std::array<double, 9> runs{};
  for (double& r : runs) r = bounce(a, b);
  std::sort(runs.begin(), runs.end());
  std::printf("{\"ns\": %.0f}\n", runs[runs.size() / 2]);
}
