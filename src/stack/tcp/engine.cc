// The calls of engine.h: each names the object it changes, does its work through the parts, and forgets it.
#include "stack/tcp/engine.h"

#include <algorithm>
#include <new>

#include "stack/frame/arrival.h"
#include "stack/tcp/core.h"
#include "stack/tcp/icmp.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/memory_wait.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/steering.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// The object that the lock's header names while a call is inside.
class Changing {
 public:
  Changing(Core& core, void* object) : core_(core) { core_.current = object; }
  ~Changing() { core_.current = nullptr; }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

 private:
  Core& core_;
};

bool local_matches(const FlowNode& flow, const IpAddress& address, const Endpoint& local) {
  return flow.local_port == local.port && (local.address.is_any() || local.address == address);
}

}  // namespace

Engine::Engine(Memory& memory, Network& network, EventList& events, StackCounters& counters, const EngineConfig& config)
    : impl_(nullptr) {
  void* place = memory.allocate(sizeof(Impl));
  if (place == nullptr) return;
  auto* impl = new (place) Impl(memory, network, events, counters, config);
  impl->secret = {config.secret[0], config.secret[1]};
  impl->rto_bounds = {config.rto_initial, config.rto_min, config.rto_max};
  if (impl->flows.create(memory, config.secret[0] ^ 0x9e3779b97f4a7c15U, config.secret[1] ^ 0xd1b54a32d192ed03U))
    impl_ = impl;
}

// --- From the wire and the clock

void Engine::on_segments(Context& ctx, std::span<L4Input> batch) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  take_burst(env, batch);
}

void Engine::on_icmp(Context& ctx, const IcmpError& error) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  take_icmp(env, error);
}

void Engine::on_timers(Context& ctx) {
  if (ctx.now < next_timeout()) return;
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  run_timers(env);
}

void Engine::on_link_up(Context& ctx) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  resend_after_outage(env);
}

void Engine::on_announced(Context& ctx, std::span<const IpAddress> addresses) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  ask_after_announcement(env, addresses);
}

void Engine::on_mtu(Context& ctx, std::uint16_t port, std::uint32_t before, std::uint32_t mtu) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  follow_mtu(env, port, before, mtu);
}

Instant Engine::next_timeout() const {
  const TimeWait* oldest = impl_->time_waits.oldest;
  const Instant first = std::min(impl_->wheel.next_deadline(), impl_->recent_resets.next_repeat());
  return std::min(first, oldest != nullptr ? oldest->expires : kNever);
}

void Engine::resume_output(Context& ctx) {
  if (!output_pending()) return;
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  impl_->recent_resets.settle(ctx.now, [&env](const RecentReset& each) { return send_farewell(env, each); });
  resume_blocked(env);
}

void Engine::on_flushed(Context& ctx) {
  if (impl_->pinned == nullptr && impl_->starved.head == nullptr) return;
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  unpin_sent(env);
  wake_for_memory(env);
}

bool Engine::output_pending() const {
  return impl_->blocked_ports != 0 || impl_->recent_resets.owes();
}

// --- Opening

Result<Tcb*> Engine::connect(Context& ctx, const Endpoint& local, const Endpoint& remote, const Options& options,
                             void* user) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  return tcp::connect(env, local, remote, options, user);
}

Result<Listener*> Engine::listen(const Endpoint& local, unsigned backlog, const Options& options, void* user,
                                 bool shared) {
  if (local.port == 0) return Error::kInvalid;
  if (!local.address.is_any() && !impl_->network.is_local(local.address)) return Error::kAddressNotAvailable;
  if (impl_->ports.conflicting(local, shared) != nullptr) return Error::kAddressInUse;
  Listener* listener = impl_->listeners.allocate();
  if (listener == nullptr) return Error::kNoMemory;
  listener->event.source = EventSource::kListener;
  listener->event.user = user;
  listener->local = local;
  listener->shared = shared;
  listener->backlog = backlog;
  listener->options = options;
  impl_->ports.insert(*listener);
  steer_listener(*impl_, *listener);
  return listener;
}

void Engine::set_backlog(Listener& listener, unsigned backlog) {
  listener.backlog = backlog;
}

