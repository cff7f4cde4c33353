#include "stack/context.h"

#include <algorithm>

#include "stack/memory/arena_packet.h"

namespace bypass {

void PortQueue::refill() {
  if (port_ == nullptr) return;
  cached_ = static_cast<std::uint16_t>(port_->alloc(queue_, cache_));
  scarce_ = cached_ < cache_.size();
  for (std::size_t i = 0; i < cached_; i++) cache_[i]->port = index_;
}

void PortQueue::push() {
  if (port_ == nullptr) return;
  const std::size_t sent = pending_ == 0 ? 0 : port_->send(queue_, {tx_.data(), pending_});
  std::move(tx_.begin() + static_cast<std::ptrdiff_t>(sent), tx_.begin() + pending_, tx_.begin());
  pending_ = static_cast<std::uint16_t>(pending_ - sent);
  renew_limit();
}

void PortQueue::give_back() {
  if (port_ != nullptr) port_->free({free_.data(), frees_});
  frees_ = 0;
}

void PortQueue::drain() {
  if (port_ != nullptr) {
    port_->free({tx_.data(), pending_});
    port_->free({cache_.data(), cached_});
  }
  pending_ = cached_ = 0;
  give_back();
}

bool Context::has_ports() const {
  return std::any_of(queues.begin(), queues.begin() + static_cast<std::ptrdiff_t>(ports),
                     [](const PortQueue& queue) { return queue.port() != nullptr; });
}

void Context::release(Packet* frame) {
  if ((frame->flags & kInArena) == 0) {
    if (frame->port < ports) queues[frame->port].free(frame);
    return;
  }
  release_arena_packet(*memory, frame);
}

}  // namespace bypass
