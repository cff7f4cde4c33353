// After a death inside the lock, the truth is in the slabs. Every Tcb, TimeWait and Listener that lives says what it
// owns and in which state it is. From that the flow table, port table, timer wheel, queues and lists are made again.
// The object that was being changed, and any whose rules do not hold, is given up.
//
// It runs between Memory's begin_rebuild() and finish_rebuild(): what is not marked here is free afterwards.
#include <algorithm>
#include <new>
#include <utility>

#include "stack/memory/arena_packet.h"
#include "stack/tcp/core.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/invariants.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/steering.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

bool mark(Memory& memory, const void* block) {
  return block == nullptr || memory.mark_in_use(block);
}

// --- One connection

bool queue_is_readable(const Env& env, const Tcb& tcb) {
  const bool own = env.ctx.sees_frames();
  const Memory& memory = env.core.memory;
  std::uint64_t bytes = 0;
  for (const Packet* p = tcb.rx_head; p != nullptr && bytes <= tcb.queued(); p = p->queue_next) {
    if (!own && !memory.contains(p)) return false;
    bytes += p->payload_len;
  }
  return bytes == tcb.queued();
}

bool mark_queue(Env& env, Tcb& tcb) {
  tcb.rx_truesize = 0;
  for (const Packet* p = tcb.rx_head; p != nullptr; p = p->queue_next) {
    tcb.rx_truesize += truesize(*p);
    if ((p->flags & kInArena) == 0) {
      env.core.held_frames++;
      continue;
    }
    if (!mark_arena_packet(env.core.memory, *p)) return false;
  }
  return true;
}

// Gives frames back to their ports. Those of the arena become free because they are not marked.
void give_back(Env& env, Packet* list) {
  while (list != nullptr) {
    Packet* next = list->queue_next;
    if ((list->flags & kInArena) == 0) env.ctx.release(list);
    list = next;
  }
}

// Drops what waits for a hole: it was not acknowledged, and the peer sends it again.
void forget_holes(Env& env, Tcb& tcb) {
  if (env.ctx.sees_frames() && tcb.reassembly.violated(tcb.rcv_nxt) == nullptr)
    give_back(env, tcb.reassembly.clear(env.core.memory));
  new (&tcb.reassembly) Reassembly{};
  tcb.clear(kHoles);
}

bool adopt_overlay(Memory& memory, const Tcb& tcb) {
  if (tcb.overlay == nullptr) return true;
  const SendMap& map = tcb.overlay->map;
  return mark(memory, tcb.overlay) && mark(memory, map.chunks_block()) && mark(memory, map.own_block());
}

bool adopt(Env& env, Tcb& tcb) {
  Memory& memory = env.core.memory;
  if (tcb.overlay != nullptr && !memory.contains(tcb.overlay)) return false;
  if (!queue_is_readable(env, tcb)) return false;
  if (violated(tcb) != nullptr) return false;
  forget_holes(env, tcb);
  if (!adopt_overlay(memory, tcb)) return false;
  if (!mark(memory, tcb.scoreboard.block()) || !mark_queue(env, tcb)) return false;
  return mark(memory, tcb.ring.block());  // must be last: otherwise give_up() may have to undo it
}

// Frames of a port's living owner may refer to the ring: its block stays until they have left. A pinned block never
// changes, whatever else of the connection was being changed. Empty: there are no such frames.
SendRing ring_of_its_frames(Env& env, const Tcb& tcb) {
  if (!tcb.ring.pinned() || tcb.ring.block() == nullptr || !mark(env.core.memory, tcb.ring.block())) return {};
  SendRing ring = tcb.ring;
  ring.outlive(1);
  return ring;
}

// Gives up a connection. Whatever else it owned of the arena is not marked, and so becomes free. Ports' frames go back
// if the lists are intact (a list that was being changed loses its frames). The socket, if there is one, sees a reset.
void give_up(Env& env, Tcb& tcb) {
  if (env.ctx.sees_frames() && queue_is_readable(env, tcb)) give_back(env, tcb.rx_head);
  forget_holes(env, tcb);
  const EventNode event = tcb.event;
  const SlotId listener = tcb.listener;
  const SendRing ring = ring_of_its_frames(env, tcb);
  const auto port = tcb.path.port;
  tcb.~Tcb();
  new (&tcb) Tcb;
  tcb.ring = ring;
  tcb.path.port = port;
  tcb.event = event;
  tcb.event.source = EventSource::kTcp;
  tcb.listener = listener;
  if (event.user == nullptr) {
    tcb.set(kOrphan | kZombie);
    return;
  }
  tcb.error = Error::kReset;
  tcb.why = static_cast<std::uint8_t>(Why::kRebuild);
}