Result<Tcb*> Engine::accept(Context&, Listener& listener, void* user) {
  const Changing changing(*impl_, &listener);
  Tcb* tcb = accept_pop(listener);
  if (tcb == nullptr) return Error::kWouldBlock;
  tcb->event.user = user;
  tcb->last_data_ms = milliseconds_of(tcb->rx_tail != nullptr ? arrival(*tcb->rx_tail) : tcb->last_received);
  unsigned events = kEventWritable;
  if (tcb->overlay != nullptr) {
    events |= std::exchange(tcb->overlay->events, std::uint16_t{0});
  } else {
    if (tcb->rx_bytes != 0) events |= kEventReadable;
    if (tcb->has(kFinReceived)) events |= kEventEof | kEventReadable;
  }
  if (tcb->state == State::kClosed) events |= kEventClosed | kEventReadable;
  if (tcb->error != Error::kNone) events |= kEventError;
  impl_->events.post(tcb->event, static_cast<std::uint16_t>(events));
  return tcb;
}

std::size_t Engine::accept_queue_length(const Listener& listener) const {
  return listener.accept_count;
}

void Engine::close_listener(Context& ctx, Listener& listener) {
  const Changing changing(*impl_, &listener);
  Env env{*impl_, ctx};
  const SlotId id = impl_->listeners.id_of(&listener);
  impl_->ports.erase(listener);
  while (Tcb* tcb = accept_pop(listener)) abort(ctx, *tcb);
  if (listener.half_open + listener.deferred != 0) {
    impl_->tcbs.for_each([&](Tcb& tcb) {
      if (!tcb.has(kHalfOpen | kDeferred) || tcb.listener != id) return;
      if (tcb.has(kDeferred)) send_reset(env, tcb);
      finish(env, tcb, Error::kAborted, Why::kUser);
    });
  }
  unsteer_listener(env, listener);
  impl_->events.remove(listener.event);
  impl_->listeners.free(&listener);
}

void Engine::steer_all(Context& ctx) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  tcp::steer_all(env);
}

void Engine::for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const {
  tcp::for_each_steered(*impl_, each, argument);
}

Result<Endpoint> Engine::choose_endpoint(Context& ctx, const IpAddress& local, const Endpoint& remote) {
  const Changing changing(*impl_, nullptr);
  Env env{*impl_, ctx};
  return tcp::choose_endpoint(env, local, remote);
}

bool Engine::serves(const Endpoint& local, const Endpoint& remote) const {
  const FlowKey key{local.address, remote.address, local.port, remote.port};
  return impl_->flows.find(key, impl_->flows.hash(key)) != nullptr;
}

bool Engine::has_connections() const {
  return impl_->tcbs.any_of([](const Tcb& tcb) { return tcb.state != State::kClosed; });
}

bool Engine::port_in_use(const Endpoint& local, std::uint8_t sharing) const {
  if (impl_->ports.conflicting(local, (sharing & kSharePort) != 0) != nullptr) return true;
  bool used = false;
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    if ((tcb.options.sharing & sharing) != 0 || !tcb.has(kInFlowTable)) return;
    used |= local_matches(tcb.flow, tcb.path.local, local);
  });
  impl_->time_waits.slab.for_each(
      [&](const TimeWait& tw) { used |= (tw.sharing & sharing) == 0 && local_matches(tw.flow, tw.local, local); });
  return used;
}

// --- Sending

std::size_t Engine::send_room(const Tcb& tcb) const {
  if (tcb.has(kFinQueued) || (tcb.state != State::kEstablished && tcb.state != State::kCloseWait)) return 0;
  return std::min(tcb.ring.room(send_limit(*impl_, tcb), impl_->memory), admitted_unsent(tcb));
}

std::size_t Engine::writable_room(const Tcb& tcb) const {
  if (tcb.has(kFinQueued) || (tcb.state != State::kEstablished && tcb.state != State::kCloseWait)) return 0;
  return may_tell_of_room(tcb) ? tcb.ring.room(send_limit(*impl_, tcb), impl_->memory) : 0;
}

std::uint64_t Engine::memory_waits() const {
  return impl_->counters.tcp_memory_waits;
}

bool Engine::waits_for_memory() const {
  return impl_->starved.head != nullptr;
}

void Engine::want_room(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  tcb.set(kWantWritable);
  if (!tcb.has(kInFlowTable)) return;  // the connection has ended: there is nothing to wait for
  Env env{*impl_, ctx};
  note_refused(env, tcb);
  // Otherwise an acknowledgement will come.
  if (tcb.ring.empty() && !SendRing::may_begin(impl_->memory)) wait_for_memory(*impl_, tcb);
}

namespace {

Room first_of(const Room& room, std::size_t bytes) {
  const std::size_t first = std::min(bytes, room.part[0].size());
  return {{room.part[0].first(first), room.part[1].first(std::min(bytes - first, room.part[1].size()))}};
}

}  // namespace

