// FramePort: what the ports of this plugin have in common: buffers, counters, the link's state, the wake-up descriptor.
//
// The link's state is set by LinkWatch's thread, which calls look() whenever netlink tells that some interface changed;
// the data path reads one atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/counter.h"
#include "backends/packet/flows/shared_interface.h"
#include "backends/packet/frames/frame_pool.h"
#include "backends/packet/wakeup.h"
#include "stack/frame/port.h"

namespace bypass::packet {

class FramePort : public Port, protected PortCounters {
 public:
  /// Some interface of the system has changed. On LinkWatch's thread, and once on the opener's.
  virtual void look() = 0;

  [[nodiscard]] const PortCaps& caps() const final { return caps_; }
  [[nodiscard]] MacAddress mac() const final { return mac_; }
  [[nodiscard]] LinkState link() const final { return is_up() ? LinkState::kUp : LinkState::kDown; }
  std::size_t alloc(std::uint16_t queue, std::span<Packet*> out) final;
  void free(std::span<Packet* const> frames) final;
  [[nodiscard]] int wait_descriptor(std::uint16_t) const final { return wakeup_.descriptor(); }
  [[nodiscard]] std::uint32_t wait_generation() const final { return 0; }
  bool arm(std::uint16_t queue) override;
  void disarm(std::uint16_t queue) override;
  bool steer(const FlowSpec& flow, bool add) override { return shared_ == nullptr || shared_->steer(flow, add); }
  [[nodiscard]] PortStats stats() const final;

 protected:
  /// Where three quarters of the pool are taken, readers should hold no more of it. Called as frames are received.
  void mind_pool() { set_scarce(pool_.free_count() <= pool_.total() / 4 + kBurst); }
  static constexpr std::size_t kBurst = 64;

  /// Buffers and what they mean to the capabilities. False: `problem` says why.
  /// `automatic`: what BYPASS_HUGEPAGES=auto means here.
  bool prepare(const PortSpec& spec, const FrameLayout& layout, Hugepages automatic, std::string& problem);
  /// The same for a port that has a virtio header in front of each frame.
  bool prepare_virtio(const PortSpec& spec, std::string& problem);
  /// The interface's MTU, or the one asked for if the interface passes it.
  bool choose_mtu(const PortSpec& spec, std::uint32_t of_interface, std::string& problem);
  /// The MAC address: of an interface that is shared its own, and then its flows can be steered. False: `problem` says
  /// why.
  bool choose_mac(const PortSpec& spec, const MacAddress& of_interface, std::string& problem);
  void set_link(bool up);
  /// What is the matter with the interface of that name, in the log when it is something new; empty: nothing. From
  /// look() alone.
  void say_of_link(const std::string& interface, const std::string& problem);
  [[nodiscard]] bool is_up() const { return link_.load(std::memory_order_acquire); }
  /// Frames that the interface does not take any more: lost, as on a wire.
  std::size_t drop(std::span<Packet* const> frames);
  /// Frames that the kernel had to leave out since the last call; asked when `losing_` says that there are some.
  [[nodiscard]] virtual std::uint64_t lost_by_kernel() const { return 0; }

  FramePool pool_;
  Wakeup wakeup_;
  PortCaps caps_;
  MacAddress mac_;
  std::unique_ptr<SharedInterface> shared_;  // null: the port has its MAC address and its IP addresses for itself

 private:
  std::atomic<bool> link_{false};
  bool armed_link_ = false;  // link_ as it was at the last arm()
  std::string said_of_link_;
};

}  // namespace bypass::packet
