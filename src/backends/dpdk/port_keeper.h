// PortKeeper: one port's life on the control thread: opening, watching the link, opening again.
//
// vhost end: opened once; the driver takes every new peer by itself. The keeper only hands the data path
// what the new peer can do. virtio end: the driver cannot outlive its peer, so the keeper closes the device
// when the link has gone and opens it anew when somebody serves the path again. A card is closed when the kernel wants
// it back, or when it has lost its kernel driver, and opened anew when it has been bound again.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backends/dpdk/control.h"
#include "backends/dpdk/device.h"
#include "backends/dpdk/dpdk_port.h"
#include "backends/dpdk/peer.h"
#include "backends/dpdk/port_plan.h"

namespace bypass {
struct PciCard;
}

namespace bypass::dpdk {

class PortKeeper final : public Watched {
 public:
  PortKeeper(Control& control, PortPlan plan, std::uint16_t index);
  ~PortKeeper() override;

  /// Pool and first attempt. False: `problem` says why the port cannot be had at all; a virtio end whose
  /// peer is not there yet is fine.
  bool open(std::string& problem);
  void close();
  Instant step(Instant now) override;

  [[nodiscard]] DpdkPort* port() const { return port_.get(); }
  /// open() has failed because another process has the path.
  [[nodiscard]] bool taken() const { return taken_; }

 private:
  enum class Phase {
    kAbsent,    // no device; tried again when due
    kUp,        // the device is open
    kStopping,  // the peer, or the card, goes; waiting for the data path to leave the queues
  };

  static void on_link_event(void* self);      // on DPDK's threads
  static void on_interrupt_read(void* self);  // likewise

  bool create_pools(std::string& problem);
  bool open_vhost(std::string& problem);
  bool open_device(std::string& problem);
  void try_virtio(Instant now);
  void explain_absence(Peer peer, const std::string& detail);
  void try_card(Instant now);
  [[nodiscard]] static std::string obstacle(const PciCard& card);
  void tell_card(LogLevel level, const std::string& text);
  void stop();
  void tell_interrupt();
  void watch_link(Instant now);
  void watch_vhost_link(Instant now);
  void finish_stopping(Instant now);
  [[nodiscard]] Opened describe(bool link_up) const;
  void close_device();
  Instant next_try(Instant now);

  Control& control_;
  const PortPlan plan_;
  const std::uint16_t index_;
  std::unique_ptr<BufferPool> pool_, gather_;
  std::unique_ptr<DpdkPort> port_;
  Device device_;
  Phase phase_ = Phase::kAbsent;
  bool taken_ = false;
  Instant due_ = kNever;
  unsigned tries_ = 0;
  std::atomic<unsigned> link_events_{0};
  unsigned seen_link_events_ = 0;
  bool meeting_ = false;  // vhost: a new peer is connected, but cannot take frames yet
  unsigned looks_ = 0;    // at that peer
  InterruptTrust::State told_interrupt_ = InterruptTrust::State::kUnproven;
  std::string last_complaint_;
  LogLevel last_level_{};
  int busy_looks_ = 0;       // in a row
  std::string left_driver_;  // that the card was open through; empty: it has been seen without it since
};

}  // namespace bypass::dpdk
