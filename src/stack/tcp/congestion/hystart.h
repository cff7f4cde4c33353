// HyStart++ (RFC 9406): the first slow start ends when round-trip times rise, before it has filled the
// bottleneck's queue to the brim. It needs several samples a round; without them it does nothing.
#pragma once

#include <cstdint>

#include "stack/tcp/congestion/window.h"

namespace bypass::tcp {

struct HyStart {
  /// The divisor of slow start's growth by this ACK: 1; more in conservative slow start; 0 when slow start is over.
  unsigned on_ack(const AckEvent& ack);

  SeqNum round_end{};
  std::uint32_t last_min_us = 0, min_us = 0;  // lowest times of the last round and of this one; 0: no sample
  std::uint32_t baseline_us = 0;              // the round-trip time at which conservative slow start began
  std::uint8_t samples = 0;
  std::uint8_t css_round = 0;  // 0: not in conservative slow start
  bool started = false;

 private:
  void begin_round(const AckEvent& ack);
};

}  // namespace bypass::tcp
