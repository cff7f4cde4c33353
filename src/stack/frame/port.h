// Port: what the stack asks of a wire. A batch of frames in, a batch of frames out.
//
// Backends implement it (dpdk, verbs, sim). All calls of one queue come from the holder of the shard's
// lock, never two at once; a backend that has to stop its queues (to open the device again) lets
// receive() and send() see a flag and do nothing meanwhile. No call blocks. A virtual call is made once a
// batch, never once a byte.
//
// A Port object is private to the process that opened it and never lies in the arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/frame/packet.h"

namespace bypass {

struct PortCaps {
  std::uint32_t mtu = 1500;           // bytes of the L3 packet
  std::uint32_t buffer_bytes = 2048;  // of one buffer, headroom included
  std::uint16_t queues = 1;
  bool rx_checksum = false;  // sets kRx…ChecksumGood/Bad
  bool tx_ip_checksum = false;
  bool tx_l4_checksum = false;
  bool tso = false;
  std::uint32_t tso_max_bytes = 0;  // payload bytes of the largest TSO frame
  bool lro = false;                 // may deliver frames longer than the MTU
  bool gather = false;              // send() takes Packet::external: it can read the arena
  bool rss = false;
  bool arena_frames = false;  // its frames lie in the arena: a stand-in for a port of another process
  bool steering = false;      // steer() works; the kernel keeps what is not steered
  bool keeps_sent = false;    // a frame that the other end has not taken when the port is closed is lost
};

enum class LinkState : std::uint8_t { kDown, kUp };

struct PortStats {
  std::uint64_t rx_frames = 0, rx_bytes = 0, rx_dropped = 0, rx_no_buffer = 0;
  std::uint64_t tx_frames = 0, tx_bytes = 0, tx_full = 0;
  std::uint64_t tx_dropped = 0;  // taken while the link was down, or refused for good by the device
  std::uint64_t link_up = 0, link_down = 0, reopened = 0;
  std::uint64_t buffers_total = 0, buffers_free = 0;
  bool looked_at = false;  // no interrupt of its device comes: a sleeper looks at it by a timer
  bool gone = false;       // its device has been taken away
};

/// A flow as a steering device matches it; a zero field matches anything.
struct FlowSpec {
  std::uint8_t protocol = 0;  // IPPROTO_TCP, IPPROTO_UDP
  Endpoint local;
  Endpoint remote;
  bool operator==(const FlowSpec&) const = default;
};

class Port {
 public:
  Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  virtual ~Port() = default;

  [[nodiscard]] virtual const PortCaps& caps() const = 0;
  [[nodiscard]] virtual MacAddress mac() const = 0;
  [[nodiscard]] virtual LinkState link() const = 0;

  /// Up to out.size() frames that have arrived. The caller owns them.
  virtual std::size_t receive(std::uint16_t queue, std::span<Packet*> out) = 0;

  /// Sends a prefix of `frames` and returns its length; owns what it took. The rest stays the caller's
  /// (the device's ring is full, or the link is down: a down link takes frames and drops them, counted,
  /// as a card with no carrier does).
  virtual std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) = 0;

  /// How many frames the next send() takes for sure, where only the holder of the shard's lock can change that;
  /// kAnyRoom: the device decides.
  [[nodiscard]] virtual std::size_t tx_room(std::uint16_t /*queue*/) { return kAnyRoom; }
  static constexpr std::size_t kAnyRoom = SIZE_MAX;

  /// Empty frames of one buffer each, reset() to kTxHeadroom. Fewer than asked when the pool runs dry.
  virtual std::size_t alloc(std::uint16_t queue, std::span<Packet*> out) = 0;

  /// Takes back whole frames (heads with their segments) that came from this port's receive() or alloc().
  virtual void free(std::span<Packet* const> frames) = 0;

  /// A descriptor that becomes readable when frames arrive while the queue is armed, or when the port wants receive()
  /// called for its own reasons. -1: the port has no descriptor and must be polled by a timer. It may change when the
  /// device is opened again: `wait_generation` counts that.
  [[nodiscard]] virtual int wait_descriptor(std::uint16_t queue) const = 0;
  [[nodiscard]] virtual std::uint32_t wait_generation() const = 0;

  /// Asks for the wake-up. False: frames may already be waiting, so look again before sleeping. The order is: arm,
  /// receive once more, sleep, disarm.
  virtual bool arm(std::uint16_t queue) = 0;
  virtual void disarm(std::uint16_t queue) = 0;

  /// Steers a flow to this port (add) or away from it. Ports without steering see every frame and return true. Only
  /// this call may take a while: until the device has made or removed the rule.
  virtual bool steer(const FlowSpec& /*flow*/, bool /*add*/) { return true; }

  [[nodiscard]] virtual PortStats stats() const = 0;

  /// How often the link has come up. After each time, what was lost meanwhile may be sent again. Any thread may call
  /// it.
  [[nodiscard]] std::uint32_t link_ups() const { return link_ups_.load(std::memory_order_acquire); }

  /// The link is down, but the other end exists: the link comes up as soon as both ends are ready. Any thread may call
  /// it.
  [[nodiscard]] bool expects_link() const { return expects_link_.load(std::memory_order_acquire); }

  /// How many flows steer() accepted while the device was lost, and the device refused when it was back, since the last
  /// call.
  [[nodiscard]] std::uint64_t take_steer_lost() { return steer_lost_.exchange(0, std::memory_order_acq_rel); }

  /// The wire exists but does not admit this process, as it is another user's. Another process of the family may be
  /// admitted. Any thread may call it.
  [[nodiscard]] bool forbidden() const { return forbidden_.load(std::memory_order_acquire); }

  /// Few buffers are left: a holder of received frames should copy them to the arena and give them back. The caller
  /// holds the shard's lock.
  [[nodiscard]] bool scarce() const { return scarce_; }

 protected:
  void set_scarce(bool on) { scarce_ = on; }
  void set_forbidden(bool on) { forbidden_.store(on, std::memory_order_release); }
  void set_expects_link(bool on) { expects_link_.store(on, std::memory_order_release); }
  void count_steer_lost(std::uint64_t flows) { steer_lost_.fetch_add(flows, std::memory_order_acq_rel); }
  void count_link_up() { link_ups_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<std::uint32_t> link_ups_{0};
  std::atomic<std::uint64_t> steer_lost_{0};
  std::atomic<bool> forbidden_{false}, expects_link_{false};
  bool scarce_ = false;
};

}  // namespace bypass
