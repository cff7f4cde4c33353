// Round-trip times: the estimate and the retransmission timeout of RFC 6298, in nanoseconds.
//
// A sample is measured either by RttProbe, one timed segment a flight, exact and void once the segment is
// sent again (Karn's algorithm, RFC 6298 §3), or from an echoed timestamp (RFC 7323 §4), whose clock ticks
// coarsely but which also holds for retransmissions. Times are arrival times of batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

struct RtoBounds {
  Duration initial = std::chrono::seconds(1);
  Duration min = std::chrono::milliseconds(200);
  Duration max = std::chrono::seconds(120);
};

class RttEstimator {
 public:
  /// How long a minimum is remembered. It is replaced by newer samples within one to two windows.
  static constexpr Duration kMinWindow = std::chrono::seconds(10);

  [[nodiscard]] bool has_sample() const { return srtt_ != Duration{}; }
  [[nodiscard]] Duration srtt() const { return srtt_; }
  [[nodiscard]] Duration rttvar() const { return rttvar_; }
  /// The lowest sample of the last one or two windows; zero before the first sample.
  [[nodiscard]] Duration min_rtt() const;

  /// Takes a sample, RFC 6298 §2; ends the backoff (§5.7's last paragraph). `samples_per_rtt`: how many samples a
  /// flight yields if every ACK gives one (RFC 7323 appendix G), so that the memory covers the same time.
  void on_sample(Instant now, Duration rtt, unsigned samples_per_rtt = 1);
  /// The timeout to arm now, backoff included.
  [[nodiscard]] Duration rto(const RtoBounds& bounds) const;
  /// The timer expired (§5.5): the next timeout doubles.
  void on_timeout() { backoff_ = static_cast<std::uint8_t>(std::min(backoff_ + 1, 63)); }
  /// New data was acknowledged, though no sample could be taken: the path works (as in Linux).
  void reset_backoff() { backoff_ = 0; }
  [[nodiscard]] unsigned backoff() const { return backoff_; }
  /// A SYN was lost, and the handshake gave no sample: the first timeout is 3 s (§5.7).
  void on_handshake_without_sample() { fallback_ = true; }

 private:
  void remember_minimum(Instant now, Duration rtt);

  Duration srtt_{};
  Duration rttvar_{};
  std::uint32_t min_now_ns_ = 0, min_before_ns_ = 0;  // saturate at 4.29 s
  std::uint32_t window_began_ = 0;                    // in units of 1.05 ms: remember_minimum()
  std::uint8_t backoff_ = 0;
  bool fallback_ = false;
};
static_assert(sizeof(RttEstimator) <= 32);

/// Times one segment at a time, from its first transmission to the ACK that covers it.
class RttProbe {
 public:
  [[nodiscard]] bool running() const { return running_; }
  /// `end`: the sequence number after the segment just sent for the first time.
  void start(SeqNum end, Instant now) {
    end_ = end;
    sent_ = now;
    running_ = true;
  }
  /// Something was sent again: an ACK no longer shows which transmission it answers.
  void cancel() { running_ = false; }
  /// The sample, when `una` covers the segment.
  std::optional<Duration> on_ack(SeqNum una, Instant now) {
    if (!running_ || before(una, end_)) return std::nullopt;
    running_ = false;
    return now - sent_;
  }

 private:
  Instant sent_{};
  SeqNum end_{};
  bool running_ = false;
};

}  // namespace bypass::tcp
