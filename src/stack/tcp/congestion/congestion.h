// CongestionControl: how many bytes may be in flight. RFC 5681 with the algorithm of the socket's choice
// (CUBIC, RFC 9438, or NewReno) for congestion avoidance. A tagged union without pointers, kept in the Tcb.
//
// It decides windows, not segments: loss recovery (sack_scoreboard.h) says when a loss event begins and how
// much is in the pipe; the sender sends while pipe < cwnd. During SACK recovery cwnd stays at ssthresh
// (RFC 6675 §5), so on_ack() must be told `in_recovery`.
//
// Slow start counts bytes (RFC 3465), 1 SMSS an ACK while a timeout is being repaired and a TSO frame's worth
// otherwise; the initial window is RFC 6928's, and HyStart++ (RFC 9406) watches the first slow start. A window
// that was not used is not grown (RFC 7661's concern), and one that lay idle shrinks (RFC 5681 §4.1, by halves
// a RTO as RFC 2861 has it).
#pragma once

#include <algorithm>
#include <cstdint>

#include "stack/tcp/congestion/cubic.h"
#include "stack/tcp/congestion/hystart.h"
#include "stack/tcp/congestion/newreno.h"
#include "stack/tcp/congestion/window.h"
#include "stack/tcp/engine.h"
#include "stack/time.h"

namespace bypass::tcp {

class CongestionControl {
 public:
  CongestionControl() : hystart_{} {}
  /// Once the MSS is known. `initial_segments`: RFC 6928's 10.
  void start(Congestion algorithm, std::uint32_t mss, std::uint32_t initial_segments);
  /// The program set TCP_CONGESTION: the window is kept.
  void change(Congestion algorithm);
  /// The path MTU changed. cwnd keeps its bytes, at least one segment.
  void set_mss(std::uint32_t mss);
  /// RFC 5681 §3.1: if the SYN or SYN-ACK was lost, the initial window is one segment.
  void on_syn_lost();

  [[nodiscard]] std::uint32_t cwnd() const { return window_.cwnd; }
  /// The largest window so far. A send buffer is sized by it and never shrinks (tcp_sndbuf_expand() of Linux).
  [[nodiscard]] std::uint32_t most_cwnd() const { return most_cwnd_; }
  [[nodiscard]] std::uint32_t ssthresh() const { return window_.ssthresh; }
  [[nodiscard]] std::uint32_t mss() const { return window_.mss; }
  [[nodiscard]] Congestion algorithm() const { return algorithm_; }
  [[nodiscard]] bool in_slow_start() const { return window_.cwnd < window_.ssthresh; }

  /// An ACK acknowledged new bytes, cumulatively or by SACK.
  void on_ack(const AckEvent& ack);
  /// A loss was detected by duplicate ACKs or SACK: once a recovery (RFC 6675 §5 step 4).
  void on_loss_event(Instant now, std::uint32_t flight);
  /// The retransmission timer expired. `again`: for data that timed out before (ssthresh then stays,
  /// RFC 5681 §3.1).
  void on_rto(Instant now, std::uint32_t flight, bool again);
  /// Before sending after `idle` without a transmission; does nothing while idle <= rto.
  void on_idle_restart(Instant now, Duration idle, Duration rto);
  /// The last reduction (loss event or timeout) was spurious: restores the windows from before it.
  void undo();
  [[nodiscard]] bool can_undo() const { return window_.prior_cwnd != 0; }

 private:
  void slow_start(const AckEvent& ack);
  void reduce(std::uint32_t flight);
  void end_first_slow_start();
  void begin_algorithm();

  Window window_;
  std::uint32_t most_cwnd_ = 0;
  union {  // by `first_` and `algorithm_`
    HyStart hystart_;
    Cubic cubic_;
    NewReno newreno_;
  };
  bool first_ = true;  // the first slow start is still going on
  Congestion algorithm_ = Congestion::kCubic;
};
static_assert(sizeof(CongestionControl) <= 80);

}  // namespace bypass::tcp
