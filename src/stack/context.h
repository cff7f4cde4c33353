// Context: what a process passes in when it enters the stack with the shard's lock held: the time, its ports with their
// transmit batches, and the hooks. It is private to the process. The Stack lies in the arena and keeps nothing of the
// Context.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/frame/packet.h"
#include "stack/frame/port.h"
#include "stack/time.h"

namespace bypass {

class Memory;
struct Context;
namespace tcp {
struct Tcb;
}

/// Extensions of TCP that TCP does not know (the fast path's handshake, source-port steering). Every member may be
/// null.
struct Hooks {
  void* self = nullptr;
  /// Called while a SYN or SYN-ACK is built, the first time and on each retransmission (`attempt` counts
  /// from 0). Appends whole options to `room`, returns bytes used; what does not fit is left out.
  std::size_t (*add_syn_options)(void* self, tcp::Tcb& tcb, bool syn_ack, unsigned attempt,
                                 std::span<std::byte> room) = nullptr;
  /// Each option of a received SYN or SYN-ACK that the stack itself does not know. May put the connection under an
  /// overlay (tcp/output/overlay.h).
  void (*see_syn_option)(void* self, Context& ctx, tcp::Tcb& tcb, bool syn_ack, std::uint8_t kind,
                         std::span<const std::byte> body) = nullptr;
  /// The handshake is over, and the connection is under no overlay.
  void (*plain)(void* self, const tcp::Tcb& tcb) = nullptr;
  // --- Of connections under an overlay
  /// The handshake is over. What the client's hook appends rides on its last ACK. `bare`: the segment that established
  /// a server's connection lies at the stream's beginning and carries nothing.
  void (*established)(void* self, Context& ctx, tcp::Tcb& tcb, bool bare) = nullptr;
  /// Called once a burst, before output, after bytes, an ACK, FIN, an end or the timer have come; see run_overlay().
  void (*progress)(void* self, Context& ctx, tcp::Tcb& tcb) = nullptr;
  /// TCP has room for more bytes. Returns whether something was appended. The hook may do nothing else.
  bool (*refill)(void* self, Context& ctx, tcp::Tcb& tcb) = nullptr;
  /// How much the peer has sent, and placed of what was sent to it, on every path together: the number changes with
  /// each byte.
  std::uint64_t (*heard)(void* self, const tcp::Tcb& tcb) = nullptr;
  /// The connection goes away, and its overlay with it.
  void (*gone)(void* self, Context& ctx, tcp::Tcb& tcb) = nullptr;
  /// Picks the source port of a connect (0: let the stack choose). RSS, fast paths.
  std::uint16_t (*choose_source_port)(void* self, const Endpoint& local, const Endpoint& remote) = nullptr;
};

/// One port's side of a Context: the transmit batch, a few empty frames in reserve, and frames to give back.
class PortQueue {
 public:
  static constexpr std::size_t kBatch = 64;

  PortQueue() = default;
  PortQueue(Port* port, std::uint16_t index, std::uint16_t queue)
      : port_(port),
        caps_(&port->caps()),
        index_(index),
        queue_(queue),
        bounded_(port->tx_room(queue) != Port::kAnyRoom) {
    renew_limit();
  }

  [[nodiscard]] Port* port() const { return port_; }
  [[nodiscard]] std::uint16_t queue() const { return queue_; }
  /// The capabilities of the port; of a missing port, no capability.
  [[nodiscard]] const PortCaps& caps() const { return *caps_; }

  /// An empty frame, or null when the port has none left.
  Packet* alloc() {
    if (cached_ == 0) refill();
    return cached_ == 0 ? nullptr : cache_[--cached_];
  }
  /// Queues a frame for the batch's transmit burst and takes it over. False (the caller keeps the frame)
  /// when the batch and the device's ring are full: a sender with state tries again at the next poll.
  [[nodiscard]] bool transmit(Packet* frame) {
    if (!can_transmit()) return false;
    tx_[pending_++] = frame;
    return true;
  }
  /// Whether transmit() will take `frames` more.
  [[nodiscard]] bool can_transmit(std::size_t frames = 1) {
    if (pending_ + frames <= limit_) return true;
    push();
    return pending_ + frames <= limit_;
  }
  /// Reads the room of a port that knows its room, because other processes may have changed it since the lock was last
  /// held. No more is queued than the port takes.
  void renew_limit() {
    if (bounded_) limit_ = static_cast<std::uint16_t>(std::min(kBatch, port_->tx_room(queue_)));
  }
  void free(Packet* frame) {
    if (frees_ == kBatch) give_back();
    free_[frees_++] = frame;
  }
  /// Makes one send() of all that is queued. What the device does not take stays queued.
  void flush() {
    if (pending_ != 0) push();
    if (frees_ != 0) give_back();
  }
  [[nodiscard]] std::size_t pending() const { return pending_; }
  /// The port has few frames left, or gave fewer than were last asked for. A holder of received frames should copy them
  /// to the arena and give them back.
  [[nodiscard]] bool scarce() const { return scarce_ || (port_ != nullptr && port_->scarce()); }
  /// Gives every frame back to the port. To be called before the port is closed.
  void drain();

 private:
  void refill();
  void push();
  void give_back();

  static constexpr PortCaps kNoCaps{};

  Port* port_ = nullptr;
  const PortCaps* caps_ = &kNoCaps;  // the port's own object: no virtual call for each frame
  std::uint16_t index_ = 0;
  std::uint16_t queue_ = 0;
  std::uint16_t pending_ = 0;
  std::uint16_t cached_ = 0;
  std::uint16_t frees_ = 0;
  std::uint16_t limit_ = kBatch;
  bool scarce_ = false;
  bool bounded_ = false;
  std::array<Packet*, kBatch> tx_{};
  std::array<Packet*, 32> cache_{};
  std::array<Packet*, kBatch> free_{};
};

struct Context {
  static constexpr std::size_t kMaxPorts = 16;

  Instant now{};  // the batch's arrival time, or the time of the program's call
  std::array<PortQueue, kMaxPorts> queues{};
  std::size_t ports = 0;
  Memory* memory = nullptr;
  const Hooks* hooks = nullptr;
  /// Other processes use the stack, too: a packet that stays in the stack beyond the call must lie in the arena.
  bool shared = false;

  [[nodiscard]] PortQueue& queue(std::uint16_t port) { return queues[port]; }
  /// Whether this process has a port open: a port's frames can be read only in such a process.
  [[nodiscard]] bool has_ports() const;
  /// After a death: whether a frame outside the arena can be one of ours at all.
  [[nodiscard]] bool sees_frames() const { return has_ports() && !shared; }
  /// Whether the port that a frame belongs to is open here, so that release() reaches it.
  [[nodiscard]] bool has_port_of(const Packet& frame) const {
    return frame.port < ports && queues[frame.port].port() != nullptr;
  }
  /// Every port is gone: closed, or another process's. Nothing of the ports is touched again.
  void forget_ports() {
    queues.fill({});
    ports = 0;
  }
  /// Gives a frame back to the owner of its memory.
  void release(Packet* frame);
  /// Ends a batch: one transmit burst for each port; freed frames are given back.
  void flush() {
    for (std::size_t i = 0; i < ports; i++) queues[i].flush();
  }
};

}  // namespace bypass
