// The congestion window that all algorithms share, and the event that they get with an ACK.
#pragma once

#include <cstdint>

#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

/// No window of TCP's can be larger (RFC 7323 §2.2's 2^30 for the peer's), so sums below never overflow.
inline constexpr std::uint32_t kMaxCwnd = std::uint32_t{1} << 30;

struct Window {
  std::uint32_t cwnd = 0;  // bytes
  std::uint32_t ssthresh = kMaxCwnd;
  std::uint32_t mss = 0;
  std::uint32_t initial = 0;                         // bytes, RFC 6928
  std::uint32_t prior_cwnd = 0, prior_ssthresh = 0;  // values before the last reduction, for undo()
  std::uint32_t counted = 0;                         // bytes acknowledged that have not made the window grow yet
};

/// An ACK of new data.
struct AckEvent {
  Instant now{};
  std::uint32_t acked = 0;   // bytes newly acknowledged
  std::uint32_t flight = 0;  // bytes that were outstanding before this ACK
  Duration srtt{};           // zero: no estimate yet
  Duration rtt{};            // the sample of this ACK; zero: no sample
  SeqNum una{}, nxt{};       // SND.UNA after it, SND.NXT: they bound HyStart++'s rounds
  bool app_limited = false;  // since the last ACK, something else than cwnd held the sender back
  bool in_recovery = false;  // fast recovery is going on: cwnd stays
  bool in_timeout = false;   // what was outstanding at a timeout is not yet all acknowledged
};

}  // namespace bypass::tcp
