// How long the progress thread leaves a program to itself after one of its threads has polled. An armed port costs the
// peer a system call a batch, so that it is not armed while the program polls; a program that computes cannot say that
// it has begun to.
#pragma once

#include <algorithm>

#include "stack/time.h"

namespace bypass::runtime {

/// While frames come, the program is stepped in for after this long: its peers wait for ACKs, and for bytes that it has
/// written. From then on the ports are armed, and a frame waits for a wake-up only.
inline constexpr Duration kWhileActive = std::chrono::milliseconds(1);
/// So long after the last frame connections count as active.
inline constexpr Duration kActiveFor = std::chrono::seconds(1);

[[nodiscard]] constexpr bool is_active(Instant now, Instant last_arrival) {
  return now - last_arrival < kActiveFor;
}

/// `pause`: what a program without active connections is left.
[[nodiscard]] constexpr Duration patience(Duration pause, bool active) {
  return active ? std::min(pause, kWhileActive) : pause;
}

}  // namespace bypass::runtime
