#include "stack/tcp/congestion/hystart.h"

#include <algorithm>

namespace bypass::tcp {
namespace {

// RFC 9406 §4.3's constants.
constexpr std::uint32_t kMinThresholdUs = 4000;
constexpr std::uint32_t kMaxThresholdUs = 16000;
constexpr std::uint32_t kRttDivisor = 8;
constexpr unsigned kSamples = 8;
constexpr unsigned kCssDivisor = 4;
constexpr unsigned kCssRounds = 5;

}  // namespace

void HyStart::begin_round(const AckEvent& ack) {
  last_min_us = min_us;
  min_us = 0;
  samples = 0;
  round_end = ack.nxt;
  started = true;
  if (css_round != 0) css_round++;
}

unsigned HyStart::on_ack(const AckEvent& ack) {
  if (!started || after_or_at(ack.una, round_end)) begin_round(ack);
  if (ack.rtt > Duration{}) {
    constexpr Duration::rep kLongest = 60'000'000;
    const auto us = static_cast<std::uint32_t>(std::clamp<Duration::rep>(ack.rtt.count() / 1000, 1, kLongest));
    min_us = min_us == 0 ? us : std::min(min_us, us);
    if (samples < kSamples) samples++;
  }
  if (css_round > kCssRounds) return 0;
  if (samples == kSamples && css_round == 0 && last_min_us != 0 &&
      min_us >= last_min_us + std::clamp(last_min_us / kRttDivisor, kMinThresholdUs, kMaxThresholdUs)) {
    baseline_us = min_us;
    css_round = 1;
  } else if (samples == kSamples && css_round != 0 && min_us < baseline_us) {
    css_round = 0;  // the rise was spurious
  }
  return css_round == 0 ? 1 : kCssDivisor;
}

}  // namespace bypass::tcp
