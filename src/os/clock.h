// Clock: CLOCK_MONOTONIC read through the time-stamp counter, about 10 ns a reading instead of 24.
//
// The rate is calibrated against CLOCK_MONOTONIC (EAL's rate of the TSC is wrong by up to 0.2 %) and is corrected over
// time. The error stays near a microsecond, and time never goes back. If the TSC is not invariant, every reading is a
// clock_gettime().
#pragma once

#include <cstdint>

#include "stack/time.h"

namespace bypass::socket {

class Clock {
 public:
  /// Reads both clocks a few microseconds apart; each correct() makes the rate's error smaller.
  Clock();
  /// Nanoseconds on CLOCK_MONOTONIC's scale.
  [[nodiscard]] Instant now() const;
  /// Compares with CLOCK_MONOTONIC again. To be called some times a second at most (by the progress thread, or by a
  /// sleeper).
  void correct();
  /// The processor's time-stamp counter, which all processors share if it is invariant; 0: there is no such counter.
  [[nodiscard]] static std::uint64_t ticks();

 private:
  struct Base {
    std::uint64_t ticks;
    std::int64_t nanoseconds;
    std::uint64_t scale;  // nanoseconds a tick, 32.32 fixed point
  };
  bool invariant_ = false;
  std::uint32_t sequence_ = 0;  // odd while base_ is being written (readers retry)
  Base base_{};
  std::uint64_t first_ticks_ = 0;
  std::int64_t first_nanoseconds_ = 0;
};

}  // namespace bypass::socket
