// RFC 9293 §3.10.7.4: a segment of a connection that is past SYN-SENT, check by check.
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

// After so long without a segment, TS.Recent is no longer valid (RFC 7323 §5.5).
constexpr Duration kTimestampsValid = std::chrono::hours(24 * 24);
constexpr Duration kChallengeInterval = std::chrono::milliseconds(20);

// --- First: sequence number, with PAWS in front (RFC 7323 §5.3 R1)

bool old_timestamp(Env& env, const Tcb& tcb, const Segment& s) {
  return tcb.has(kTimestamps) && s.options.has_timestamps && !s.has(kRst) &&
         before(SeqNum{s.options.ts_value}, SeqNum{tcb.ts_recent}) && env.now() - tcb.last_received < kTimestampsValid;
}

// The peer has not seen our SYN-ACK, or both opened at once and this is its SYN-ACK.
bool repeats_syn(const Tcb& tcb, const Segment& s) {
  return tcb.state == State::kSynReceived && s.has(kSyn) && s.seq + 1 == tcb.rcv_nxt;
}

Verdict on_repeated_syn(Env& env, Tcb& tcb, Segment& s) {
  if (s.has(kAck)) {  // simultaneous open, figure 8: its ACK counts
    s.seq += 1;
    s.flags &= static_cast<std::uint8_t>(~kSyn);
    s.of_syn = true;
    ack_soon(env, tcb);
    return Verdict::kContinue;
  }
  repeat_open(env, tcb);
  return drop(env.count().drop_tcp_duplicate);
}

// The test of §3.10.7.4's table. It also accepts a probe of a closed window, and numbers that end the window. It also
// accepts the part of a window that was taken back: the peer has sent up to there, and its ACKs say so.
bool acceptable(const Tcb& tcb, const Segment& s) {
  const SeqNum edge = tcb.has(kLowMemory) ? furthest_edge(tcb) : tcb.rcv_adv;
  if (s.length() == 0) return after_or_at(s.seq, tcb.rcv_nxt) && before_or_at(s.seq, edge);
  return after(s.end(), tcb.rcv_nxt) && (before(s.seq, edge) || s.seq == tcb.rcv_nxt);
}

// RFC 2883 §4: this includes a segment that is dropped for its numbers or its timestamp (tcp_send_dupack() of Linux).
void note_old_text(Tcb& tcb, const Segment& s) {
  const SeqNum end = earlier(s.seq + s.payload, tcb.rcv_nxt);
  if (before(s.seq, end)) tcb.reassembly.note_duplicate(s.seq, end);
}

Verdict check_sequence(Env& env, Tcb& tcb, Segment& s) {
  if (repeats_syn(tcb, s)) return on_repeated_syn(env, tcb, s);
  if (old_timestamp(env, tcb, s)) {
    note_old_text(tcb, s);
    answer_unacceptable(env, tcb, s);
    return drop(env.count().drop_tcp_paws);
  }
  if (acceptable(tcb, s)) {
    tcb.last_received = env.now();
    tcb.probes = 0;
    return Verdict::kContinue;
  }
  if (s.has(kRst)) return drop(env.count().drop_tcp_bad_rst);
  const bool duplicate = s.length() != 0 && before_or_at(s.end(), tcb.rcv_nxt);
  note_old_text(tcb, s);
  answer_unacceptable(env, tcb, s);
  return drop(duplicate ? env.count().drop_tcp_duplicate : env.count().drop_tcp_out_of_window);
}

// --- Second: RST (RFC 5961 §3.2)

Error reset_cause(const Tcb& tcb) {
  switch (tcb.state) {
    case State::kSynReceived:
      return Error::kRefused;
    case State::kCloseWait:
      return Error::kBrokenPipe;  // as Linux: the peer had finished, and its RST answers what we wrote
    default:
      return Error::kReset;
  }
}

