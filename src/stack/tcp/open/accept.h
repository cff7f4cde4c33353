// Passive opens (RFC 9293 §3.10.7.2): from a SYN to the accept queue; and connections on their way out of
// the flow table that the input steps share.
#pragma once

#include "stack/tcp/core.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

/// A segment for a listener's port. `last`: what the endpoints' last incarnation had sent, if it is still remembered.
void on_listen(Env& env, Listener& listener, Segment& segment, std::optional<SeqNum> last = std::nullopt);
/// Our SYN is acknowledged in SYN-RECEIVED. kDone: the accept queue is full, the ACK is dropped and the
/// SYN-ACK will be sent again (as Linux).
Verdict complete_handshake(Env& env, Tcb& tcb, Segment& segment);

/// A half-open or deferred connection is no longer its listener's to count.
void leave_listener(Core& core, Tcb& tcb);

/// TCP_DEFER_ACCEPT: the first data lets the connection into the accept queue. False: it is full.
bool end_deferral(Env& env, Tcb& tcb);
/// … and so does the end of patience.
void accept_deferred(Env& env, Tcb& tcb);

/// Our direction ends: FIN behind what is queued (RFC 9293 §3.10.4).
void queue_fin(Env& env, Tcb& tcb);
/// The same without sending it yet; whether output() is due.
bool begin_fin(Env& env, Tcb& tcb);
/// Our FIN is acknowledged: an orphan waits for the peer's only so long.
void arm_idle_after_fin(Env& env, Tcb& tcb);
/// The state is TIME_WAIT: the last ACK goes out, a TimeWait takes over, the socket sees the end.
void leave_for_time_wait(Env& env, Tcb& tcb);

}  // namespace bypass::tcp
