// DpdkPort: the data path of one port (port_receive.cc, port_send.cc, port_sleep.cc). What lies behind it (EAL, device,
// reopening) is PortKeeper's, on the control thread; the two meet in `state_`.
//
// (renew() goes from kRunning to kResuming.)
//
//   kPaused ──resume()──▶ kResuming ──settle()──▶ kRunning ──request_pause()──▶ kPausing ──settle()──▶ kPaused
//           (control)               (data path)             (control)                   (data path)
//
// settle() runs at the head of receive() and send(), so with the shard's lock held. After kPaused no thread is inside
// the driver's queues, and the control thread may close and open them. In kRunning it costs one load.
//
// The wake-up descriptor is an epoll descriptor of our own that stays the same over every reopening. Inside
// it, edge-triggered: the device's interrupt and an eventfd by which the control thread asks for receive().
// An edge-triggered member makes the outer descriptor readable from its event on until somebody fetches
// the event. arm() and disarm() fetch it, so that a level-triggered poll()
//   - wakes for every event since the last arm() (nothing is lost between arm() and poll()),
//   - does not spin: it stays readable only until the sleeper's disarm() or next arm().
// A descriptor that is polled without ever being armed says nothing about frames and may stay readable.
//
// A card's port (`Opened::proves_interrupt`) has a timer among the members, too, which arm() sets: a sleeper looks at
// the queue by itself now and then, and what it finds decides how far the interrupt is trusted (interrupt_trust.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "backends/counter.h"
#include "backends/dpdk/buffer_pool.h"
#include "backends/dpdk/card/interrupt_trust.h"
#include "backends/dpdk/card/lost_frames.h"
#include "stack/frame/port.h"

namespace bypass::dpdk {

/// What a freshly opened device means for the data path.
struct Opened {
  std::uint16_t device = 0;
  int interrupt_fd = -1;
  bool interrupt_switch = false;
  bool proves_interrupt = false;  // a real card's: it is not known whether its interrupt comes
  bool prepare = false;           // the driver wants rte_eth_tx_prepare before offloads
  bool foreign_threads = false;   // the driver frees buffers from threads of its own
  bool link_up = false;           // from when the data path has taken all this
  PortCaps caps;
  MacAddress mac;
  unsigned link_generation = 0;  // DpdkPort::link_generation() when the link was seen up
};

class DpdkPort final : public Port, PortCounters {
 public:
  /// poke(argument) wakes the control thread.
  DpdkPort(BufferPool& pool, BufferPool* gather, void (*poke)(void*), void* argument);
  ~DpdkPort() override;

  [[nodiscard]] const PortCaps& caps() const override { return caps_; }
  [[nodiscard]] MacAddress mac() const override { return mac_; }
  [[nodiscard]] LinkState link() const override {
    return link_.load(std::memory_order_acquire) ? LinkState::kUp : LinkState::kDown;
  }
  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  std::size_t alloc(std::uint16_t queue, std::span<Packet*> out) override;
  void free(std::span<Packet* const> frames) override;
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return epoll_fd_; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t queue) override;
  void disarm(std::uint16_t queue) override;
  [[nodiscard]] PortStats stats() const override;

  // --- For PortKeeper, on the control thread
  void announce(const PortCaps& caps, MacAddress mac);  // before the port is handed out
  void resume(const Opened& opened);
  void renew(const Opened& opened);  // the same device, with other capabilities: no pause, nothing dropped
  void request_pause();  // is_paused() becomes true when the data path has seen it, or at once if it never ran
  [[nodiscard]] bool is_paused() const { return state_.load(std::memory_order_acquire) == State::kPaused; }
  [[nodiscard]] bool is_running() const { return state_.load(std::memory_order_acquire) == State::kRunning; }
  void set_link(bool up);  // from any thread
  /// The peer has gone, or has begun anew: the link is down, and a renewal that nobody has adopted yet is of the past.
  /// `peer_is_there`: the link is expected to come up again.
  void lose_link(bool peer_is_there);
  /// On DPDK's threads, once the device may have lost its peer, whose memory goes next: returns when nobody is in the
  /// middle of switching its interrupt.
  void await_switch() const;
  /// Whether the wire lets this process in; somebody may have to be told.
  void tell_forbidden(bool on);
  [[nodiscard]] unsigned link_generation() const { return link_generation_.load(std::memory_order_acquire); }
  /// What has been found out about the interrupt; kDead with a port that has none.
  [[nodiscard]] InterruptTrust::State interrupt() const { return told_trust_.load(std::memory_order_relaxed); }
  /// EAL's interrupt thread has read the interrupt's descriptor. Any thread.
  void on_interrupt_read();
  /// The device is closed, and not by us.
  void set_gone(bool on) { gone_.store(on, std::memory_order_relaxed); }
  /// Frames that the device has dropped since it was opened.
  void set_lost(std::uint64_t frames);
  void count_reopening() { reopened_.fetch_add(1, std::memory_order_relaxed); }
  void wake();

 private:
  static constexpr std::size_t kBurst = 64;  // frames in one call of the driver
  enum class State : std::uint8_t { kPaused, kResuming, kRunning, kPausing };

  bool settle();
  void mind_pool() {
    if (asked_at_total_ != 0 || pool_.free_count() < pool_.low_mark()) [[unlikely]]
      mind_shortage();
  }
  void mind_shortage();
  void adopt();
  void fill_mbuf(Packet* head);
  bool append_external(Packet* head);
  void take_back_external(Packet* head);
  std::size_t burst(std::span<Packet* const> frames);
  std::size_t refuse(Packet* frame);
  std::size_t drop(std::span<Packet* const> frames);
  unsigned fetch_events();
  void watch(int fd, unsigned event) const;
  void note_look(bool found);
  void note_events(unsigned events);
  void tell_trust();
  void set_timer();
  void switch_interrupt(bool on);

  // Of the wake-up descriptor's members
  static constexpr unsigned kWoken = 1, kInterrupt = 2, kTimer = 4;
  enum class Look : std::uint8_t {
    kNone,   // polled, or not a card
    kArmed,  // armed: frames that come now are noted
    kDue,    // a sleeper has been called by the timer alone: what it finds is to be judged
  };

  std::atomic<State> state_{State::kPaused};
  std::atomic<bool> link_{false}, gone_{false};
  std::atomic<std::uint64_t> lost_{0};  // frames, by devices in turn
  LostFrames lost_by_device_;           // control thread
  std::atomic<bool> switching_{false};  // inside of the driver's switch of its interrupt
  bool armed_ = false;
  bool armed_link_ = false;  // link_ as it was at the last arm()
  bool prepare_ = false;
  bool interrupt_switch_ = false;
  bool proves_interrupt_ = false;
  Look look_ = Look::kNone;
  bool found_ = false;  // frames, while kArmed
  std::uint16_t device_ = 0;
  BufferPool& pool_;
  BufferPool* const gather_;

  PortCaps caps_;
  MacAddress mac_;
  Opened next_;  // read by the data path in kResuming, written by the control thread in any other state
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  int timer_fd_ = -1;
  InterruptTrust trust_;
  std::atomic<InterruptTrust::State> told_trust_{InterruptTrust::State::kUnproven};
  std::atomic<bool> interrupt_read_{false};
  void (*const poke_)(void*);
  void* const poke_argument_;
  std::uint32_t asked_at_total_ = 0;  // not 0: few buffers are left
  std::atomic<unsigned> link_generation_{0};
};

}  // namespace bypass::dpdk
