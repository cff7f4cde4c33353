// CUBIC (RFC 9438): after a loss the window grows as a cubic function of the time since, flat around the
// window at which the loss happened, and never slower than Reno would (§4.3).
//
// Integers only: windows in bytes, time in ticks of 1/1024 s.
#pragma once

#include <cstdint>

#include "stack/tcp/congestion/window.h"

namespace bypass::tcp {

/// The cube root, rounded down.
std::uint32_t cube_root(std::uint64_t n);

struct Cubic {
  /// Congestion avoidance (§4.2 to §4.5). Also called for ACKs of a sender that is not limited by cwnd: their time does
  /// not count (§5.8).
  void on_ack(Window& window, const AckEvent& ack);
  /// Reacts to a loss event or timeout: fast convergence (§4.7). Returns the new ssthresh, 0.7 of what was in flight
  /// (§4.6).
  [[nodiscard]] std::uint32_t reduced(const Window& window, std::uint32_t flight);
  /// After a timeout the next epoch begins with the window that slow start reaches (§4.8).
  void on_rto() { w_max = 0; }
  /// Nothing was sent for that long: this time does not count either.
  void on_idle(Duration idle);
  /// The last reduced() was wrong (§4.9).
  void undo();

  // start of this congestion avoidance, shifted by limited periods; kNever: it has not begun
  Instant epoch_start = kNever;
  Instant last_ack{};
  std::uint32_t w_max = 0;  // bytes; where the plateau lies
  std::uint32_t prior_w_max = 0;
  std::uint32_t k = 0;            // ticks from the epoch's start to the plateau
  std::uint32_t w_est = 0;        // bytes; what Reno would have
  std::uint32_t est_counted = 0;  // bytes acknowledged towards its next segment
  std::uint32_t cwnd_prior = 0;   // bytes; cwnd before the last reduction
 private:
  [[nodiscard]] bool in_epoch() const { return epoch_start != kNever; }
  void begin_epoch(const Window& window, const AckEvent& ack);
  void grow_estimate(const Window& window, std::uint32_t acked);
  [[nodiscard]] std::uint32_t w_cubic(Duration t, std::uint32_t mss) const;
};

}  // namespace bypass::tcp
