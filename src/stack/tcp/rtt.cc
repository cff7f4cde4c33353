#include "stack/tcp/rtt.h"

#include <limits>

namespace bypass::tcp {
namespace {

constexpr Duration kGranularity = std::chrono::microseconds(1);  // RFC 6298's G: what polling adds
constexpr Duration kFallback = std::chrono::seconds(3);          // §5.7

}  // namespace

void RttEstimator::on_sample(Instant now, Duration rtt, unsigned samples_per_rtt) {
  rtt = std::max(rtt, Duration{1});
  if (!has_sample()) {  // §2.2
    srtt_ = rtt;
    rttvar_ = rtt / 2;
  } else {  // §2.3: alpha = 1/8, beta = 1/4, both spread over the flight's samples
    const Duration error = rtt - srtt_;
    const Duration spread = std::chrono::abs(error) - rttvar_;
    if (samples_per_rtt <= 1) [[likely]] {  // by constants: no division
      rttvar_ += spread / 4;
      srtt_ = std::max(srtt_ + error / 8, Duration{1});
    } else {
      const auto n = static_cast<Duration::rep>(samples_per_rtt);
      rttvar_ += spread / (4 * n);
      srtt_ = std::max(srtt_ + error / (8 * n), Duration{1});
    }
  }
  backoff_ = 0;
  fallback_ = false;
  remember_minimum(now, rtt);
}

Duration RttEstimator::rto(const RtoBounds& bounds) const {
  Duration base = fallback_ ? std::max(kFallback, bounds.initial) : bounds.initial;
  // The minimum limits the part of the variance, not the sum (__tcp_set_rto(), tcp_rto_min() of Linux): so a path with
  // a steady 190 ms still leaves its ACK time to be delayed.
  if (has_sample()) base = std::min(srtt_ + std::max({kGranularity, 4 * rttvar_, bounds.min}), bounds.max);
  for (unsigned i = 0; i < backoff_ && base < bounds.max; i++) base *= 2;
  return std::min(base, bounds.max);
}

Duration RttEstimator::min_rtt() const {
  return Duration{min_before_ns_ == 0 ? min_now_ns_ : std::min(min_now_ns_, min_before_ns_)};
}

void RttEstimator::remember_minimum(Instant now, Duration rtt) {
  constexpr Duration::rep kLargest = std::numeric_limits<std::uint32_t>::max();
  const auto ns = static_cast<std::uint32_t>(std::min(rtt.count(), kLargest));
  constexpr int kShift = 20;  // nanoseconds to about 1.05 ms by a shift, as each sample needs it
  constexpr std::uint32_t kWindow = kMinWindow.count() >> kShift;
  const auto at = static_cast<std::uint32_t>(now.time_since_epoch().count() >> kShift);
  const std::uint32_t age = at - window_began_;
  if (min_now_ns_ == 0 || age >= kWindow) {
    min_before_ns_ = age < 2 * kWindow ? min_now_ns_ : 0;
    min_now_ns_ = ns;
    window_began_ = at;
  }
  min_now_ns_ = std::min(min_now_ns_, ns);
}

}  // namespace bypass::tcp
