// Clock: CLOCK_MONOTONIC read through the time-stamp counter, about 10 ns a reading instead of 24.
//
// The rate is calibrated against CLOCK_MONOTONIC (what EAL calls the TSC's rate is wrong by up to 0.2 %) and
// corrected as time goes by, so that it never runs away by more than a microsecond or so, and never steps
// back. Where the TSC is not invariant, every reading is a clock_gettime.
#pragma once

#include <cstdint>

#include "stack/time.h"

namespace bypass::socket {

class Clock {
 public:
  /// Reads both clocks a few microseconds apart; rate errors shrink with every `correct()`.
  Clock();
  /// Nanoseconds on CLOCK_MONOTONIC's scale.
  [[nodiscard]] Instant now() const;
  /// Compares with CLOCK_MONOTONIC again; call some times a second at most (the progress thread, a sleeper).
  void correct();
  /// The processor's time-stamp counter, which all processors share where it is invariant; 0: it has none.
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