Result<Room> Engine::reserve(Tcb& tcb, std::size_t want) {
  // the caller may have bytes to report first, so it calls take_error() itself
  if (tcb.error != Error::kNone) return tcb.error;
  if (tcb.has(kFinQueued) || tcb.state == State::kClosed || tcb.state == State::kTimeWait) return Error::kBrokenPipe;
  if (!synchronized(tcb.state)) return Error::kWouldBlock;
  const Changing changing(*impl_, &tcb);
  const std::uint32_t limit = send_limit(*impl_, tcb);
  const std::size_t room = tcb.ring.room(limit);
  if (room < limit / 3 + want) tcb.set(kWantWritable);
  const std::size_t admitted = admitted_unsent(tcb);
  if (admitted < want) {
    tcb.set(kWantWritable);
    if (admitted == 0) return Error::kWouldBlock;
  }
  // reserves everything at once: the block may not grow later
  auto reserved = tcb.ring.reserve(impl_->memory, want, limit);
  if (reserved.ok() && reserved->size() > admitted) [[unlikely]]
    *reserved = first_of(*reserved, admitted);
  const bool dry = reserved.error() == Error::kNoMemory;
  // This applies also if the limit leaves room but the block may not move, because frames still refer to it.
  if (dry || reserved.error() == Error::kWouldBlock) tcb.set(kWantWritable);
  if (!dry) return reserved;
  impl_->counters.tcp_memory_waits++;
  wait_for_memory(*impl_, tcb);
  return Error::kWouldBlock;
}

void Engine::commit(Context& ctx, Tcb& tcb, std::size_t bytes, bool more) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  const bool alive = sends(tcb.state) && !tcb.has(kFinQueued);
  tcb.ring.commit(impl_->memory, alive ? bytes : 0);
  if (!alive) return reap(env, tcb);
  if (bytes != 0) {
    tcb.clear(kForceOutput | kMore | kHoldMore);  // these were set by earlier writes
    if (more) tcb.set(kMore | kHoldMore);
  }
  if (tcb.overlay == nullptr) output(env, tcb);
}

std::size_t Engine::unacknowledged(const Tcb& tcb) const {
  // Bytes that were lost with the connection stay unacknowledged.
  if (tcb.state == State::kClosed && tcb.overlay == nullptr)
    return static_cast<std::size_t>(tcb.ring.end() - std::min(tcb.ring.end(), tcb.snd_una));
  return tcb.ring.size();
}

// --- Receiving

std::size_t Engine::readable(const Tcb& tcb) const {
  return tcb.rx_bytes;
}

std::size_t Engine::peek(const Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes) const {
  std::size_t count = 0, seen = 0;
  for (const Packet* frame = tcb.rx_head; frame != nullptr; frame = frame->queue_next) {
    std::uint32_t skip = frame->offset, left = frame->payload_len;
    for (const Packet* p = frame; p != nullptr && left != 0; p = p->next_segment) {
      const std::uint32_t from = std::min(skip, p->len);
      const std::uint32_t n = std::min(p->len - from, left);
      skip -= from;
      left -= n;
      if (n == 0) continue;
      if (count == out.size() || seen >= bytes) return count;
      out[count++] = {p->data + from, n};
      seen += n;
    }
  }
  return count;
}

void Engine::consume(Context& ctx, Tcb& tcb, std::size_t bytes) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  std::uint32_t ready = 0;  // bytes of an overlay that TCP's window does not count
  if (tcb.overlay != nullptr) [[unlikely]] {
    ready = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, tcb.overlay->ready));
    tcb.overlay->ready -= ready;
  }
  const auto counted = static_cast<std::uint32_t>(std::min<std::size_t>(bytes - ready, tcb.rx_bytes));
  tcb.rx_bytes -= counted;
  tune_receive_limit(env, tcb, counted);
  for (std::size_t left = ready + counted; left != 0;) {
    Packet* frame = tcb.rx_head;
    if (left < frame->payload_len) {
      trim_front(*frame, static_cast<std::uint32_t>(left));
      break;
    }
    left -= frame->payload_len;
    tcb.rx_head = frame->queue_next;
    if (tcb.rx_head == nullptr) tcb.rx_tail = nullptr;
    if (tcb.overlay != nullptr && tcb.overlay->sifted == frame) tcb.overlay->sifted = nullptr;
    frame->queue_next = nullptr;
    release_held(env, tcb, frame);
  }
  if (receives(tcb.state) && update_due(tcb)) acknowledge(env, tcb);
}

