// BusyTimes: how long a connection had something to deliver, and how long it was held back meanwhile. TCP_INFO shows
// this as tcpi_busy_time, tcpi_rwnd_limited and tcpi_sndbuf_limited. What counts follows tcp_chrono_start() and
// tcp_chrono_stop() of Linux. Times are in milliseconds, as in a kernel of 1000 Hz.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stack/time.h"

namespace bypass::tcp {

/// If two limits hold at once, the later one in this list counts.
enum class Limit : std::uint8_t {
  kIdle,    // the peer has acknowledged everything
  kNone,    // busy, and none of the limits below holds
  kWindow,  // only the peer's window keeps back what waits
  kBuffer,  // everything is sent, and a writer has found the send buffer full
};

/// Milliseconds; each modulo 2^32.
struct Spent {
  std::uint32_t busy = 0;  // includes the other two
  std::uint32_t window = 0, buffer = 0;
};

class BusyTimes {
 public:
  /// `before` ends at `now_ms`, and another limit begins.
  void turn(Limit before, std::uint32_t now_ms) {
    if (before != Limit::kIdle)
      spent_ms_[index_of(before)] += static_cast<std::uint32_t>(milliseconds_since(since_ms_, now_ms).count());
    since_ms_ = now_ms;
  }
  /// The times until `now_ms`, if `limit` holds now.
  [[nodiscard]] Spent at(Limit limit, std::uint32_t now_ms) const {
    BusyTimes ended = *this;
    ended.turn(limit, now_ms);
    const auto [none, window, buffer] = ended.spent_ms_;
    return {none + window + buffer, window, buffer};
  }

 private:
  static constexpr std::size_t index_of(Limit limit) { return static_cast<std::size_t>(limit) - 1; }

  std::uint32_t since_ms_ = 0;                  // when the current limit began
  std::array<std::uint32_t, 3> spent_ms_ = {};  // time in limits that have ended; kIdle is not counted
};
static_assert(sizeof(BusyTimes) == 16);

}  // namespace bypass::tcp
