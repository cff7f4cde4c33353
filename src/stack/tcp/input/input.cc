#include "stack/tcp/input/input.h"

#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

constexpr std::size_t kPrefetch = 16;

std::uint32_t flow_hash(Env& env, const L4Input& in) {
  const TcpHeader& h = header_of(in);
  return env.core.flows.hash(in.destination, in.source, h.destination, h.source);
}

Tcb& tcb_of(FlowNode& node) {
  return *reinterpret_cast<Tcb*>(reinterpret_cast<char*>(&node) - offsetof(Tcb, flow));
}
TimeWait& time_wait_of(FlowNode& node) {
  return *reinterpret_cast<TimeWait*>(reinterpret_cast<char*>(&node) - offsetof(TimeWait, flow));
}

// --- Header prediction: an established connection, the next bytes or the next ACK, nothing unusual

bool predicted(const Tcb& tcb, const Segment& s) {
  if (tcb.state != State::kEstablished || (s.flags & ~kPsh) != kAck) return false;
  if (s.seq != tcb.rcv_nxt || tcb.has(kHoles | kFinSeen | kDeferred)) return false;
  if (s.options.has_timestamps != tcb.has(kTimestamps) || s.options.sack_count != 0) return false;
  if (tcb.has(kTimestamps) && before(SeqNum{s.options.ts_value}, SeqNum{tcb.ts_recent})) return false;
  const std::uint32_t acked = distance(tcb.seq_of(tcb.snd_una), s.ack);
  if (acked > tcb.in_flight() || s.payload > tcb.rcv_wnd()) return false;
  return acked != 0 || s.payload != 0;  // a bare ACK without anything new may be a duplicate
}

void fast_path(Env& env, Tcb& tcb, Segment& s) {
  tcb.segments_in++;
  tcb.last_received = env.now();
  tcb.probes = 0;
  // RFC 7323 §4.3: the timestamp of the segment that the next ACK answers.
  if (tcb.has(kTimestamps) && !after(s.seq, tcb.last_ack_sent)) tcb.ts_recent = s.options.ts_value;
  const std::uint32_t acked = distance(tcb.seq_of(tcb.snd_una), s.ack);
  update_window(env, tcb, s);
  if (acked != 0) on_new_ack(env, tcb, s, acked);
  if (s.payload != 0) accept_in_order(env, tcb, s);
}

// --- Segments of no connection (RFC 9293 §3.10.7.1)

void refuse(Env& env, const Segment& s) {
  env.count().drop_tcp_no_connection++;
  answer_with_reset(env, s);
}

void to_listener(Env& env, Segment& s, std::uint32_t hash, std::optional<SeqNum> last = std::nullopt) {
  const TcpHeader& h = header_of(*s.input);
  Listener* listener = env.core.ports.find({s.input->destination, h.destination}, hash);
  if (listener == nullptr) return refuse(env, s);
  env.core.current = listener;
  on_listen(env, *listener, s, last);
}

void deliver(Env& env, Segment& s, std::uint32_t hash) {
  const TcpHeader& h = header_of(*s.input);
  const FlowKey key{s.input->destination, s.input->source, h.destination, h.source};
  FlowNode* node = env.core.flows.find(key, hash);
  if (node == nullptr) return to_listener(env, s, hash);
  if (node->kind == FlowKind::kTimeWait) {
    TimeWait& tw = time_wait_of(*node);
    env.core.current = &tw;
    const SeqNum last = tw.snd_nxt;
    if (on_time_wait_segment(env, tw, s) == TimeWaitVerdict::kReusable) to_listener(env, s, hash, last);
    return;
  }
  Tcb& tcb = tcb_of(*node);
  env.core.current = &tcb;
  if (predicted(tcb, s)) return fast_path(env, tcb, s);
  process_segment(env, tcb, s);
}

void take(Env& env, L4Input& input, std::uint32_t hash) {
  env.count().tcp_segments_in++;
  Segment s;
  if (read_segment(input, s)) {
    deliver(env, s, hash);
  } else {
    env.count().drop_tcp_malformed++;
    s.packet = input.packet;
  }
  if (s.packet != nullptr) env.ctx.release(s.packet);
}

// How many frames readers may hold before the ports run out: a quarter of the smallest pool.
void check_budget(Env& env) {
  if (env.now() - env.core.budget_checked < std::chrono::seconds(1)) return;
  env.core.budget_checked = env.now();
  std::uint64_t budget = 1U << 20;
  for (std::size_t i = 0; i < env.ctx.ports; i++) {
    const Port* port = env.ctx.queues[i].port();
    const std::uint64_t total = port != nullptr ? port->stats().buffers_total : 0;
    if (total != 0) budget = std::min(budget, total / 4);
  }
  env.core.frame_budget = static_cast<std::uint32_t>(budget);
}

}  // namespace

void take_burst(Env& env, std::span<L4Input> batch) {
  if (env.core.held_frames >= env.core.frame_budget / 2) check_budget(env);
  std::uint32_t hashes[kPrefetch];
  while (!batch.empty()) {
    const std::size_t n = std::min(batch.size(), kPrefetch);
    for (std::size_t i = 0; i < n; i++) {
      hashes[i] = flow_hash(env, batch[i]);
      if (n != 1) env.core.flows.prefetch_bucket(hashes[i]);
    }
    if (n != 1)
      for (std::size_t i = 0; i < n; i++) env.core.flows.prefetch_first(hashes[i]);
    for (std::size_t i = 0; i < n; i++) take(env, batch[i], hashes[i]);
    batch = batch.subspan(n);
  }
  end_burst(env);
}

}  // namespace bypass::tcp
