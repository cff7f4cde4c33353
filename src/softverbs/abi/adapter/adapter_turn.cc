// The turn of the lock's holder: it looks at the wire, sends, and passes on the engine's events.
#include "softverbs/abi/adapter/adapter.h"

#include <cerrno>
#include <string>
#include <utility>

#include "config/config.h"
#include "os/os.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/objects.h"

namespace bypass::softverbs {
namespace {

/// For so long after a look at the wire for one completion queue, a poll of another queue need not look again.
constexpr Duration kFresh = std::chrono::microseconds(1);

/// For so many polls after libbypass asked to be notified of the next completion, it counts as awake: before it sleeps
/// it makes only a few more polls.
constexpr unsigned kAwakePolls = 16;

}  // namespace

std::size_t Adapter::poll(Instant now, rdma::Acks acks) {
  const std::size_t frames = engine_->poll(now, acks);
  if (frames > 0) last_useful_ = now;
  return frames;
}

void Adapter::hand_on_events() {
  if (!engine_->has_events()) return;
  for (void* user = nullptr; engine_->take_completion_event(user);) {
    if (user == management_)
      os::eventfd_add(management_fd_, 1);
    else
      static_cast<CompletionQueue*>(user)->notify();
  }
  for (rdma::AsyncEvent event; engine_->take_async_event(event);) deliver(event);
}

void Adapter::deliver(const rdma::AsyncEvent& event) {
  if (event.user == nullptr) {
    ibv_async_event told{};
    told.event_type = event.type;
    if (event.type != IBV_EVENT_DEVICE_FATAL) told.element.port_num = 1;
    for (Context* const context : contexts_) context->async.push({told, nullptr});
    if (event.type == IBV_EVENT_PORT_ERR && management_ != nullptr && is_in_memory()) {
      peer_lost_ = true;
      os::eventfd_add(management_fd_, 1);
    }
    return;
  }
  if (event.user == management_) return;
  switch (event.type) {
    case IBV_EVENT_CQ_ERR:
      return static_cast<CompletionQueue*>(event.user)->report(event.type);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return static_cast<SharedReceiveQueue*>(event.user)->report(event.type);
    default:
      return static_cast<QueuePair*>(event.user)->report(event.type);
  }
}

void Adapter::settle() {
  hand_on_events();
  const bool minds_itself = is_hosted() && !asked_;
  const Instant next = minds_itself ? kNever : engine_->next_timeout();
  if (next != kNever && next + tick_ < sleeps_until_) wake_progress();
}

int Adapter::physical_state() const {
  constexpr int kPolling = 2, kDisabled = 3, kLinkUp = 5;
  if (port_->forbidden()) return kDisabled;
  return port_->link() == LinkState::kUp ? kLinkUp : kPolling;
}

bool Adapter::is_in_memory() const {
  const std::string& kind = setup().soft[index_].kind;
  return kind == "vhost" || kind == "virtio";
}

ibv_port_state Adapter::port_state() const {
  // A card without a carrier is down. But on a wire in memory the peer's program, which the user starts second, makes
  // the link. Pingpong programs and perftest look at the state once, before the user starts the peer, and end if it is
  // down. So a program is told that a link which was never up yet is up. libbypass, which waits for the event, is told
  // the truth.
  const bool waits = !is_hosted() && is_in_memory() && port_->link_ups() == 0;
  return waits || port_->link() == LinkState::kUp ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
}

std::size_t Adapter::poll_for_program(Instant now, rdma::Acks acks) {
  if (inherited_) return 0;
  const bool awake = asked_ && is_hosted() && ++polls_since_asked_ >= kAwakePolls;
  if (awake) stop_watching(now);
  if (armed_ && (awake || passed_by_.load(std::memory_order_relaxed))) be_alone();
  polls_++;
  called_at_ = now;
  if (found_) last_useful_ = now;
  found_ = false;
  const std::size_t frames = poll(now, acks);
  polls_ += frames;
  return frames;
}

std::size_t Adapter::Turn::poll() {
  const std::size_t frames = adapter_.poll_for_program(adapter_.clock_.now(), rdma::Acks::kSend);
  hand_on_events();
  return frames;
}

std::size_t Adapter::Turn::look(std::uint64_t& seen) {
  const Instant now = adapter_.clock_.now();
  const bool others = std::exchange(seen, adapter_.looks_) != adapter_.looks_;
  if (others && now - adapter_.looked_at_ < kFresh) return 0;
  seen = ++adapter_.looks_;
  adapter_.looked_at_ = now;
  return adapter_.poll_for_program(now, adapter_.acks());
}

void Adapter::Turn::post() {
  const Instant now = adapter_.clock_.now();
  adapter_.called_at_ = now;
  adapter_.engine_->run(now, adapter_.acks());
}

bool Adapter::Turn::found(std::size_t completions) {
  if (completions > 0) {
    adapter_.found_ = true;
    return false;
  }
  return adapter_.called_at_ - adapter_.last_useful_ > adapter_.spin_ && !is_hosted();
}

void Adapter::Turn::sleeps(bool asleep) {
  if (!asleep) {
    adapter_.sleepers_--;
    return;
  }
  adapter_.sleepers_++;
  if (!adapter_.inherited_) adapter_.watch_wire();
}

int Adapter::Turn::request_notify(rdma::Cq& queue, bool solicited_only) {
  const int error = adapter_.engine_->request_notify(queue, solicited_only);
  adapter_.asked_ = true;
  adapter_.polls_since_asked_ = 0;
  adapter_.watch_wire();
  return error;
}

}  // namespace bypass::softverbs
