// The state of a connection (RFC 9293 §3.3.2): the only place that changes it, and how a connection ends.
#pragma once

#include <cstdint>

#include "stack/result.h"
#include "stack/tcp/core.h"

namespace bypass::tcp {

enum class Why : std::uint8_t { kOpen, kUser, kSegment, kTimer, kReset, kRebuild };

/// Whether RFC 9293 figure 5 (plus the exits that every state has) allows the transition.
[[nodiscard]] bool legal(State from, State to);
void set_state(Env& env, Tcb& tcb, State next, Why why);
[[nodiscard]] const char* name_of(State state);

[[nodiscard]] constexpr bool synchronized(State s) {
  return s >= State::kEstablished;
}
/// The peer may still send data.
[[nodiscard]] constexpr bool receives(State s) {
  return s == State::kEstablished || s == State::kFinWait1 || s == State::kFinWait2;
}
/// We may still have data or a FIN to send or to send again.
[[nodiscard]] constexpr bool sends(State s) {
  return s == State::kEstablished || s == State::kCloseWait || s == State::kFinWait1 || s == State::kClosing ||
         s == State::kLastAck;
}

/// The connection is over, for `error` or in order (kNone): leaves the table and timers, and tells the socket. Without
/// a socket the Tcb goes back to the slab; the caller must not touch it again.
void finish(Env& env, Tcb& tcb, Error error, Why why);
/// The Tcb leaves the flow table and its listener's count; its timers stop. For finish() and TIME_WAIT.
void detach(Env& env, Tcb& tcb);
/// The socket is gone and the connection is over: gives back everything that the Tcb owns, and the Tcb.
void destroy(Env& env, Tcb& tcb);
/// The socket is gone and the connection goes on: it counts as an orphan. False: it was reset and given back, because
/// there are too many orphans, or too little memory for its bytes (tcp_check_oom() of Linux).
bool keep_orphan(Env& env, Tcb& tcb);
/// The same check later, for an orphan. One whose peer has taken nothing for long counts twice.
[[nodiscard]] bool is_one_too_many(const Env& env, const Tcb& tcb);
/// Resets an orphan and ends it.
void drop_orphan(Env& env, Tcb& tcb);
/// To be called after unlinking from a list: frees a Tcb that waited only for that.
void reap(Env& env, Tcb& tcb);

/// Sets what holds the connection back from now on, for TCP_INFO.
inline void turn_limit(Env& env, Tcb& tcb, Limit limit) {
  if (limit == tcb.limit) return;
  tcb.busy_times.turn(tcb.limit, milliseconds_of(env.now()));
  tcb.limit = limit;
}

}  // namespace bypass::tcp
