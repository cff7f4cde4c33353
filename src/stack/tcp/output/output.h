// What a connection sends now: retransmissions first (RFC 6675), then new data as far as the peer's
// window, cwnd, Nagle and the device allow, then FIN.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// May be called at any time; does nothing when there is nothing to do.
void output(Env& env, Tcb& tcb);
/// TCP_NODELAY was set, or TCP_CORK ended: sends what was written, as Nagle's algorithm allows.
void push_written(Env& env, Tcb& tcb);
/// A writer found no room. Once everything in the buffer is sent, the buffer is the limit until wake_writer().
void note_refused(Env& env, Tcb& tcb);
/// Sends an ACK without data now, or at the next poll if the device has no room.
void acknowledge(Env& env, Tcb& tcb);
/// Sends SYN or SYN-ACK now, or at the next poll if the device has no room.
void open_output(Env& env, Tcb& tcb);
/// Sends it again. An answer no longer shows which transmission it answers (Karn's algorithm, RFC 6298 §3).
void repeat_open(Env& env, Tcb& tcb);
/// Sends an empty segment below the window, which every receiver answers: window probe and keep-alive.
void send_probe(Env& env, Tcb& tcb);

/// The Tcb gets its turn at the end of the burst.
void touch(Env& env, Tcb& tcb);
/// Sends output and ACKs of every connection that the burst touched: at most one pure ACK each.
void end_burst(Env& env);

/// The device may have room again: sends what waited for it.
void resume_blocked(Env& env);
/// The device may have sent the frames that referred to send rings: unpins those rings.
void unpin_sent(Env& env);

}  // namespace bypass::tcp