void forget_links(Tcb& tcb) {
  tcb.event.linked = false;
  tcb.event.next = nullptr;
  tcb.wheel.forget();
  tcb.flow.next = nullptr;
  tcb.burst_next = tcb.accept_next = tcb.blocked_next = tcb.pinned_next = nullptr;
  tcb.starved = false;  // post_state() has the connection try again
}

// The frames that refer to the ring may belong to a port's living owner, which unpins them once they are sent; a new
// owner unpins at once. If the process died between setting the flag and the pin, the lock's header did not name this
// connection: so the pin counts.
void keep_pinned(Env& env, Tcb& tcb) {
  tcb.clear(kPinned);
  const bool by_overlay = tcb.overlay != nullptr && tcb.overlay->pins_ring;
  if (tcb.ring.pins() == (by_overlay ? 1 : 0)) return;
  tcb.set(kPinned);
  tcb.pinned_next = std::exchange(env.core.pinned, &tcb);
}

void take_turns(Env& env, Tcb& tcb) {
  keep_pinned(env, tcb);
  if (!tcb.has(kInBurst | kBlocked)) return;
  tcb.set(kBlocked);  // first, as this rebuild may also be cut short by a death
  tcb.clear(kInBurst);
  queue_blocked(env, tcb);
}

void post_state(Env& env, Tcb& tcb) {
  unsigned events = kEventWritable;
  if (tcb.rx_bytes != 0) events |= kEventReadable;
  if (tcb.has(kFinReceived)) events |= kEventReadable | kEventEof;
  if (tcb.error != Error::kNone) events |= kEventError | kEventReadable;
  if (tcb.state == State::kClosed) events |= kEventClosed | kEventReadable;
  if (synchronized(tcb.state)) events |= kEventConnected;
  env.post(tcb, static_cast<std::uint16_t>(events));
}

// In order of completion, as before the death.
void queue_for_accept(Listener& listener, Tcb& tcb) {
  Tcb** at = &listener.accept_head;
  while (*at != nullptr && static_cast<std::int32_t>((*at)->accept_order - tcb.accept_order) < 0)
    at = &(*at)->accept_next;
  tcb.accept_next = *at;
  *at = &tcb;
  if (tcb.accept_next == nullptr) listener.accept_tail = &tcb;
  listener.accept_count++;
}

bool rejoin_listener(Env& env, Tcb& tcb) {
  if (!tcb.has(kHalfOpen | kDeferred | kAccepting)) return true;
  Listener* listener = env.core.listeners.get(tcb.listener);
  if (listener == nullptr) return false;
  if (tcb.has(kHalfOpen)) listener->half_open++;
  if (tcb.has(kDeferred)) listener->deferred++;
  if (tcb.has(kAccepting)) queue_for_accept(*listener, tcb);
  return true;
}

void rejoin(Env& env, Tcb& tcb) {
  if (tcb.has(kInFlowTable)) {
    env.core.flows.insert(env.core.memory, tcb.flow,
                          {tcb.path.local, tcb.path.remote, tcb.flow.local_port, tcb.flow.remote_port});
  }
  tcb.path.header_len = 0;  // neighbours are forgotten
  if (tcb.counted) env.core.orphans++;
  const Instant next = earliest_deadline(tcb);
  if (next != kNever) env.core.wheel.schedule(tcb, next);
  take_turns(env, tcb);
}

// A peer that waits for our answer would wait for ever. If the numbers were caught in the middle of a change, the peer
// asks back (RFC 5961 §3.2) or answers the question. It then gets the right numbers from a host that knows no such
// connection. In SYN-RECEIVED the peer may believe in a connection, because its ACK was being taken. Or it may not have
// seen the SYN-ACK: then it sends its SYN again, and an RST would refuse that SYN. So in this state the peer is only
// asked.
void tell_peer(Env& env, const Tcb& tcb) {
  const bool opening = tcb.state == State::kSynReceived;
  if (!tcb.has(kInFlowTable) || (!synchronized(tcb.state) && !opening)) return;
  if (!repeat_farewell(env, note_farewell(env, tcb, opening))) env.core.recent_resets.owe();
}

// The connection is closed, and lives only until the frames that refer to its ring have left.
bool waits_for_its_frames(Env& env, Tcb& tcb) {
  if (!tcb.has(kZombie) || !tcb.ring.pinned() || !mark(env.core.memory, tcb.ring.block())) return false;
  tcb.clear(kInBurst | kBlocked | kAccepting);
  tcb.overlay = nullptr;
  tcb.ring.outlive(1);  // a lane's pin ends with the link
  keep_pinned(env, tcb);
  return true;
}

