#include "stack/tcp/open/accept.h"

#include <optional>

#include "stack/tcp/open/open.h"
#include "stack/tcp/open/syn_cookie.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// Makes a child in SYN-RECEIVED that its listener counts. Null, and the reason is counted, if there is no route or no
// memory.
Tcb* make_child(Env& env, Listener& listener, const Segment& s) {
  const TcpHeader& h = header_of(*s.input);
  Path path;
  if (!env.core.network.resolve(s.input->destination, s.input->source, path).ok()) {
    env.count().drop_no_route++;
    return nullptr;
  }
  Tcb* tcb = make_connection(env, path, h.destination, h.source, listener.options);
  if (tcb == nullptr) {
    env.count().drop_tcp_memory++;
    return nullptr;
  }
  env.count().tcp_passive_opens++;
  tcb->set(kPassive | kOrphan | kHalfOpen);
  tcb->listener = env.core.listeners.id_of(&listener);
  listener.half_open++;
  set_state(env, *tcb, State::kSynReceived, Why::kSegment);
  return tcb;
}

void open_passive(Env& env, Listener& listener, Segment& s, std::optional<SeqNum> last) {
  Tcb* tcb = make_child(env, listener, s);
  if (tcb == nullptr) return;
  if (last) begin_above(*tcb, *last);
  negotiate(env, *tcb, s);
  tcb->probe.start(tcb->seq_base, env.now());
  open_output(env, *tcb);
  arm_retransmit(env, *tcb);
}

FlowKey key_of(const Segment& s) {
  const TcpHeader& h = header_of(*s.input);
  return {s.input->destination, s.input->source, h.destination, h.source};
}

void enter_accept_queue(Env& env, Listener& listener, Tcb& tcb) {
  if (tcb.has(kHalfOpen | kDeferred)) leave_listener(env.core, tcb);
  tcb.clear(kOrphan);
  tcb.options.defer_accept_s = 0;  // only the listener has it (inet_csk_clone_lock of Linux)
  tcb.accept_order = listener.next_order++;
  accept_push(listener, tcb);
  env.core.events.post(listener.event, kEventReadable);
}

// --- With the SYN queue full (syn_cookie.h)

void send_cookie(Env& env, Listener& listener, const Segment& s) {
  const FlowKey key = key_of(s);
  const std::uint16_t mss = s.options.mss != 0 ? s.options.mss : kDefaultMss;
  const SeqNum cookie = make_cookie(env.core.secret, key, s.seq, mss, env.now());
  if (!send_cookie_syn_ack(env, key, cookie, s, listener.options)) return;  // then it is as if the SYN was lost
  listener.cookies_until = env.now() + kCookieLifetime;
  env.count().tcp_cookies_out++;
}

// The SYN, as far as a cookie holds it.
std::optional<Segment> syn_of_cookie(Env& env, const Segment& s) {
  const FlowKey key = key_of(s);
  const SeqNum peer = s.seq - 1;
  const auto mss = read_cookie(env.core.secret, key, peer, s.ack - 1, env.now());
  if (!mss) return std::nullopt;
  Segment syn = s;
  syn.seq = peer;
  syn.options = {};
  if (s.options.has_timestamps && env.core.config.timestamps) {
    const std::uint32_t offset =
        timestamp_offset(env.core.secret, {key.local, key.local_port}, {key.remote, key.remote_port});
    syn.options = read_cookie_timestamp(s.options.ts_echo - offset);
    syn.options.ts_value = s.options.ts_value;
  }
  syn.options.mss = *mss;
  return syn;
}

// Takes an ACK that belongs to no connection. False: it holds no cookie.
bool open_by_cookie(Env& env, Listener& listener, Segment& s) {
  if (!env.core.config.syn_cookies || env.now() >= listener.cookies_until || s.has(kSyn)) return false;
  const auto syn = syn_of_cookie(env, s);
  if (!syn) {
    env.count().tcp_cookies_bad++;
    return false;
  }
  if (listener.accept_full()) {
    env.count().drop_tcp_accept_queue++;
    return true;
  }
  Tcb* tcb = make_child(env, listener, s);
  if (tcb == nullptr) return true;
  tcb->seq_base = s.ack;
  negotiate(env, *tcb, *syn);
  env.count().tcp_cookies_in++;
  s.options.ts_echo = 0;  // it was rounded down: no round-trip time follows from it
  process_segment(env, *tcb, s);
  return true;
}