bool Engine::at_eof(const Tcb& tcb) const {
  if (tcb.rx_bytes != 0) return false;
  if (tcb.has(kFinReceived)) return true;
  if (tcb.error != Error::kNone) return false;
  return tcb.has(kReceiveShut) || tcb.state == State::kClosed;
}

std::size_t Engine::move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user)) {
  if (impl_->held_frames == 0) return 0;
  std::size_t stayed = 0;
  Env env{*impl_, ctx};
  impl_->tcbs.for_each([&](Tcb& tcb) {
    const Changing changing(*impl_, &tcb);
    const void* user = tcb.event.user;
    stayed += tcp::move_to_arena(env, tcb, being_read != nullptr && user != nullptr && being_read(user));
  });
  return stayed;
}

// --- Ending

void Engine::shutdown_send(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  queue_fin(env, tcb);
}

void Engine::shutdown_receive(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  tcb.set(kReceiveShut);
  env.post(tcb, kEventEof | kEventReadable);
}

void Engine::close(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  impl_->events.remove(tcb.event);
  tcb.event.user = nullptr;
  tcb.set(kOrphan);
  if (tcb.state == State::kClosed || tcb.state == State::kTimeWait) return destroy(env, tcb);
  if (tcb.state == State::kSynSent) return finish(env, tcb, Error::kNone, Why::kUser);
  if (tcb.rx_bytes != 0) {  // RFC 2525 §2.17: the peer must not believe that these were read
    send_reset(env, tcb);
    return finish(env, tcb, Error::kNone, Why::kUser);
  }
  tcb.clear(kHoldMore);
  tcb.options.cork = false;
  if (!keep_orphan(env, tcb)) return;
  queue_fin(env, tcb);
  if (tcb.state != State::kFinWait2) return;
  if (tcb.options.linger2_s >= 0) return arm_idle(env, tcb);
  send_reset(env, tcb);  // TCP_LINGER2 below 0 (tcp_close of Linux)
  finish(env, tcb, Error::kNone, Why::kUser);
}

void Engine::abort(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  impl_->events.remove(tcb.event);
  tcb.event.user = nullptr;
  tcb.set(kOrphan);
  if (tcb.state == State::kClosed || tcb.state == State::kTimeWait) return destroy(env, tcb);
  // tcp_disconnect() of Linux: if both directions have ended and only the ACK of our FIN is missing, the peer needs no
  // RST.
  const bool ended = (tcb.state == State::kClosing || tcb.state == State::kLastAck) && tcb.unsent() == 0;
  if (tcb.state != State::kSynSent && !ended) send_reset(env, tcb);
  finish(env, tcb, Error::kAborted, Why::kUser);
}

Engine::Orphans Engine::orphans() const {
  Orphans found;
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    if (!tcb.orphan() || tcb.has(kHalfOpen | kDeferred)) return;
    const bool delivered = tcb.overlay != nullptr && tcb.overlay->delivered;
    found.half_closed += tcb.state == State::kFinWait2 || (delivered && !tcb.overlay->peer_ended);
    if (!sends(tcb.state) || delivered) return;
    (tcb.ring.empty() ? found.closing : found.with_data)++;
  });
  return found;
}

void Engine::abort_orphans(Context& ctx) {
  impl_->tcbs.for_each([&](Tcb& tcb) {
    // A closed connection under an overlay may still be ESTABLISHED.
    const bool peer_may_send = receives(tcb.state);
    const bool lacks_bytes = sends(tcb.state) && !tcb.ring.empty();
    if (!tcb.orphan() || tcb.has(kHalfOpen | kDeferred) || (!peer_may_send && !lacks_bytes)) return;
    const Changing changing(*impl_, &tcb);
    Env env{*impl_, ctx};
    send_reset(env, tcb);
    finish(env, tcb, Error::kAborted, Why::kUser);
  });
}

// --- Looking

State Engine::state(const Tcb& tcb) const {
  return tcb.state;
}

Error Engine::error(const Tcb& tcb) const {
  return tcb.error;
}

Error Engine::take_error(Tcb& tcb) {
  return std::exchange(tcb.error, Error::kNone);
}

Endpoint Engine::local(const Tcb& tcb) const {
  return {tcb.path.local, tcb.flow.local_port};
}

Endpoint Engine::remote(const Tcb& tcb) const {
  return {tcb.path.remote, tcb.flow.remote_port};
}

