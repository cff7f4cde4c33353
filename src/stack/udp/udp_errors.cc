// An endpoint's queue of errors (ip(7), IP_RECVERR).
#include <algorithm>
#include <new>
#include <utility>

#include "stack/udp/udp_impl.h"

namespace bypass::udp {

// The receive buffer limits the queue, as in sock_queue_err_skb() of Linux.
QueuedError* Engine::Impl::queue_error(Context& ctx, Binding& binding) {
  if (binding.charged + sizeof(QueuedError) > binding.limit) return nullptr;
  void* const block = memory.allocate(sizeof(QueuedError));
  if (block == nullptr) return nullptr;
  auto* const entry = new (block) QueuedError;
  entry->arrived = ctx.now;
  (binding.last_error != nullptr ? binding.last_error->next : binding.errors) = entry;
  binding.last_error = entry;
  binding.charged += static_cast<std::uint32_t>(sizeof(QueuedError));
  events.post(binding.event, kEventError);
  return entry;
}

void Engine::Impl::drop_errors(Binding& binding) {
  QueuedError* entry = std::exchange(binding.errors, nullptr);
  binding.last_error = nullptr;
  while (entry != nullptr) {
    binding.charged -= static_cast<std::uint32_t>(sizeof(QueuedError));
    memory.release(std::exchange(entry, entry->next));
  }
}

void Engine::want_errors(Binding& endpoint, bool on) {
  endpoint.wants_errors = on;
  if (!on) impl_->drop_errors(endpoint);
}

const QueuedError* Engine::first_error(const Binding& endpoint) const {
  return endpoint.errors;
}

void Engine::pop_error(Binding& endpoint) {
  QueuedError* const entry = endpoint.errors;
  if (entry == nullptr) return;
  endpoint.errors = entry->next;
  if (endpoint.errors == nullptr) endpoint.last_error = nullptr;
  endpoint.charged -= static_cast<std::uint32_t>(sizeof(QueuedError));
  const QueuedError* const next = endpoint.errors;
  if (next != nullptr && next->origin == QueuedError::Origin::kIcmp) {
    endpoint.error = next->error;
  } else if (entry->origin == QueuedError::Origin::kIcmp) {
    endpoint.error = Error::kNone;
  }
  impl_->memory.release(entry);
}

void Engine::queue_local_error(Context& ctx, Binding& endpoint, const Endpoint& remote) {
  const auto mtu = path_mtu(ctx, endpoint, remote.address);
  QueuedError* const entry = impl_->queue_error(ctx, endpoint);
  if (entry == nullptr) return;
  entry->error = Error::kMessageTooLarge;
  entry->origin = QueuedError::Origin::kLocal;
  entry->info = mtu.ok() ? *mtu : 0;
  entry->remote = {remote.address, endpoint.connected ? endpoint.remote.port : std::uint16_t{0}};
}

}  // namespace bypass::udp
