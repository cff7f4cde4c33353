#include "stack/tcp/output/overlay.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stack/copy.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

void output_soon(Env& env, Tcb& tcb) {
  tcb.set(kTryOutput);
  touch(env, tcb);
}

}  // namespace

// --- What tcb.h leaves to be defined

std::uint64_t Tcb::mapped_end() const {
  return overlay->map.end();
}

std::uint64_t Tcb::mapped_unsent() const {
  return unsent() + (ring.end() - std::min(ring.end(), overlay->taken));
}

std::uint64_t Tcb::overlaid_queued() const {
  return std::uint64_t{rx_bytes} + overlay->ready;
}

void Env::post_overlaid(Tcb& tcb, std::uint16_t events) {
  touch(*this, tcb);
  if ((events & (kEventError | kEventClosed | kEventConnected)) != 0) core.events.post(tcb.event, events);
}

// --- Creation and end

void* create_overlay(Engine& engine, Tcb& tcb, std::size_t state_bytes) {
  void* block = engine.impl().memory.allocate(sizeof(Overlay) + state_bytes);
  if (block == nullptr) return nullptr;
  tcb.overlay = new (block) Overlay;
  return tcb.overlay->state();
}

void drop_overlay(Engine& engine, Context& ctx, Tcb& tcb) {
  Env env{engine.impl(), ctx};
  tcb.overlay->map.clear(env.core.memory);
  env.core.memory.release(std::exchange(tcb.overlay, nullptr));
  tcb.ring.advance(env.core.memory, std::min(tcb.snd_una, tcb.ring.end()));
  unsigned events = 0;
  if (tcb.rx_bytes != 0) events |= kEventReadable;
  if (tcb.has(kFinReceived)) events |= kEventReadable | kEventEof;
  if (events != 0) env.post(tcb, static_cast<std::uint16_t>(events));
  output_soon(env, tcb);
}

void destroy_overlay(Env& env, Tcb& tcb) {
  const Hooks* hooks = env.ctx.hooks;
  if (hooks != nullptr && hooks->gone != nullptr) hooks->gone(hooks->self, env.ctx, tcb);
  Overlay* overlay = std::exchange(tcb.overlay, nullptr);
  overlay->map.clear(env.core.memory);
  env.core.memory.release(overlay);
}

// --- Hooks

void tell_established(Env& env, Tcb& tcb, bool bare) {
  const Hooks* hooks = env.ctx.hooks;
  if (hooks == nullptr) return;
  if (tcb.overlay == nullptr) {
    if (hooks->plain != nullptr) hooks->plain(hooks->self, tcb);
  } else if (hooks->established != nullptr) {
    hooks->established(hooks->self, env.ctx, tcb, bare);
  }
}

void call_progress(Env& env, Tcb& tcb) {
  const Hooks* hooks = env.ctx.hooks;
  if (tcb.has(kZombie) || hooks == nullptr || hooks->progress == nullptr) return;
  hooks->progress(hooks->self, env.ctx, tcb);
}

bool call_refill(Env& env, Tcb& tcb) {
  const Hooks* hooks = env.ctx.hooks;
  if (tcb.has(kFinQueued) || hooks == nullptr || hooks->refill == nullptr) return false;
  return hooks->refill(hooks->self, env.ctx, tcb);
}

bool is_heard_of(Env& env, Tcb& tcb) {
  const Hooks* hooks = env.ctx.hooks;
  if (tcb.overlay == nullptr || hooks == nullptr || hooks->heard == nullptr) return false;
  const std::uint64_t heard = hooks->heard(hooks->self, tcb);
  return std::exchange(tcb.overlay->heard, heard) != heard;
}

void run_overlay(Engine& engine, Context& ctx, Tcb& tcb) {
  Env env{engine.impl(), ctx};
  output_soon(env, tcb);
  end_burst(env);
  env.core.current = nullptr;
}

// --- Sending

bool prepare_record(Engine& engine, Tcb& tcb, std::uint32_t own) {
  return tcb.overlay->map.prepare(engine.impl().memory, own);
}

void append_record(Tcb& tcb, std::span<const std::byte> own, std::uint64_t source, std::uint64_t bytes, bool urgent) {
  SendMap& map = tcb.overlay->map;
  if (!own.empty()) map.append(own);
  if (bytes != 0) map.append_ring(source, bytes);
  if (bytes != 0) tcb.overlay->taken = std::max(tcb.overlay->taken, source + bytes);
  if (urgent) tcb.set(kForceOutput | kTryOutput);
}

bool has_program_bytes(const Tcb& tcb, std::uint64_t position, std::uint64_t length) {
  return tcb.overlay->map.has_ring_bytes(position, length);
}