Verdict check_rst(Env& env, Tcb& tcb, Segment& s) {
  if (!s.has(kRst)) return Verdict::kContinue;
  if (s.seq != tcb.rcv_nxt) {
    challenge(env, tcb);
    return drop(env.count().drop_tcp_bad_rst);
  }
  env.count().tcp_resets_in++;
  finish(env, tcb, reset_cause(tcb), Why::kReset);
  return Verdict::kDone;
}

// --- Fourth: SYN (RFC 5961 §4.2). (Third, security, is not built: RFC 9293 §A.1.)

Verdict check_syn(Env& env, Tcb& tcb, Segment& s) {
  if (!s.has(kSyn)) return Verdict::kContinue;
  challenge(env, tcb);
  return drop(env.count().drop_tcp_bad_syn);
}

// --- Fifth: ACK

// RFC 7323 §5.3 R3, but only after the ACK was found good. Otherwise a blind guess of the sequence number alone could
// set a timestamp with which PAWS drops everything that the peer sends.
void note_timestamp(Tcb& tcb, const Segment& s) {
  if (!s.options.has_timestamps || !tcb.has(kTimestamps)) return;
  if (!after(s.seq, tcb.last_ack_sent)) tcb.ts_recent = s.options.ts_value;
}

Verdict ack_of_syn(Env& env, Tcb& tcb, Segment& s) {
  if (s.ack != tcb.seq_base) {
    answer_with_reset(env, s);
    return drop(env.count().drop_tcp_bad_ack);
  }
  return complete_handshake(env, tcb, s);
}

// As Linux (tcp_rcv_state_process): a closed socket with TCP_LINGER2 below 0 does not wait for the peer's end.
Verdict enter_fin_wait2(Env& env, Tcb& tcb, const Segment& s) {
  set_state(env, tcb, State::kFinWait2, Why::kSegment);
  env.post(tcb, kEventDelivered);  // a lingering close() has waited for this
  if (tcb.orphan() && tcb.options.linger2_s < 0 && !s.has(kFin)) {
    answer_with_reset(env, s);
    finish(env, tcb, Error::kNone, Why::kUser);
    return Verdict::kDone;
  }
  arm_idle_after_fin(env, tcb);
  return Verdict::kContinue;
}

// The changes after our FIN was acknowledged.
Verdict after_fin_acked(Env& env, Tcb& tcb, const Segment& s) {
  switch (tcb.state) {
    case State::kFinWait1:
      return enter_fin_wait2(env, tcb, s);
    case State::kClosing:
      set_state(env, tcb, State::kTimeWait, Why::kSegment);
      leave_for_time_wait(env, tcb);
      return Verdict::kDone;
    case State::kLastAck:
      finish(env, tcb, Error::kNone, Why::kSegment);
      return Verdict::kDone;
    default:
      return Verdict::kContinue;
  }
}

Verdict check_ack(Env& env, Tcb& tcb, Segment& s) {
  if (!s.has(kAck)) return drop(env.count().drop_tcp_bad_ack);
  if (tcb.state == State::kSynReceived && ack_of_syn(env, tcb, s) == Verdict::kDone) return Verdict::kDone;
  const std::int32_t acked = s.ack - tcb.seq_of(tcb.snd_una);
  const bool unsent = acked > static_cast<std::int32_t>(tcb.in_flight());
  // RFC 5961 §5.2: nor below what the peer's window could have left unacknowledged.
  const bool ancient = acked < 0 && distance(s.ack, tcb.seq_of(tcb.snd_una)) > tcb.max_snd_wnd;
  if (unsent || ancient) {
    challenge(env, tcb);
    return drop(env.count().drop_tcp_bad_ack);
  }
  note_timestamp(tcb, s);
  if (acked < 0) {  // an overtaken ACK; its SACK blocks may still be new (old_ack in tcp_ack() of Linux)
    if (s.options.sack_count != 0) on_old_ack(env, tcb, s);
    return Verdict::kContinue;
  }
  const std::uint32_t wnd_before = tcb.snd_wnd;
  update_window(env, tcb, s);
  if (acked == 0) {
    if (wnd_before == tcb.snd_wnd || s.options.sack_count != 0) on_old_ack(env, tcb, s);
    return Verdict::kContinue;
  }
  on_new_ack(env, tcb, s, static_cast<std::uint32_t>(acked));
  const bool fin_acked = tcb.has(kFinSent) && tcb.snd_una == tcb.send_end();
  return fin_acked ? after_fin_acked(env, tcb, s) : Verdict::kContinue;
}

