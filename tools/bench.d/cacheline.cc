// cacheline: the round trip of one cache line between two pinned threads, in nanoseconds (median of several
// short runs). On a virtual machine it tells whether the two cores are near (same L3) or far at the moment.
//
//   cacheline [CPU CPU]      prints {"ns": N}
#include "cacheline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const int a = argc > 2 ? std::atoi(argv[1]) : 0, b = argc > 2 ? std::atoi(argv[2]) : 1;
  std::array<double, 9> runs{};
  for (double& r : runs) r = bypass::bench::bounce(a, b);
  std::sort(runs.begin(), runs.end());
  std::printf("{\"ns\": %.0f}\n", runs[runs.size() / 2]);
}
