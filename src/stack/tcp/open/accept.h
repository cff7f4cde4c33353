// Passive opens (RFC 9293 §3.10.7.2): from a SYN to the accept queue. Also the steps by which connections leave the
// flow table, which the input steps share.
#pragma once

#include "stack/tcp/core.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

/// Takes a segment for a listener's port. `last`: the last number that an earlier connection between the endpoints had
/// sent, if that is still known.
void on_listen(Env& env, Listener& listener, Segment& segment, std::optional<SeqNum> last = std::nullopt);
/// Our SYN was acknowledged in SYN-RECEIVED. kDone: the accept queue is full, so the ACK is dropped and the SYN-ACK
/// will be sent again (as Linux).
Verdict complete_handshake(Env& env, Tcb& tcb, Segment& segment);

/// The listener no longer counts a half-open or deferred connection.
void leave_listener(Core& core, Tcb& tcb);

/// TCP_DEFER_ACCEPT: the first data moves the connection to the accept queue. False: the queue is full.
bool end_deferral(Env& env, Tcb& tcb);
/// The same when the time of TCP_DEFER_ACCEPT is over.
void accept_deferred(Env& env, Tcb& tcb);

/// Ends our direction: FIN after what is queued (RFC 9293 §3.10.4).
void queue_fin(Env& env, Tcb& tcb);
/// The same without sending the FIN yet. Returns whether output() is due.
bool begin_fin(Env& env, Tcb& tcb);
/// Our FIN was acknowledged: an orphan now waits for the peer's FIN only for a limited time.
void arm_idle_after_fin(Env& env, Tcb& tcb);
/// The state is TIME_WAIT: sends the last ACK, replaces the Tcb by a TimeWait, and tells the socket of the end.
void leave_for_time_wait(Env& env, Tcb& tcb);

}  // namespace bypass::tcp
