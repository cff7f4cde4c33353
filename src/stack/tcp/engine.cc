// The calls of engine.h that come from the wire, the clock and the ports. Each call names the object that it changes,
// does its work through the parts, and no longer names it.
#include "stack/tcp/engine.h"

#include <algorithm>
#include <new>

#include "stack/tcp/changing.h"
#include "stack/tcp/core.h"
#include "stack/tcp/icmp.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/memory_wait.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {

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

}  // namespace bypass::tcp
