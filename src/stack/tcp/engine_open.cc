// The calls of engine.h that open: connections, listeners, and the ports that they have.
#include "stack/tcp/engine.h"

#include <utility>

#include "stack/frame/arrival.h"
#include "stack/tcp/changing.h"
#include "stack/tcp/core.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/steering.h"

namespace bypass::tcp {
namespace {

bool local_matches(const FlowNode& flow, const IpAddress& address, const Endpoint& local) {
  return flow.local_port == local.port && (local.address.is_any() || local.address == address);
}

}  // namespace

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

}  // namespace bypass::tcp
