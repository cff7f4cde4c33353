// NewReno's congestion avoidance (RFC 5681 §3.1, §3.2; RFC 6582 for when a loss event ends).
#pragma once

#include <cstdint>

#include "stack/tcp/congestion/window.h"

namespace bypass::tcp {

struct NewReno {
  /// Congestion avoidance: one segment a window (equation 3 by byte counting, RFC 3465 §2.1).
  void on_ack(Window& window, const AckEvent& ack);
  /// ssthresh after a loss: half of what was in flight, at least two segments (equation 4).
  [[nodiscard]] std::uint32_t reduced(const Window& window, std::uint32_t flight) const;
};

}  // namespace bypass::tcp
