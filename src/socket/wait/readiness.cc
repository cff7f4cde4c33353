#include "socket/wait/readiness.h"

#include <fcntl.h>

#include <array>

#include "os/os.h"
#include "socket/family/doorbell.h"
#include "socket/shard.h"
#include "socket/shared/local_link.h"
#include "socket/socket.h"
#include "socket/wait/async.h"
#include "socket/wait/epoll.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

struct Collected {
  std::array<WakeTarget, 32> targets;
  unsigned count = 0;
};
thread_local Collected collected;

void wake(const WakeTarget& target) {
  if (target.slot != shard().family().slot()) return ring_doorbell(target);
  if (target.event_fd >= 0) os::eventfd_add(target.event_fd, 1);
}

void count_up(Readiness& readiness, std::uint32_t bits) {
  if ((bits & kIn) != 0) readiness.in++;
  if ((bits & kOut) != 0) readiness.out++;
  if ((bits & (kHangUp | kPeerShut)) != 0) readiness.hup++;
  if ((bits & kError) != 0) readiness.err++;
  // Release pairs with the spinner's acquire. The spinner then takes the lock anyway, so only the change must be
  // visible.
  readiness.version.store(readiness.version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void call(Waiter& waiter) {
  if (!waiter.asleep || waiter.called) return;
  waiter.called = true;
  if (!waiter.looks) collect_wake(waiter.target);
}

void call_waiters(File& file, std::uint32_t bits) {
  bool exclusive_called = false;
  for (WaitLink* link = file.waiters; link != nullptr; link = link->next) {
    if ((link->mask & bits) == 0) continue;
    if (!link->exclusive) {
      call(*link->waiter);
    } else if (!exclusive_called && !link->waiter->called) {
      call(*link->waiter);
      exclusive_called = true;
    }
  }
}

std::uint32_t bits_of(const EventNode& node, std::uint16_t events) {
  std::uint32_t bits = 0;
  if ((events & kEventReadable) != 0) bits |= kIn;
  if ((events & kEventWritable) != 0) bits |= kOut;
  if ((events & kEventError) != 0 && node.source == EventSource::kUdp) bits |= kError;
  constexpr std::uint16_t kStateChange = kEventConnected | kEventEof | kEventClosed | kEventDelivered;
  if ((events & kStateChange) != 0) bits = kEverything;
  if ((events & kEventError) != 0 && node.source != EventSource::kUdp) bits = kEverything;
  return bits;
}

}  // namespace

void signal(File& file, std::uint32_t bits) {
  count_up(file.readiness, bits);
  if ((file.status & O_ASYNC) != 0) [[unlikely]]
    send_async(file, bits);
  if (file.waiters != nullptr) call_waiters(file, bits);
  bool exclusive_woken = false;
  for (EpollItem* item = file.items; item != nullptr; item = item->target_next) {
    if ((item->events & (bits | kAlways) & bits) == 0) continue;
    const bool exclusive = (item->events & EPOLLEXCLUSIVE) != 0;
    if (exclusive && exclusive_woken) continue;
    const bool woken = item_signalled(*item);
    exclusive_woken = exclusive_woken || (exclusive && woken);
  }
}

void signal_idle(File& file) {
  file.readiness.version.store(file.readiness.version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  for (WaitLink* link = file.waiters; link != nullptr; link = link->next) call(*link->waiter);
}

bool is_waited_for(const File& file) {
  if (file.waiters != nullptr) return true;
  for (const EpollItem* item = file.items; item != nullptr; item = item->target_next)
    if (item->set->waiters != nullptr || item->set->items != nullptr) return true;
  return false;
}

void pass_on(File& file, std::uint32_t bits) {
  if (file.waiters != nullptr && (poll_bits(file) & bits) != 0) call_waiters(file, bits);
}

std::uint32_t poll_bits(File& file) {
  switch (file.kind) {
    case FileKind::kStream:
      return stream_bits(socket_of(file));
    case FileKind::kListener:
      return listener_bits(socket_of(file));
    case FileKind::kDatagram:
      return datagram_bits(socket_of(file));
    case FileKind::kEpoll:
      return epoll_bits(static_cast<Epoll&>(file));
  }
  return 0;
}

void dispatch_events(Stack& stack) {
  EventList& list = stack.events();
  while (EventNode* node = list.take()) {
    const std::uint16_t events = node->events;
    node->events = 0;
    if (node->user != nullptr) signal(*static_cast<Socket*>(node->user), bits_of(*node, events));
  }
}

void collect_wake(const WakeTarget& target) {
  if (collected.count == collected.targets.size()) return wake(target);
  collected.targets[collected.count++] = target;
}

void wake_collected() {
  wake_peers();
  while (collected.count != 0) wake(collected.targets[--collected.count]);
}

}  // namespace bypass::socket
