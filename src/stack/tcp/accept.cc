#include "stack/tcp/accept.h"

#include "stack/tcp/open.h"
#include "stack/tcp/output.h"
#include "stack/tcp/overlay.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"
#include "stack/tcp/transmit.h"

namespace bypass::tcp {
namespace {

void open_passive(Env& env, Listener& listener, Segment& s, std::optional<SeqNum> last) {
  const TcpHeader& h = header_of(*s.input);
  Path path;
  if (!env.core.network.resolve(s.input->destination, s.input->source, path).ok()) {
    env.count().drop_no_route++;
    return;
  }
  Tcb* tcb = make_connection(env, path, h.destination, h.source, listener.options);
  if (tcb == nullptr) {
    env.count().drop_tcp_memory++;
    return;
  }
  if (last) begin_above(*tcb, *last);
  env.count().tcp_passive_opens++;
  tcb->set(kPassive | kOrphan | kHalfOpen);
  tcb->listener = env.core.listeners.id_of(&listener);
  listener.half_open++;
  set_state(env, *tcb, State::kSynReceived, Why::kSegment);
  negotiate(env, *tcb, s);
  tcb->probe.start(tcb->seq_base, env.now());
  open_output(env, *tcb);
  arm_retransmit(env, *tcb);
}

void leave_syn_queue(Listener& listener, Tcb& tcb) {
  tcb.clear(kHalfOpen | kDeferred);
  if (listener.half_open != 0) listener.half_open--;
}

void enter_accept_queue(Env& env, Listener& listener, Tcb& tcb) {
  leave_syn_queue(listener, tcb);
  tcb.clear(kOrphan);
  tcb.options.defer_accept_s = 0;  // the listener's alone (inet_csk_clone_lock of Linux)
  tcb.accept_order = listener.next_order++;
  accept_push(listener, tcb);
  env.core.events.post(listener.event, kEventReadable);
}

// The peer believes in a connection that nobody will accept.
void give_up(Env& env, Tcb& tcb) {
  send_reset(env, tcb);
  finish(env, tcb, Error::kAborted, Why::kReset);
}

}  // namespace

void on_listen(Env& env, Listener& listener, Segment& s, std::optional<SeqNum> last) {
  if (s.has(kRst)) return;  // first
  if (s.has(kAck)) {        // second
    env.count().drop_tcp_no_connection++;
    return answer_with_reset(env, s);
  }
  if (!s.has(kSyn) || s.has(kFin)) {  // third, fourth
    env.count().drop_tcp_malformed++;
    return;
  }
  if (listener.accept_full()) {
    env.count().drop_tcp_accept_queue++;
  } else if (listener.half_open >= env.core.config.syn_queue) {
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
  // What an overlay's peer begins with is not the program's.
  if (tcb.options.defer_accept_s != 0 && (!text || tcb.overlay != nullptr) && !s.has(kFin)) {
    tcb.set(kDeferred);
    arm_idle(env, tcb);
    return Verdict::kContinue;
  }
  enter_accept_queue(env, *listener, tcb);
  return Verdict::kContinue;
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
    case State::kSynReceived:  // establish() goes on
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
