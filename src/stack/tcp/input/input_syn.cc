// RFC 9293 §3.10.7.3: SYN-SENT, and what the two SYNs agree on.
#include <algorithm>

#include "stack/tcp/input/input.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

constexpr std::size_t kMaxUnknownOptions = 16;

void show_unknown_options(Env& env, Tcb& tcb, const Segment& s) {
  const Hooks* hooks = env.ctx.hooks;
  if (hooks == nullptr || hooks->see_syn_option == nullptr || s.options.unknown_count == 0) return;
  UnknownOption unknown[kMaxUnknownOptions];
  const std::size_t n = unknown_options(s.option_bytes(), unknown);
  for (std::size_t i = 0; i < n; i++)
    hooks->see_syn_option(hooks->self, env.ctx, tcb, s.has(kAck), unknown[i].kind, unknown[i].body);
}

void on_syn_ack(Env& env, Tcb& tcb, Segment& s) {
  establish(env, tcb, s);
  tell_established(env, tcb, false);
  env.post(tcb, kEventConnected | kEventWritable);
  tcb.set(kAckNow | kTryOutput);
  touch(env, tcb);
  // Sixth and later steps: text and FIN that the SYN-ACK may carry, at the next number.
  s.seq += 1;
  s.flags &= static_cast<std::uint8_t>(~kSyn);
  s.of_syn = true;
  if (s.payload != 0 || s.has(kFin)) process_segment(env, tcb, s);
}

// Both opened at once (figure 8).
void on_crossing_syn(Env& env, Tcb& tcb) {
  set_state(env, tcb, State::kSynReceived, Why::kSegment);
  repeat_open(env, tcb);
}

}  // namespace

void negotiate(Env& env, Tcb& tcb, const Segment& s) {
  const SegmentOptions& o = s.options;
  tcb.rcv_nxt = s.seq + 1;
  tcb.rcv_adv = tcb.rcv_nxt + std::min<std::uint32_t>(tcb.rcv_limit, 0xffff);
  tcb.last_ack_sent = tcb.rcv_nxt;
  tcb.last_received = env.now();
  if (!o.has_timestamps) tcb.clear(kTimestamps);
  if (!o.sack_permitted) tcb.clear(kSackPermitted);
  if (!o.has_window_scale) tcb.clear(kWindowScaling);
  if (tcb.has(kTimestamps)) tcb.ts_recent = o.ts_value;
  tcb.snd_scale = tcb.has(kWindowScaling) ? o.window_scale : 0;
  if (!tcb.has(kWindowScaling)) {
    tcb.rcv_scale = 0;
    tcb.rcv_limit = std::min<std::uint32_t>(tcb.rcv_limit, 0xffff);
  }
  // RFC 9293 §3.7.1: 536 if the peer says nothing; SYNs' windows are never scaled.
  tcb.peer_mss = o.mss != 0 ? o.mss : kDefaultMss;
  update_mss(tcb);
  tcb.snd_wnd = tcb.max_snd_wnd = s.window;
  tcb.snd_wl1 = s.seq;
  tcb.snd_wl2 = s.ack;
  show_unknown_options(env, tcb, s);
}

void on_syn_sent(Env& env, Tcb& tcb, Segment& s) {
  const bool acks_ours = s.has(kAck) && s.ack == tcb.seq_base;
  if (s.has(kAck) && !acks_ours) {  // first
    env.count().drop_tcp_bad_ack++;
    return answer_with_reset(env, s);
  }
  if (s.has(kRst)) {  // second; RFC 5961 §3.2 wants an acceptable ACK
    if (!acks_ours) {
      env.count().drop_tcp_bad_rst++;
      return;
    }
    env.count().tcp_resets_in++;
    return finish(env, tcb, Error::kRefused, Why::kReset);
  }
  if (!s.has(kSyn)) {  // fifth
    env.count().drop_tcp_out_of_window++;
    return;
  }
  negotiate(env, tcb, s);
  if (!acks_ours) return on_crossing_syn(env, tcb);
  on_syn_ack(env, tcb, s);
}

}  // namespace bypass::tcp
