// What the tests of the arena's parts share: a region of address space like the real one, and a seeded generator.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <random>

#include "stack/memory/memory.h"

namespace bypass {

class Region {
 public:
  explicit Region(std::size_t bytes, std::size_t budget)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        memory_(Memory::create(base_, bytes, budget)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(base_, bytes_); }
  Memory& operator*() { return *memory_; }
  Memory* operator->() { return memory_; }

 private:
  std::size_t bytes_;
  void* base_;
  Memory* memory_;
};

/// Equal runs for equal seeds, on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  /// 1 … 2^bits, where small and large numbers are equally likely.
  std::uint64_t spread(unsigned bits) { return 1 + below(std::uint64_t{1} << below(bits + 1)); }
  bool chance(unsigned percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace bypass