// --- Seventh: text. (Sixth, URG: urgent data is read in line, RFC 6093.)

Verdict check_text(Env& env, Tcb& tcb, Segment& s) {
  if (s.payload == 0) return Verdict::kContinue;
  if (!receives(tcb.state)) return Verdict::kContinue;
  const bool closed = tcb.orphan() && !tcb.has(kDeferred) && tcb.overlay == nullptr;
  const bool shut = tcb.has(kReceiveShut) && (tcb.state == State::kFinWait1 || tcb.state == State::kFinWait2);
  if ((closed || shut) && after(s.seq + s.payload, tcb.rcv_nxt)) {
    // RFC 9293 §3.6.1: nobody will read the data, and the peer must know. If both directions are shut, that is the same
    // as closed.
    env.count().drop_tcp_after_close++;
    send_reset(env, tcb);
    finish(env, tcb, closed ? Error::kNone : Error::kReset, Why::kReset);
    return Verdict::kDone;
  }
  if (tcb.has(kDeferred) && tcb.overlay == nullptr && !end_deferral(env, tcb))
    return drop(env.count().drop_tcp_accept_queue);
  accept_text(env, tcb, s);
  return Verdict::kContinue;
}

// --- Eighth: FIN

Verdict check_fin(Env& env, Tcb& tcb, Segment& s) {
  if (s.has(kFin) && receives(tcb.state)) {
    tcb.rcv_fin = s.end() - 1;
    tcb.set(kFinSeen);
    ack_soon(env, tcb);
  }
  if (!tcb.has(kFinSeen) || tcb.has(kFinReceived) || tcb.rcv_fin != tcb.rcv_nxt) return Verdict::kContinue;
  // As Linux (tcp_check_req): a FIN ends TCP_DEFER_ACCEPT's wait as data does.
  if (tcb.has(kDeferred) && tcb.overlay == nullptr && !end_deferral(env, tcb))
    return drop(env.count().drop_tcp_accept_queue);
  take_fin(env, tcb);
  return Verdict::kContinue;
}

}  // namespace

void challenge(Env& env, Tcb& tcb) {
  const std::uint32_t now = milliseconds_of(env.now()) + 1;
  if (std::chrono::milliseconds(now - tcb.challenged) < kChallengeInterval && tcb.challenged != 0) return;
  tcb.challenged = now;
  env.count().tcp_challenge_acks++;
  ack_soon(env, tcb);
}

void answer_unacceptable(Env& env, Tcb& tcb, const Segment& segment) {
  if (tcb.has(kLowMemory)) end_low_memory_if_over(env, tcb);  // for example, a probe of the closed window
  if (segment.payload != 0 || segment.has(kFin)) return ack_soon(env, tcb);
  challenge(env, tcb);
}

[[gnu::noinline, gnu::cold]] void process_segment(Env& env, Tcb& tcb, Segment& segment) {
  tcb.segments_in++;
  if (tcb.state == State::kSynSent) return on_syn_sent(env, tcb, segment);
  constexpr Verdict (*kSteps[])(Env&, Tcb&, Segment&) = {check_sequence, check_rst,  check_syn,
                                                         check_ack,      check_text, check_fin};
  for (const auto step : kSteps)
    if (step(env, tcb, segment) != Verdict::kContinue) return;
}

}  // namespace bypass::tcp