// The peer believes in a connection that will not be accepted here: resets it.
void give_up(Env& env, Tcb& tcb) {
  send_reset(env, tcb);
  finish(env, tcb, Error::kAborted, Why::kReset);
}

}  // namespace

void on_listen(Env& env, Listener& listener, Segment& s, std::optional<SeqNum> last) {
  if (s.has(kRst)) return;  // first
  if (s.has(kAck)) {        // second
    if (open_by_cookie(env, listener, s)) return;
    env.count().drop_tcp_no_connection++;
    return answer_with_reset(env, s);
  }
  if (!s.has(kSyn) || s.has(kFin)) {  // third, fourth
    env.count().drop_tcp_malformed++;
    return;
  }
  if (listener.accept_full()) {
    env.count().drop_tcp_accept_queue++;
  } else if (listener.half_open >= env.core.config.syn_queue && !last) {
    if (env.core.config.syn_cookies) return send_cookie(env, listener, s);
    env.count().drop_tcp_syn_queue++;
  } else {
    open_passive(env, listener, s, last);
  }
}

Verdict complete_handshake(Env& env, Tcb& tcb, Segment& s) {
  if (!tcb.has(kPassive)) {  // both opened at once
    establish(env, tcb, s);
    env.post(tcb, kEventConnected | kEventWritable);
    return Verdict::kContinue;
  }
  Listener* listener = env.core.listeners.get(tcb.listener);
  if (listener == nullptr) {
    give_up(env, tcb);
    return Verdict::kDone;
  }
  if (listener->accept_full()) return drop(env.count().drop_tcp_accept_queue);
  establish(env, tcb, s);
  const bool text = s.payload != 0;
  tell_established(env, tcb, !text && s.seq == tcb.rcv_nxt);
  // What an overlay's peer begins with are not the program's bytes.
  const bool may_wait = listener->deferred < env.core.config.syn_queue;  // otherwise it is accepted without its data
  if (tcb.options.defer_accept_s != 0 && (!text || tcb.overlay != nullptr) && !s.has(kFin) && may_wait) {
    leave_listener(env.core, tcb);
    tcb.set(kDeferred);
    listener->deferred++;
    arm_idle(env, tcb);
    return Verdict::kContinue;
  }
  enter_accept_queue(env, *listener, tcb);
  return Verdict::kContinue;
}

void leave_listener(Core& core, Tcb& tcb) {
  Listener* listener = core.listeners.get(tcb.listener);
  if (listener != nullptr) (tcb.has(kDeferred) ? listener->deferred : listener->half_open)--;
  tcb.clear(kHalfOpen | kDeferred);
}

bool end_deferral(Env& env, Tcb& tcb) {
  Listener* listener = env.core.listeners.get(tcb.listener);
  if (listener == nullptr || listener->accept_full()) return false;
  enter_accept_queue(env, *listener, tcb);
  arm_idle(env, tcb);
  return true;
}

void accept_deferred(Env& env, Tcb& tcb) {
  if (env.core.listeners.get(tcb.listener) == nullptr) return give_up(env, tcb);
  if (!end_deferral(env, tcb)) arm(env, tcb, Timer::kIdle, env.now() + std::chrono::seconds(1));
}

void queue_fin(Env& env, Tcb& tcb) {
  if (begin_fin(env, tcb)) output(env, tcb);
}

bool begin_fin(Env& env, Tcb& tcb) {
  if (tcb.has(kFinQueued)) return false;
  switch (tcb.state) {
    case State::kSynSent:
      finish(env, tcb, Error::kNone, Why::kUser);
      return false;
    case State::kSynReceived:  // establish() continues
      tcb.set(kFinQueued);
      return false;
    case State::kEstablished:
      set_state(env, tcb, State::kFinWait1, Why::kUser);
      break;
    case State::kCloseWait:
      set_state(env, tcb, State::kLastAck, Why::kUser);
      break;
    default:
      return false;
  }
  tcb.set(kFinQueued);
  return true;
}

void arm_idle_after_fin(Env& env, Tcb& tcb) {
  if (tcb.orphan()) arm_idle(env, tcb);
}

void leave_for_time_wait(Env& env, Tcb& tcb) {
  if (tcb.has(kAckNow | kAckDelayed)) acknowledge(env, tcb);
  enter_time_wait(env, tcb);
  if (tcb.orphan()) return destroy(env, tcb);
  env.post(tcb, kEventClosed | kEventWritable);
}

}  // namespace bypass::tcp
