// How long the progress thread leaves a program to itself after one of its threads has polled.
//
// An armed port costs the peer a system call a batch, so it is not armed while the program polls. A program that begins
// to compute cannot say so: this thread has to look. A look is a wake-up, so a program that polls whenever it is
// looked at is looked at once a tick. One that was found computing while frames came is looked at each millisecond.
#pragma once

#include <algorithm>

#include "stack/time.h"

namespace bypass::runtime {

/// What a program is left that was found away from its ports while connections are active: its peers wait for ACKs, and
/// for bytes that it has written.
inline constexpr Duration kWhileActive = std::chrono::milliseconds(1);
/// So long after the last frame connections count as active.
inline constexpr Duration kActiveFor = std::chrono::seconds(1);

[[nodiscard]] constexpr bool is_active(Instant now, Instant last_arrival) {
  return now - last_arrival < kActiveFor;
}

class ProgressPace {
 public:
  explicit constexpr ProgressPace(Duration tick) : tick_(tick), left_(tick) {}

  /// How long the program may stay away. `pause`: what one without active connections is left.
  [[nodiscard]] constexpr Duration patience(Duration pause, bool active) const {
    return active ? std::min(pause, left_) : pause;
  }
  /// A look found that one of the program's threads polls, or sleeps on the ports.
  constexpr void on_present() { left_ = std::min(2 * left_, tick_); }
  /// A look found that all of them are away.
  constexpr void on_away() { left_ = std::min(kWhileActive, tick_); }

 private:
  Duration tick_, left_;
};

}  // namespace bypass::runtime
