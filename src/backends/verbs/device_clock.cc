#include "backends/verbs/device_clock.h"

#include <time.h>

#include <bit>

namespace bypass::verbs {
namespace {

constexpr std::int64_t kReadingLasts = 10;  // milliseconds
constexpr std::int64_t kFramesWait = 1000;  // milliseconds: how old a frame may be that came before the reading
constexpr std::uint64_t kNanosecondsAMillisecond = 1'000'000;

Instant monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{Duration{t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec}};
}

}  // namespace

bool DeviceClock::start(ibv_context* context, const ibv_device_attr_ex& device) {
  const std::uint64_t ticks_a_millisecond = device.hca_core_clock;  // hca_core_clock is in kHz
  context_ = context;
  mask_ = device.completion_timestamp_mask;
  if (ticks_a_millisecond == 0 || mask_ == 0) return false;
  scale_ = (kNanosecondsAMillisecond << 32) / ticks_a_millisecond;
  most_ = kReadingLasts * static_cast<std::int64_t>(ticks_a_millisecond);
  least_ = -kFramesWait * static_cast<std::int64_t>(ticks_a_millisecond);
  return read();
}

bool DeviceClock::read() {
  const verbs_context* const extended = verbs_get_ctx_op(context_, query_rt_values);
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  if (extended == nullptr || extended->query_rt_values(context_, &values) != 0) return false;
  if ((values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0) return false;
  time_ = monotonic();
  // Cards put all of their ticks into tv_nsec; the software device uses both fields.
  ticks_ = static_cast<std::uint64_t>(values.raw_clock.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
  return true;
}

// The counter wraps where its mask ends.
std::int64_t DeviceClock::since_reading(std::uint64_t ticks) const {
  const int unused = std::countl_zero(mask_);
  return static_cast<std::int64_t>((ticks - ticks_) << unused) >> unused;
}

std::optional<Instant> DeviceClock::at(std::uint64_t ticks) {
  std::int64_t since = since_reading(ticks);
  if (since > most_ || since < least_) [[unlikely]] {
    if (!read()) return std::nullopt;
    since = since_reading(ticks);
  }
  const auto apart = (static_cast<__int128>(since) * static_cast<std::int64_t>(scale_)) >> 32;
  return time_ + Duration{static_cast<std::int64_t>(apart)};
}

}  // namespace bypass::verbs
