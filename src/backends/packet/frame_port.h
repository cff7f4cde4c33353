// FramePort: what the ports of this plugin have in common: buffers, counters, the link's state, the wake-up descriptor.
//
// LinkWatch's thread sets the link's state. It calls look() whenever netlink tells that some interface changed. The
// data path reads one atomic.
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
  /// Some interface of the system has changed. It is called on LinkWatch's thread, and once on the thread that opens
  /// the port.
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
  /// Tells readers to hold no more buffers when three quarters of the pool are in use. Called as frames are received.
  void mind_pool() { set_scarce(pool_.free_count() <= pool_.total() / 4 + kBurst); }
  static constexpr std::size_t kBurst = 64;

  /// Makes the buffers, and sets the capabilities that depend on them. False: `problem` says why.
  /// `automatic`: what BYPASS_HUGEPAGES=auto means here.
  bool prepare(const PortSpec& spec, const FrameLayout& layout, Hugepages automatic, std::string& problem);
  /// The same, for a port with a virtio header in front of each frame.
  bool prepare_virtio(const PortSpec& spec, std::string& problem);
  /// Takes the interface's MTU, or the one that was asked for if the interface allows it.
  bool choose_mtu(const PortSpec& spec, std::uint32_t of_interface, std::string& problem);
  /// Chooses the MAC address. On a shared interface it is the interface's own, and then flows can be steered. False:
  /// `problem` says why.
  bool choose_mac(const PortSpec& spec, const MacAddress& of_interface, std::string& problem);
  void set_link(bool up);
  /// Logs what is wrong with the interface with that name, when it is new. Empty: nothing is wrong. Only look() calls
  /// it.
  void say_of_link(const std::string& interface, const std::string& problem);
  [[nodiscard]] bool is_up() const { return link_.load(std::memory_order_acquire); }
  /// Drops frames that the interface does not take any more: they are lost, as on a wire.
  std::size_t drop(std::span<Packet* const> frames);
  /// Frames that the kernel had to drop since the last call. It is asked when `losing_` says that there are some.
  [[nodiscard]] virtual std::uint64_t lost_by_kernel() const { return 0; }

  FramePool pool_;
  Wakeup wakeup_;
  PortCaps caps_;
  MacAddress mac_;
  std::unique_ptr<SharedInterface> shared_;  // null: the port has a MAC address and IP addresses of its own

 private:
  std::atomic<bool> link_{false};
  bool armed_link_ = false;  // the value of link_ at the last arm()
  std::string said_of_link_;
};

}  // namespace bypass::packet
