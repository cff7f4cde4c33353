// Counter: one of a port's statistics.
#pragma once

#include <atomic>
#include <cstdint>

namespace bypass {

/// A counter with one writer (the holder of the shard's lock) and readers anywhere.
struct Counter {
  std::atomic<std::uint64_t> value{0};
  void add(std::uint64_t n) { value.store(get() + n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const { return value.load(std::memory_order_relaxed); }
};

}  // namespace bypass
