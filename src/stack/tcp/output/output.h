// What a connection sends now: retransmissions first (RFC 6675), then new data as far as the peer's
// window, cwnd, Nagle and the device allow, then FIN.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// May be called at any time; does nothing when there is nothing to do.
void output(Env& env, Tcb& tcb);
/// TCP_NODELAY was set, or TCP_CORK ended: what was written goes, as Nagle's algorithm allows.
void push_written(Env& env, Tcb& tcb);
/// A writer found no room. Until wake_writer() the buffer is the limit, once everything in it is sent.
void note_refused(Env& env, Tcb& tcb);
/// An ACK without data, now; at the next poll if the device has no room.
void acknowledge(Env& env, Tcb& tcb);
/// SYN or SYN-ACK; at the next poll if the device has no room.
void open_output(Env& env, Tcb& tcb);
/// The same once more: whose answer comes is not to be told any more (Karn's algorithm, RFC 6298 §3).
void repeat_open(Env& env, Tcb& tcb);
/// An empty segment below the window, which every receiver answers: window probe and keep-alive.
void send_probe(Env& env, Tcb& tcb);

/// The Tcb gets its turn at the burst's end.
void touch(Env& env, Tcb& tcb);
/// Output and ACKs of every connection that the burst touched: at most one pure ACK each.
void end_burst(Env& env);

/// The device may have room again.
void resume_blocked(Env& env);
/// The device may have sent what referred to send rings.
void unpin_sent(Env& env);

}  // namespace bypass::tcp
