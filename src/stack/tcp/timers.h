// A connection's deadlines: retransmission and persist (RFC 6298, RFC 9293 §3.8.6.1), delayed ACK, and the
// idle deadline (keep-alive, FIN-WAIT-2, deferred accept).
//
// Deadlines lie in the Tcb. The wheel holds a Tcb once, never later than its earliest deadline; a deadline
// that moves away costs one store, and the entry that then fires too early is put where it belongs.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// Corked bytes go out after this long, as on Linux.
inline constexpr Duration kCorkLimit = std::chrono::milliseconds(200);

inline Instant& deadline(Tcb& tcb, Timer timer) {
  return tcb.deadline[static_cast<std::size_t>(timer)];
}
void arm(Env& env, Tcb& tcb, Timer timer, Instant at);
/// Of all of a connection's deadlines, its overlay's included.
[[nodiscard]] Instant earliest_deadline(const Tcb& tcb);
inline void disarm(Tcb& tcb, Timer timer) {
  deadline(tcb, timer) = kNever;
}
void stop_timers(Env& env, Tcb& tcb);

/// The retransmission timer anew: something is in flight and was sent or acknowledged now (RFC 6298 §5.1, §5.3).
void arm_retransmit(Env& env, Tcb& tcb);
/// Data waits, nothing is in flight, and no ACK will come by itself: probe or flush later.
void arm_persist(Env& env, Tcb& tcb, Duration after);
/// The idle deadline for what state and options ask for.
void arm_idle(Env& env, Tcb& tcb);

/// Everything that is due.
void run_timers(Env& env);
/// What is in flight has been lost, as far as anybody knows: the next output() begins with its first segment.
/// `again`: as CongestionControl::on_rto() has it.
void lose_flight(Env& env, Tcb& tcb, bool again);
/// The link is back: each connection that waits for an answer asks again, and what it has counted stays as it is.
void resend_after_outage(Env& env);
/// Peers' addresses have been announced: who waits for nothing, or in vain, says an ACK. What is under way in good
/// time goes its way.
void ask_after_announcement(Env& env, std::span<const IpAddress> peers);

}  // namespace bypass::tcp
