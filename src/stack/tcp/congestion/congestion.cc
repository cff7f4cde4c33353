#include "stack/tcp/congestion/congestion.h"

#include <utility>

namespace bypass::tcp {
namespace {

// What one ACK may add in slow start. RFC 3465 §2.2 allows 2 SMSS, and RFC 9406 §4.2 allows 8 without pacing. But if
// either end batches, one ACK answers a whole TSO frame or burst, and the sender emits such frames at once anyway.
constexpr std::uint32_t kAckLimit = 65536;
constexpr std::uint32_t kRfc6928Segment = 1460;

}  // namespace

void CongestionControl::start(Congestion algorithm, std::uint32_t mss, std::uint32_t initial_segments) {
  *this = CongestionControl{};
  window_.mss = mss;
  // RFC 6928: min(10 MSS, max(2 MSS, 14600)).
  window_.initial = std::min(initial_segments * mss, std::max(2 * mss, initial_segments * kRfc6928Segment));
  window_.cwnd = most_cwnd_ = window_.initial;
  change(algorithm);
}

void CongestionControl::change(Congestion algorithm) {
  if (algorithm == algorithm_) return;
  algorithm_ = algorithm;
  window_.counted = 0;
  if (!first_) begin_algorithm();
}

void CongestionControl::begin_algorithm() {
  if (algorithm_ == Congestion::kCubic)
    cubic_ = Cubic{};
  else
    newreno_ = NewReno{};
}

void CongestionControl::end_first_slow_start() {
  if (std::exchange(first_, false)) begin_algorithm();
}

void CongestionControl::set_mss(std::uint32_t mss) {
  window_.mss = mss;
  window_.cwnd = std::max(window_.cwnd, mss);
  most_cwnd_ = std::max(most_cwnd_, window_.cwnd);
}

void CongestionControl::on_syn_lost() {
  window_.initial = window_.cwnd = window_.mss;
}

void CongestionControl::on_ack(const AckEvent& ack) {
  if (ack.in_recovery || ack.acked == 0) return;
  if (in_slow_start()) {
    slow_start(ack);
  } else {
    end_first_slow_start();
    if (algorithm_ == Congestion::kCubic)
      cubic_.on_ack(window_, ack);
    else if (!ack.app_limited)
      newreno_.on_ack(window_, ack);
  }
  most_cwnd_ = std::max(most_cwnd_, window_.cwnd);
}

void CongestionControl::slow_start(const AckEvent& ack) {
  if (ack.app_limited) return;
  // HyStart++ is for the first slow start only (RFC 9406 §4.3).
  const unsigned divisor = first_ ? hystart_.on_ack(ack) : 1;
  if (divisor == 0) {
    window_.ssthresh = window_.cwnd;
    return;
  }
  // After a timeout an ACK may cover what arrived long before it (RFC 3465 §2.3).
  const std::uint32_t limit = ack.in_timeout ? window_.mss : std::max(kAckLimit, 2 * window_.mss);
  const std::uint32_t growth = std::min(ack.acked, limit) / divisor;
  window_.cwnd = std::min({window_.cwnd + growth, window_.ssthresh, kMaxCwnd});
}

void CongestionControl::reduce(std::uint32_t flight) {
  end_first_slow_start();
  window_.prior_cwnd = window_.cwnd;
  window_.prior_ssthresh = window_.ssthresh;
  window_.counted = 0;
  window_.ssthresh =
      algorithm_ == Congestion::kCubic ? cubic_.reduced(window_, flight) : newreno_.reduced(window_, flight);
}

void CongestionControl::on_loss_event(Instant /*now*/, std::uint32_t flight) {
  reduce(flight);
  window_.cwnd = window_.ssthresh;
}

void CongestionControl::on_rto(Instant /*now*/, std::uint32_t flight, bool again) {
  if (!again) {
    reduce(flight);
    if (algorithm_ == Congestion::kCubic) cubic_.on_rto();
  }
  window_.cwnd = window_.mss;
  window_.counted = 0;
}

void CongestionControl::on_idle_restart(Instant /*now*/, Duration idle, Duration rto) {
  if (idle <= rto || rto <= Duration{}) return;
  window_.ssthresh = std::max(window_.ssthresh, window_.cwnd / 4 * 3);
  if (!first_ && algorithm_ == Congestion::kCubic) cubic_.on_idle(idle);
  const std::uint32_t restart = std::min(window_.initial, window_.cwnd);  // RFC 5681 §4.1's RW
  for (; idle > rto && window_.cwnd > restart; idle -= rto) window_.cwnd /= 2;
  window_.cwnd = std::max(window_.cwnd, restart);
  window_.counted = 0;
}

void CongestionControl::undo() {
  if (!can_undo()) return;
  window_.cwnd = std::max(window_.cwnd, window_.prior_cwnd);
  window_.ssthresh = std::max(window_.ssthresh, window_.prior_ssthresh);
  window_.prior_cwnd = 0;
  if (window_.ssthresh == kMaxCwnd) {  // the first slow start was cut short
    first_ = true;
    hystart_ = HyStart{};
  } else if (algorithm_ == Congestion::kCubic) {
    cubic_.undo();
  }
}

}  // namespace bypass::tcp
