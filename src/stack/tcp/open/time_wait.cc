#include "stack/tcp/open/time_wait.h"

#include "stack/tcp/input/segment.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/steering.h"

namespace bypass::tcp {
namespace {

// Within this age the peer's timestamps cannot have wrapped (RFC 7323 §5.5).
constexpr Duration kTimestampsValid = std::chrono::hours(24 * 24);

void unlink(TimeWaits& list, TimeWait& tw) {
  (tw.older != nullptr ? tw.older->newer : list.oldest) = tw.newer;
  (tw.newer != nullptr ? tw.newer->older : list.newest) = tw.older;
  list.count--;
}

void link_newest(TimeWaits& list, TimeWait& tw) {
  tw.older = list.newest;
  tw.newer = nullptr;
  (list.newest != nullptr ? list.newest->newer : list.oldest) = &tw;
  list.newest = &tw;
  list.count++;
}

void restart(Env& env, TimeWait& tw) {
  unlink(env.core.time_waits, tw);
  tw.expires = env.now() + env.core.config.time_wait;
  link_newest(env.core.time_waits, tw);
}

void acknowledge(Env& env, const TimeWait& tw) {
  Detached ack;
  ack.key = {tw.local, tw.remote, tw.flow.local_port, tw.flow.remote_port};
  ack.seq = tw.snd_nxt;
  ack.ack = tw.rcv_nxt;
  ack.window = tw.window;
  ack.flags = kAck;
  ack.tos = tw.tos;
  ack.ttl = tw.ttl;
  ack.timestamps = tw.timestamps;
  ack.ts_value = timestamp_clock(env.now()) + tw.ts_offset;
  ack.ts_echo = tw.ts_recent;
  send_detached(env, ack);
}

bool timestamps_fresh(const TimeWait& tw, Instant now) {
  return tw.timestamps && now - tw.last_seen < kTimestampsValid;
}

// RFC 6191 §2 and RFC 9293 §3.10.7.4: a SYN that cannot be an old duplicate.
bool opens_anew(const TimeWait& tw, const Segment& s, Instant now) {
  if (timestamps_fresh(tw, now) && s.options.has_timestamps) {
    const SeqNum before_ts{tw.ts_recent}, ts{s.options.ts_value};
    if (after(ts, before_ts)) return true;
    return ts == before_ts && after(s.seq, tw.rcv_nxt);
  }
  return after(s.seq, tw.rcv_nxt);
}

bool old_timestamp(const TimeWait& tw, const Segment& s, Instant now) {
  return timestamps_fresh(tw, now) && s.options.has_timestamps && !s.has(kRst) &&
         before(SeqNum{s.options.ts_value}, SeqNum{tw.ts_recent});
}

}  // namespace

void enter_time_wait(Env& env, Tcb& tcb) {
  TimeWaits& list = env.core.time_waits;
  const FlowKey key{tcb.path.local, tcb.path.remote, tcb.flow.local_port, tcb.flow.remote_port};
  const bool timestamps = tcb.has(kTimestamps), steered = tcb.has(kSteered);
  if (list.count >= env.core.config.max_time_wait && list.oldest != nullptr) end_time_wait(env, *list.oldest);
  detach(env, tcb);
  TimeWait* tw = list.slab.allocate();
  if (tw == nullptr) return;  // as if the 2 MSL were over: later segments are answered with RST
  tw->local = key.local;
  tw->remote = key.remote;
  tw->snd_nxt = tcb.seq_of(tcb.snd_nxt);
  tw->sharing = tcb.options.sharing;
  tw->rcv_nxt = tcb.rcv_nxt;
  tw->rcv_wnd = tcb.rcv_wnd();
  tw->window = static_cast<std::uint16_t>(std::min(tcb.rcv_wnd() >> tcb.rcv_scale, 0xffffU));
  tw->timestamps = timestamps;
  tw->ts_recent = tcb.ts_recent;
  tw->ts_offset = tcb.ts_offset;
  tw->tos = tcb.path.tos;
  tw->ttl = tcb.path.ttl;
  tw->last_seen = env.now();
  tw->expires = env.now() + env.core.config.time_wait;
  tw->flow.kind = FlowKind::kTimeWait;
  env.core.flows.insert(env.core.memory, tw->flow, key);
  if (steered) steer_time_wait(env, *tw);
  link_newest(list, *tw);
}

void end_time_wait(Env& env, TimeWait& tw) {
  unsteer_time_wait(env, tw);
  env.core.flows.erase(tw.flow);
  unlink(env.core.time_waits, tw);
  env.core.time_waits.slab.free(&tw);
}

void expire_time_waits(Env& env) {
  TimeWaits& list = env.core.time_waits;
  while (list.oldest != nullptr && list.oldest->expires <= env.now()) end_time_wait(env, *list.oldest);
}

TimeWaitVerdict on_time_wait_segment(Env& env, TimeWait& tw, const Segment& s) {
  if (s.has(kSyn) && !s.has(kAck) && !s.has(kRst) && opens_anew(tw, s, env.now())) {
    env.count().tcp_time_wait_reused++;
    end_time_wait(env, tw);
    return TimeWaitVerdict::kReusable;
  }
  tw.asked = tw.asked || (s.has(kSyn) && !s.has(kAck) && !s.has(kRst));
  if (old_timestamp(tw, s, env.now())) {
    env.count().drop_tcp_paws++;
    acknowledge(env, tw);
    return TimeWaitVerdict::kDone;
  }
  // RFC 1337: an RST does not end TIME_WAIT. One exception: an RST with the exact number (RFC 5961 §3) after a SYN. It
  // comes from a peer that knows nothing of the old connection and has another timestamp clock: a new process, or a
  // restarted host. The peer's next SYN would get the same answer until the 2 MSL are over.
  if (s.has(kRst)) {
    if (s.seq != tw.rcv_nxt) {
      env.count().drop_tcp_bad_rst++;
      return TimeWaitVerdict::kDone;
    }
    env.count().tcp_resets_in++;
    if (tw.asked) end_time_wait(env, tw);
    return TimeWaitVerdict::kDone;
  }
  const bool in_window_now = s.length() == 0 ? s.seq == tw.rcv_nxt : false;
  if (s.has(kFin) && s.end() == tw.rcv_nxt) restart(env, tw);  // our last ACK was lost
  if (!in_window_now) {
    if (!s.has(kFin)) env.count().drop_tcp_out_of_window++;
    acknowledge(env, tw);
  }
  return TimeWaitVerdict::kDone;
}

bool may_reuse(const TimeWait& tw, Instant now) {
  return tw.timestamps && now - tw.last_seen >= std::chrono::seconds(1);
}

}  // namespace bypass::tcp