Instant Engine::arrival_of(const Tcb& tcb, std::size_t bytes) const {
  const Packet* frame = tcb.rx_head;
  if (frame == nullptr) return {};
  while (frame->payload_len < bytes && frame->queue_next != nullptr) {
    bytes -= frame->payload_len;
    frame = frame->queue_next;
  }
  return arrival(*frame);
}

namespace {

// tcp_set_ca_state() of Linux.
CongestionState congestion_state(const Tcb& tcb) {
  if (tcb.scoreboard.in_timeout()) return CongestionState::kLoss;
  if (tcb.scoreboard.in_recovery()) return CongestionState::kRecovery;
  return tcb.scoreboard.clean() ? CongestionState::kOpen : CongestionState::kDisorder;
}

}  // namespace

Info Engine::info(const Tcb& tcb) const {
  Info i;
  i.congestion_state = congestion_state(tcb);
  i.last_sent_ms = tcb.last_sent_ms;
  i.last_received_ms = milliseconds_of(tcb.last_received);
  i.last_data_ms = tcb.last_data_ms;
  i.state = tcb.state;
  i.srtt = tcb.rtt.srtt();
  i.rttvar = tcb.rtt.rttvar();
  i.rto = tcb.rtt.rto(impl_->rto_bounds);
  i.min_rtt = tcb.rtt.min_rtt();
  i.delayed_ack = tcb.received != 0 ? impl_->config.delayed_ack : Duration{};
  i.cwnd = tcb.congestion.cwnd();
  i.ssthresh = tcb.congestion.ssthresh();
  i.snd_wnd = tcb.snd_wnd;
  i.rcv_wnd = tcb.rcv_wnd();
  i.mss = tcb.mss;
  i.rcv_mss = tcb.rcv_mss;
  i.rcv_limit = tcb.rcv_limit;
  i.own_mss = tcb.own_mss;
  i.path_mtu = tcb.path.mtu;
  i.snd_scale = tcb.snd_scale;
  i.rcv_scale = tcb.rcv_scale;
  i.timestamps = tcb.has(kTimestamps);
  i.sack = tcb.has(kSackPermitted);
  i.unsent = static_cast<std::uint32_t>(tcb.unsent());
  i.in_flight = tcb.in_flight();
  i.readable = tcb.rx_bytes;
  i.bytes_retransmitted = tcb.bytes_retransmitted;
  i.bytes_sent = tcb.snd_nxt - (tcb.has(kFinSent) ? 1 : 0) + tcb.bytes_retransmitted;
  i.bytes_acked = tcb.snd_una + (synchronized(tcb.state) && !tcb.has(kPassive) ? 1 : 0);
  i.bytes_received = tcb.received + (tcb.has(kFinReceived) ? 1 : 0);
  i.segments_sent = tcb.segments_out;
  i.segments_received = tcb.segments_in;
  i.retransmits = tcb.retransmits;
  i.backoff = tcb.rtt.backoff();
  i.probes = tcb.probes;
  i.lost = tcb.scoreboard.presumed_lost();
  i.sent_again = tcb.scoreboard.sent_again();
  i.sacked = tcb.scoreboard.sacked_bytes();
  i.limit = tcb.limit;
  i.busy_times = tcb.busy_times;
  return i;
}

void Engine::for_each_unowned(std::size_t most, void (*each)(void* argument, const Unowned&), void* argument) const {
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    if (tcb.event.user != nullptr || tcb.state == State::kClosed) return;
    each(argument, {tcb.state, local(tcb), remote(tcb), &tcb});
  });
  for (const TimeWait* tw = impl_->time_waits.newest; tw != nullptr && most > 0; tw = tw->older, most--)
    each(argument, {State::kTimeWait, {tw->local, tw->flow.local_port}, {tw->remote, tw->flow.remote_port}, nullptr});
}

void Engine::set_options(Context& ctx, Tcb& tcb, const Options& options) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  if (options.congestion != tcb.options.congestion) tcb.congestion.change(options.congestion);
  const bool changes = (options.no_delay && !tcb.options.no_delay) || (!options.cork && tcb.options.cork);
  tcb.options = options;
  apply_options(env, tcb);
  if (!synchronized(tcb.state)) return;
  if (options.quick_ack && tcb.has(kAckDelayed)) acknowledge(env, tcb);
  if (changes) push_written(env, tcb);
}

void Engine::push(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  if (synchronized(tcb.state)) push_written(env, tcb);
}

const Options& Engine::options(const Tcb& tcb) const {
  return tcb.options;
}

void* Engine::current() const {
  return impl_->current;
}

}  // namespace bypass::tcp