void rebuild_one(Env& env, Tcb& tcb, const void* broken) {
  forget_links(tcb);
  if (&tcb != broken && waits_for_its_frames(env, tcb)) return;
  const bool zombie = tcb.has(kZombie);
  if (zombie || &tcb == broken || !adopt(env, tcb) || !rejoin_listener(env, tcb)) {
    if (!zombie) tell_peer(env, tcb);
    unsteer_connection(env, tcb);
    give_up(env, tcb);
  }
  if (tcb.has(kZombie)) {
    keep_pinned(env, tcb);
    return tcb.has(kPinned) ? void() : env.core.tcbs.free(&tcb);
  }
  rejoin(env, tcb);
  post_state(env, tcb);
}

// --- TIME_WAITs: their list is in order of expiry

void insert_by_expiry(TimeWaits& list, TimeWait& tw) {
  TimeWait* older = list.newest;
  while (older != nullptr && older->expires > tw.expires) older = older->older;
  tw.older = older;
  tw.newer = older != nullptr ? older->newer : list.oldest;
  (tw.older != nullptr ? tw.older->newer : list.oldest) = &tw;
  (tw.newer != nullptr ? tw.newer->older : list.newest) = &tw;
  list.count++;
}

void rebuild_time_waits(Env& env, const void* broken) {
  TimeWaits& list = env.core.time_waits;
  list.oldest = list.newest = nullptr;
  list.count = 0;
  list.slab.for_each([&](TimeWait& tw) {
    if (&tw == broken || tw.flow.kind != FlowKind::kTimeWait) {
      unsteer_time_wait(env, tw);
      return list.slab.free(&tw);
    }
    env.core.flows.insert(env.core.memory, tw.flow, {tw.local, tw.remote, tw.flow.local_port, tw.flow.remote_port});
    insert_by_expiry(list, tw);
  });
}

// --- Listeners

void rebuild_listeners(Env& env) {
  env.core.ports.clear();
  env.core.listeners.for_each([&](Listener& listener) {
    listener.event.linked = false;
    listener.event.next = nullptr;
    listener.accept_head = listener.accept_tail = nullptr;
    listener.accept_count = listener.half_open = listener.deferred = 0;
    env.core.ports.insert(listener);
  });
}

void forget_indices(Core& core) {
  core.wheel.clear();
  core.burst = {};
  core.blocked.fill({});
  core.blocked_ports = 0;
  core.pinned = nullptr;
  core.starved = {};
  core.held_frames = core.orphans = 0;
}

}  // namespace

void Engine::rebuild(Context& ctx, void* broken) {
  Core& core = *impl_;
  Env env{core, ctx};
  (void)core.memory.mark_in_use(impl_);
  (void)core.tcbs.rebuild();
  (void)core.listeners.rebuild();
  (void)core.time_waits.slab.rebuild();
  if (!core.flows.rebuild(core.memory)) __builtin_trap();  // without it no connection could be found
  forget_indices(core);
  rebuild_listeners(env);
  rebuild_time_waits(env, broken);
  core.tcbs.for_each([&](Tcb& tcb) { rebuild_one(env, tcb, broken); });
  core.listeners.for_each([&](Listener& listener) {
    if (listener.accept_count != 0) core.events.post(listener.event, kEventReadable);
  });
  // This includes resets that the dead process had noted: its frames may be lost.
  core.recent_resets.begin_repeats(env.now());
  core.current = nullptr;  // last, as the rebuilding process may die as well
}

// --- Whose each object is

void Engine::forget_users() {
  impl_->tcbs.for_each([](Tcb& tcb) { tcb.event.user = nullptr; });
  impl_->listeners.for_each([](Listener& listener) { listener.event.user = nullptr; });
}

bool Engine::claim(Tcb* tcb, void* user) {
  if (!impl_->tcbs.lives(tcb) || tcb->orphan()) return false;
  tcb->event.user = user;
  return true;
}

bool Engine::claim(Listener* listener, void* user) {
  if (!impl_->listeners.lives(listener)) return false;
  listener->event.user = user;
  return true;
}

void Engine::end_unclaimed(Context& ctx) {
  Core& core = *impl_;
  core.listeners.for_each([&](Listener& listener) {
    if (listener.event.user == nullptr) close_listener(ctx, listener);
  });
  core.tcbs.for_each([&](Tcb& tcb) {
    if (tcb.event.user != nullptr || tcb.has(kOrphan | kAccepting | kHalfOpen | kDeferred)) return;
    Listener* const listener = tcb.has(kPassive) ? core.listeners.get(tcb.listener) : nullptr;
    if (listener == nullptr) return abort(ctx, tcb);
    tcb.accept_order = listener->next_order++;
    accept_push(*listener, tcb);
    core.events.post(listener->event, kEventReadable);
  });
}

}  // namespace bypass::tcp
