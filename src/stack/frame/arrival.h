// When a frame arrived. The time is kept in the Packet's scratch words until they are needed for something else. A port
// that knows the time better than the batch's time (its device has time stamps) sets kRxArrival.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "stack/frame/packet.h"
#include "stack/time.h"

namespace bypass {

inline void set_arrival(Packet& frame, Instant at) {
  const std::int64_t ns = at.time_since_epoch().count();
  static_assert(sizeof ns == sizeof frame.scratch);
  std::memcpy(frame.scratch, &ns, sizeof ns);
}

[[nodiscard]] inline Instant arrival(const Packet& frame) {
  std::int64_t ns;
  std::memcpy(&ns, frame.scratch, sizeof ns);
  return Instant{Duration{ns}};
}

/// Sets the arrival of a frame that has just come: the port's time if it has one. A device's clock is not trusted with
/// a time in the future.
inline void settle_arrival(Packet& frame, Instant now) {
  const bool told = (frame.flags & kRxArrival) != 0;
  set_arrival(frame, told ? std::min(arrival(frame), now) : now);
}

}  // namespace bypass
