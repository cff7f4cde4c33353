#include "stack/tcp/invariants.h"

#include "stack/tcp/core.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

struct Rule {
  const char* text;
  bool (*holds)(const Tcb&);
};

bool queue_adds_up(const Tcb& tcb) {
  std::uint64_t bytes = 0;
  const Packet* last = nullptr;
  for (const Packet* p = tcb.rx_head; p != nullptr; p = p->queue_next) {
    if (p->payload_len == 0) return false;
    bytes += p->payload_len;
    last = p;
    if (bytes > tcb.queued()) return false;  // this also ends a walk in a circle
  }
  return bytes == tcb.queued() && last == tcb.rx_tail;
}

constexpr Rule kAlways[] = {
    {"a state of RFC 9293", [](const Tcb& t) { return t.state <= State::kTimeWait && t.state != State::kListen; }},
    {"in the flow table while it lives",
     [](const Tcb& t) { return t.has(kInFlowTable) == (t.state != State::kClosed && t.state != State::kTimeWait); }},
    {"a socket or an orphan", [](const Tcb& t) { return !t.has(kOrphan) || t.event.user == nullptr; }},
    {"the receive queue adds up", queue_adds_up},
    {"an empty queue holds no buffers",
     [](const Tcb& t) { return t.rx_head != nullptr || t.has(kHoles) || t.rx_truesize == 0; }},
    {"only a connection that is opening owes a SYN",
     [](const Tcb& t) { return !t.has(kSynOwed) || t.state == State::kSynSent || t.state == State::kSynReceived; }},
    {"a connection that waits for memory was accepted and is in the flow table",
     [](const Tcb& t) { return !t.starved || (!t.has(kAccepting) && t.has(kInFlowTable)); }},
};

constexpr Rule kSynchronized[] = {
    {"SND.UNA <= SND.NXT", [](const Tcb& t) { return t.snd_una <= t.snd_nxt; }},
    {"SND.NXT within what was queued", [](const Tcb& t) { return t.snd_nxt <= t.send_end(); }},
    {"the ring begins at SND.UNA",
     [](const Tcb& t) {
       return t.overlay != nullptr || t.ring.begin() == (t.snd_una > t.ring.end() ? t.ring.end() : t.snd_una);
     }},
    {"the map begins with what is not acknowledged",
     [](const Tcb& t) { return t.overlay == nullptr || t.overlay->map.begin() <= t.snd_una; }},
    {"FIN sent means FIN queued", [](const Tcb& t) { return !t.has(kFinSent) || t.has(kFinQueued); }},
    {"FIN sent is behind the last byte", [](const Tcb& t) { return !t.has(kFinSent) || t.snd_nxt == t.send_end(); }},
    {"the promised edge is not behind RCV.NXT", [](const Tcb& t) { return !after(t.rcv_nxt, t.rcv_adv); }},
    {"Last.ACK.sent <= RCV.NXT", [](const Tcb& t) { return !after(t.last_ack_sent, t.rcv_nxt); }},
    {"cwnd is at least a segment", [](const Tcb& t) { return t.congestion.cwnd() >= t.mss; }},
    {"no more in the pipe than in flight", [](const Tcb& t) { return t.scoreboard.pipe() <= 2 * t.in_flight(); }},
    {"something in flight has a timer", [](const Tcb& t) { return t.in_flight() == 0 || t.deadline[0] != kNever; }},
    {"a full ACK is owed to nobody", [](const Tcb& t) { return !t.has(kAckNow) || t.has(kInBurst | kBlocked); }},
    {"holes are flagged", [](const Tcb& t) { return t.has(kHoles) == !t.reassembly.empty(); }},
};

const char* first_broken(const Tcb& tcb, const Rule* rules, std::size_t count) {
  for (std::size_t i = 0; i < count; i++)
    if (!rules[i].holds(tcb)) return rules[i].text;
  return nullptr;
}

const char* index_violated(const Core& core, const Tcb& tcb) {
  if (tcb.has(kZombie)) return nullptr;
  if (!tcb.has(kInFlowTable)) return nullptr;
  const FlowKey key{tcb.path.local, tcb.path.remote, tcb.flow.local_port, tcb.flow.remote_port};
  if (core.flows.find(key, core.flows.hash(key)) != &tcb.flow) return "the flow table finds the connection";
  const Instant at = earliest_deadline(tcb);
  if (at != kNever && (!tcb.wheel.scheduled() || tcb.wheel.expires() > at)) return "the wheel fires in time";
  return nullptr;
}

// Compares the numbers of half-open, deferred and waiting children that all listeners count together.
const char* listeners_violated(const Core& core) {
  std::uint32_t half_open = 0, deferred = 0, accepting = 0;
  core.tcbs.for_each([&](const Tcb& tcb) {
    half_open += tcb.has(kHalfOpen) ? 1 : 0;
    deferred += tcb.has(kDeferred) ? 1 : 0;
    accepting += tcb.has(kAccepting) ? 1 : 0;
  });
  core.listeners.for_each([&](const Listener& listener) {
    half_open -= listener.half_open;
    deferred -= listener.deferred;
    accepting -= listener.accept_count;
    std::uint32_t queued = 0;
    for (const Tcb* each = listener.accept_head; each != nullptr; each = each->accept_next) queued++;
    accepting += queued != listener.accept_count ? 1 : 0;
  });
  if (half_open != 0 || deferred != 0) return "half-open and deferred connections are counted";
  return accepting == 0 ? nullptr : "the accept queue is counted";
}

}  // namespace

const char* violated(const Tcb& tcb) {
  if (tcb.has(kZombie)) return nullptr;
  if (const char* rule = first_broken(tcb, kAlways, std::size(kAlways))) return rule;
  if (!synchronized(tcb.state) || !tcb.has(kInFlowTable)) return nullptr;
  if (const char* rule = first_broken(tcb, kSynchronized, std::size(kSynchronized))) return rule;
  if (const char* rule = tcb.scoreboard.violated()) return rule;
  if (tcb.overlay != nullptr)
    if (const char* rule = tcb.overlay->map.violated(tcb.ring)) return rule;
  return tcb.reassembly.violated(tcb.rcv_nxt);
}

const char* Engine::violated() const {
  const char* broken = nullptr;
  std::size_t flows = impl_->time_waits.count;
  std::uint32_t held = 0;
  std::size_t starved = 0, orphans = 0;
  for (const Tcb* each = impl_->starved.head; each != nullptr; each = each->accept_next) starved++;
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    flows += tcb.has(kInFlowTable) ? 1 : 0;
    for (const Packet* p = tcb.rx_head; p != nullptr; p = p->queue_next) held += (p->flags & kInArena) == 0 ? 1 : 0;
    held += tcb.reassembly.port_frames();
    starved -= tcb.starved ? 1 : 0;
    orphans += tcb.counted ? 1 : 0;
    if (broken == nullptr) broken = tcp::violated(tcb);
    if (broken == nullptr) broken = index_violated(*impl_, tcb);
  });
  if ((broken = listeners_violated(*impl_)) != nullptr) return broken;
  if (flows != impl_->flows.size()) return "the flow table holds what lives and nothing else";
  if (orphans != impl_->orphans) return "orphans are counted";
  if (held != impl_->held_frames) return "held frames are counted";
  if (starved != 0) return "a connection that waits for memory is in the queue";
  return nullptr;
}

}  // namespace bypass::tcp
