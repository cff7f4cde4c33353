// Time as the stack sees it: a monotonic count of nanoseconds that the caller has read.
//
// Nothing below src/stack, src/socket's readiness and src/fastpath reads a clock. An `Instant` comes in
// with each batch of frames (its arrival time) and with each call; deadlines go out through
// `next_timeout()`. A unit test therefore owns the clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace bypass {

using Duration = std::chrono::nanoseconds;

/// The stack's clock has no `now()`: only callers outside the stack can make an Instant.
struct StackClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = Duration;
  using time_point = std::chrono::time_point<StackClock>;
  static constexpr bool is_steady = true;
};

using Instant = StackClock::time_point;

/// Later than every event; means "no deadline".
inline constexpr Instant kNever = Instant::max();

/// Milliseconds of the clock, modulo 2^32.
[[nodiscard]] inline std::uint32_t milliseconds_of(Instant at) {
  return static_cast<std::uint32_t>(std::chrono::floor<std::chrono::milliseconds>(at.time_since_epoch()).count());
}
/// The time from `then` to `now`, both from milliseconds_of(), less than 49 days apart. 0 if `then` is later by up to a
/// minute: clocks of a family's processes differ by some microseconds.
[[nodiscard]] inline std::chrono::milliseconds milliseconds_since(std::uint32_t then, std::uint32_t now) {
  constexpr std::uint32_t kMinute = 60'000;
  const std::uint32_t passed = now - then;
  return std::chrono::milliseconds(then - now <= kMinute ? 0 : passed);
}

/// The same in units of 1.024 µs, which needs only a shift.
[[nodiscard]] inline std::uint32_t microseconds_of(Instant at) {
  return static_cast<std::uint32_t>(at.time_since_epoch().count() >> 10);
}

}  // namespace bypass
