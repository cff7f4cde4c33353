// A connection's deadlines: retransmission and persist (RFC 6298, RFC 9293 §3.8.6.1), delayed ACK, and the
// idle deadline (keep-alive, FIN-WAIT-2, deferred accept).
//
// Deadlines lie in the Tcb. The wheel holds a Tcb once, never later than its earliest deadline. A deadline that moves
// away costs one store; the wheel's entry then fires too early and is put in its right place.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// Corked bytes are sent after this time, as on Linux.
inline constexpr Duration kCorkLimit = std::chrono::milliseconds(200);

inline Instant& deadline(Tcb& tcb, Timer timer) {
  return tcb.deadline[static_cast<std::size_t>(timer)];
}
void arm(Env& env, Tcb& tcb, Timer timer, Instant at);
/// The earliest of all deadlines of a connection, its overlay's included.
[[nodiscard]] Instant earliest_deadline(const Tcb& tcb);
inline void disarm(Tcb& tcb, Timer timer) {
  deadline(tcb, timer) = kNever;
}
void stop_timers(Env& env, Tcb& tcb);

/// Restarts the retransmission timer: something is in flight, and was sent or acknowledged now (RFC 6298 §5.1, §5.3).
void arm_retransmit(Env& env, Tcb& tcb);
/// Data waits, nothing is in flight, and no ACK will come by itself: probes or flushes later.
void arm_persist(Env& env, Tcb& tcb, Duration after);
/// Sets the idle deadline that state and options require.
void arm_idle(Env& env, Tcb& tcb);

/// Runs everything that is due.
void run_timers(Env& env);
/// The flight counts as lost: the next output() begins with its first segment. `again`: see
/// CongestionControl::on_rto().
void lose_flight(Env& env, Tcb& tcb, bool again);
/// The link is back: each connection that waits for an answer sends again. Its counts stay as they are.
void resend_after_outage(Env& env);
/// Peers' addresses were announced: each connection to them that waits for nothing, or has waited in vain, sends an
/// ACK. A connection whose answer is not late does nothing.
void ask_after_announcement(Env& env, std::span<const IpAddress> peers);

}  // namespace bypass::tcp
