// DeviceClock: converts a device's time stamps to the stack's clock (CLOCK_MONOTONIC).
//
// It reads both clocks side by side now and then. The time since the last reading is computed from the device's nominal
// rate. A device's crystal is off by some tens of millionths, less than a microsecond in 10 ms. The time stamps
// themselves show when the last reading is too old, so nothing is read while no frame comes.
#pragma once

#include <cstdint>
#include <optional>

#include "backends/verbs/verbs.h"
#include "stack/time.h"

namespace bypass::verbs {

class DeviceClock {
 public:
  /// For a device with such a clock. False: its time stamps cannot be converted.
  bool start(ibv_context* context, const ibv_device_attr_ex& device);
  /// Nothing: the device does not tell its time any more.
  std::optional<Instant> at(std::uint64_t ticks);

 private:
  bool read();
  [[nodiscard]] std::int64_t since_reading(std::uint64_t ticks) const;

  ibv_context* context_ = nullptr;
  std::uint64_t mask_ = 0;             // the bits of a time stamp that count
  std::uint64_t scale_ = 0;            // nanoseconds per tick, 32.32 fixed point
  std::int64_t least_ = 0, most_ = 0;  // the range of ticks from the reading that is near enough
  std::uint64_t ticks_ = 0;            // the device's ticks at the last reading
  Instant time_{};
};

}  // namespace bypass::verbs
