// Counter: one of a port's statistics. PortCounters: those statistics that a port counts itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "stack/frame/port.h"

namespace bypass {

/// A counter with one writer (the holder of the shard's lock) and readers anywhere.
struct Counter {
  std::atomic<std::uint64_t> value{0};
  void add(std::uint64_t n) { value.store(get() + n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const { return value.load(std::memory_order_relaxed); }
};

/// A base class of ports. The ports add what others count: their pool, the kernel, and how often the link came up.
class PortCounters {
 protected:
  [[nodiscard]] PortStats counted() const {
    PortStats s;
    s.rx_frames = rx_frames_.get(), s.rx_bytes = rx_bytes_.get(), s.rx_dropped = rx_dropped_.get();
    s.tx_frames = tx_frames_.get(), s.tx_bytes = tx_bytes_.get(), s.tx_full = tx_full_.get();
    s.tx_dropped = tx_dropped_.get();
    s.link_down = link_downs_.load(std::memory_order_relaxed);
    s.reopened = reopened_.load(std::memory_order_relaxed);
    return s;
  }

  Counter rx_frames_, rx_bytes_, rx_dropped_, tx_frames_, tx_bytes_, tx_full_, tx_dropped_;
  std::atomic<std::uint64_t> link_downs_{0}, reopened_{0};  // other threads count these, too
};

}  // namespace bypass
