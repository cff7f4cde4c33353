#include "socket/family/wires.h"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "os/os.h"
#include "stack/memory/arena_packet.h"

namespace bypass::socket {

namespace {

/// A block is as large as a device's buffer.
constexpr std::size_t kFrameBytes = 2048 - kTxHeadroom - sizeof(Packet);

}  // namespace

void Maker::set(std::uint32_t its_pid, std::uint64_t its_start_time) {
  if (pid.load(std::memory_order_relaxed) == its_pid && start_time.load(std::memory_order_relaxed) == its_start_time)
    return;
  pid.store(0, std::memory_order_release);  // a process that asks meanwhile takes no other process for this one
  start_time.store(its_start_time, std::memory_order_release);
  pid.store(its_pid, std::memory_order_release);
}

bool Maker::lives() const {
  const std::uint32_t its_pid = pid.load(std::memory_order_acquire);
  if (its_pid == 0) return false;
  const std::uint64_t start = start_time.load(std::memory_order_acquire), now = os::start_time_of(its_pid);
  return start != 0 && now != 0 ? start == now : os::kill(its_pid, 0) != -ESRCH;
}

FrameRing* RelayPort::ring() {
  FrameRing*& place = wires_.rings[index_];
  if (place != nullptr) return place;
  void* const block = memory_.allocate(sizeof(FrameRing));
  if (block == nullptr) return nullptr;
  auto* const made = new (block) FrameRing;
  made->head = made->tail = 0;
  std::atomic_signal_fence(std::memory_order_release);  // a process that rebuilds after a death reads it
  return place = made;
}

std::size_t RelayPort::tx_room(std::uint16_t) {
  const FrameRing* const here = ring();
  return here == nullptr ? 0 : FrameRing::kPlaces - here->size();
}

std::size_t RelayPort::send(std::uint16_t queue, std::span<Packet* const> frames) {
  const std::size_t n = std::min(frames.size(), tx_room(queue));
  if (n == 0) return 0;
  FrameRing& to = *ring();
  for (Packet* const frame : frames.first(n)) to.frames[to.tail++ % FrameRing::kPlaces] = frame;
  wires_.frames_left.store(true, std::memory_order_relaxed);
  return n;
}

std::size_t RelayPort::alloc(std::uint16_t, std::span<Packet*> out) {
  std::size_t n = 0;
  while (n < out.size() && (out[n] = allocate_arena_packet(memory_, kTxHeadroom, kFrameBytes)) != nullptr) n++;
  return n;
}

void RelayPort::free(std::span<Packet* const> frames) {
  for (Packet* frame : frames) {
    // A frame that an earlier owner left unmoved lies in no memory of ours.
    if (memory_.contains(frame)) release_arena_packet(memory_, frame);
  }
}

void take_left_frames(Wires& wires, Context& context) {
  bool any = false;
  for (std::uint16_t i = 0; i < context.ports; i++) {
    if (wires.rings[i] == nullptr) continue;
    FrameRing& ring = *wires.rings[i];
    PortQueue& queue = context.queue(i);
    while (ring.size() != 0 && queue.can_transmit()) {
      Packet* const left = ring.frames[ring.head % FrameRing::kPlaces];
      Packet* const frame = to_device_frame(queue, *left);
      if (frame == nullptr) break;
      ring.head++;
      release_arena_packet(*context.memory, left);
      (void)queue.transmit(frame);  // there is room
    }
    any = any || ring.size() != 0;
  }
  wires.frames_left.store(any, std::memory_order_relaxed);
}

void mark_left_frames(Wires& wires, Memory& memory) {
  for (FrameRing*& ring : wires.rings) {
    if (ring == nullptr) continue;
    if (!memory.mark_in_use(ring)) {
      ring = nullptr;
      continue;
    }
    for (std::uint32_t i = ring->head; i != ring->tail; i++)
      (void)mark_arena_packet(memory, *ring->frames[i % FrameRing::kPlaces]);
  }
}

}  // namespace bypass::socket
