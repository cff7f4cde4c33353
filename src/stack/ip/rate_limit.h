// A token bucket: allows so many events a second, and so many at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stack/time.h"

namespace bypass {

class RateLimit {
 public:
  constexpr RateLimit(std::uint32_t per_second, std::uint32_t burst)
      : interval_(Duration{std::chrono::seconds(1)} / per_second), depth_(interval_ * burst) {}

  /// Takes one token. If `now` stands still or goes back, no token is gained.
  [[nodiscard]] bool allow(Instant now) {
    // `spent_until_` is when the bucket will be full again. If it is below now + depth, there is a token left.
    const Instant full = std::max(spent_until_, now);
    if (full - now + interval_ > depth_) return false;
    spent_until_ = full + interval_;
    return true;
  }

 private:
  Duration interval_, depth_;
  Instant spent_until_{};
};

}  // namespace bypass