void on_overlay_acked(Env& env, Tcb& tcb) {
  tcb.overlay->map.advance(env.core.memory, std::min(tcb.snd_una, tcb.overlay->map.end()));
  touch(env, tcb);
}

void release_sent(Engine& engine, Context& ctx, Tcb& tcb, std::uint64_t una) {
  if (una <= tcb.ring.begin()) return;
  Env env{engine.impl(), ctx};
  tcb.ring.advance(env.core.memory, std::min(una, tcb.ring.end()));
  if (tcb.has(kWantWritable)) wake_writer(env, tcb);
}

void pin_ring(Tcb& tcb) {
  tcb.ring.pin();
  tcb.overlay->pins_ring = true;
}

void unpin_ring(Engine& engine, Context& ctx, Tcb& tcb) {
  Env env{engine.impl(), ctx};
  tcb.ring.unpin(env.core.memory);
  if (tcb.overlay != nullptr) tcb.overlay->pins_ring = false;
  if (tcb.has(kWantWritable)) wake_writer(env, tcb);  // the block may grow again
  reap(env, tcb);
}

// --- Receiving

std::size_t peek_from(const Tcb& tcb, std::uint64_t skip, std::span<std::span<const std::byte>> out,
                      std::size_t bytes) {
  std::size_t count = 0;
  std::uint64_t wanted = bytes;
  for (const Packet* frame = tcb.rx_head; frame != nullptr && wanted != 0; frame = frame->queue_next) {
    if (skip >= frame->payload_len) {
      skip -= frame->payload_len;
      continue;
    }
    std::uint64_t before = frame->offset + skip, left = frame->payload_len - skip;
    skip = 0;
    for (const Packet* p = frame; p != nullptr && left != 0 && wanted != 0; p = p->next_segment) {
      const std::uint64_t from = std::min<std::uint64_t>(before, p->len);
      const std::uint64_t here = std::min(p->len - from, left), n = std::min(here, wanted);
      before -= from;
      left -= here;
      if (n == 0) continue;
      if (count == out.size()) return count;
      out[count++] = {p->data + from, static_cast<std::size_t>(n)};
      wanted -= n;
    }
  }
  return count;
}

std::size_t first_bytes(const Tcb& tcb, std::span<std::byte> out) {
  std::size_t copied = 0;
  while (copied < out.size()) {
    std::span<const std::byte> piece[1];
    const std::size_t wanted = out.size() - copied;
    if (peek_from(tcb, std::uint64_t{tcb.overlay->ready} + copied, piece, wanted) == 0) break;
    copy_bytes(out.data() + copied, piece[0].data(), piece[0].size());
    copied += piece[0].size();
  }
  return copied;
}

bool peer_has_ended(const Tcb& tcb) {
  return tcb.has(kFinReceived);
}

// --- Events and the end

void post_events(Engine& engine, Tcb& tcb, std::uint16_t events) {
  if (tcb.event.user == nullptr) {
    tcb.overlay->events = static_cast<std::uint16_t>(tcb.overlay->events | events);
  } else {
    engine.impl().events.post(tcb.event, events);
  }
}

void set_deadline(Engine& engine, Context&, Tcb& tcb, Instant at) {
  tcb.overlay->deadline = at;
  if (at == kNever || !tcb.has(kInFlowTable)) return;
  if (!tcb.wheel.scheduled() || at < tcb.wheel.expires()) engine.impl().wheel.schedule(tcb, at);
}

void end_deferral(Engine& engine, Context& ctx, Tcb& tcb) {
  Env env{engine.impl(), ctx};
  if (tcb.has(kDeferred)) (void)end_deferral(env, tcb);
}

void orphan(Engine& engine, Tcb& tcb) {
  engine.impl().events.remove(tcb.event);
  tcb.event.user = nullptr;
  tcb.set(kOrphan);
  tcb.clear(kHoldMore);
  tcb.options.cork = false;
  if (tcb.counted) return;
  tcb.counted = true;
  engine.impl().orphans++;
}

void send_fin(Engine& engine, Context& ctx, Tcb& tcb) {
  Env env{engine.impl(), ctx};
  if (!begin_fin(env, tcb)) return;
  if (tcb.state == State::kFinWait2) arm_idle(env, tcb);
  output_soon(env, tcb);
}

void fail(Engine& engine, Context& ctx, Tcb& tcb, Error error) {
  Env env{engine.impl(), ctx};
  if (tcb.state == State::kClosed || tcb.state == State::kTimeWait) return;
  touch(env, tcb);  // it must live until the burst's end
  send_reset(env, tcb);
  finish(env, tcb, error, Why::kReset);
}

}  // namespace bypass::tcp
