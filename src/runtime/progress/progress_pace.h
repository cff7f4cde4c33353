// How long the progress thread leaves a program alone after one of its threads has polled.
//
// An armed port costs the peer a system call for each batch, so it is not armed while the program polls. A program that
// begins to compute cannot report that: this thread has to look. A look is a wake-up, so a program that polls whenever
// it is looked at is looked at once a tick. A program that was found computing while frames came is looked at each
// millisecond.
#pragma once

#include <algorithm>

#include "stack/time.h"

namespace bypass::runtime {

/// How long a program may stay away that was found away from its ports while connections are active. Its peers wait for
/// ACKs, and for bytes that it has written.
inline constexpr Duration kWhileActive = std::chrono::milliseconds(1);
/// For this long after the last frame, connections count as active.
inline constexpr Duration kActiveFor = std::chrono::seconds(1);

[[nodiscard]] constexpr bool is_active(Instant now, Instant last_arrival) {
  return now - last_arrival < kActiveFor;
}

class ProgressPace {
 public:
  explicit constexpr ProgressPace(Duration tick) : tick_(tick), left_(tick) {}

  /// How long the program may stay away. `pause`: how long a program without active connections may.
  [[nodiscard]] constexpr Duration patience(Duration pause, bool active) const {
    return active ? std::min(pause, left_) : pause;
  }
  /// A look found that a thread of the program polls, or sleeps on the ports.
  constexpr void on_present() { left_ = std::min(2 * left_, tick_); }
  /// A look found that no thread of the program does either.
  constexpr void on_away() { left_ = std::min(kWhileActive, tick_); }

 private:
  Duration tick_, left_;
};

}  // namespace bypass::runtime
