// Device: one DPDK ethdev from hotplug to removal. All calls on the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/dpdk/card/card_memory.h"
#include "stack/frame/port.h"
#include "stack/time.h"

struct rte_eth_dev_info;
struct rte_mempool;

namespace bypass::dpdk {

struct CardBinding;

/// How a kind of port is opened.
struct DeviceSpec {
  std::string bus = "vdev";  // "vdev" or "pci"
  std::string name;          // of the device: net_vhost0, 0000:01:00.0
  std::string arguments;
  std::uint16_t descriptors = 256;  // of each queue; what the driver cannot take is rounded to what it can
  std::uint32_t mtu = 0;            // 0: leave the driver's
  std::uint32_t data_room = 2048;   // bytes of a buffer for a frame to send
  bool interrupts = true;           // ask for receive interrupts
  MacAddress mac;                   // zero: the device's own. vhost and virtio have theirs in `arguments`
  // The peers of vhost and virtio-user copy in and out of shared memory: frames longer than the MTU pass
  // whole, and checksums that were never written are vouched for.
  bool shared_memory = false;
  bool virtio_user = false;
};

/// The kernel's wish to have a card back. DPDK's interrupt thread writes it.
struct CardRequest {
  std::atomic<bool> made{false};
  void (*call)(void*) = nullptr;
  void* argument = nullptr;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { close(); }

  /// on_event is called from DPDK's threads whenever the link may have changed, and when the kernel wants a card back.
  bool open(const DeviceSpec& spec, rte_mempool* pool, void (*on_event)(void*), void* argument, std::string& problem);
  void close();

  [[nodiscard]] bool is_open() const { return id_ != kNone; }
  [[nodiscard]] std::uint16_t id() const { return id_; }
  [[nodiscard]] bool is_card() const { return spec_.bus == "pci"; }
  /// The card is being taken from this process, or has been: on vfio the kernel waits until close(). One readlink(2).
  [[nodiscard]] bool is_leaving() const;
  /// The kernel's driver that the card was opened through.
  [[nodiscard]] const std::string& kernel_driver() const { return kernel_driver_; }
  [[nodiscard]] bool link_is_up() const;
  /// vhost: whether the peer has posted receive buffers.
  [[nodiscard]] bool peer_takes_frames() const;
  /// What the device can do now: with vhost and virtio it depends on the peer.
  [[nodiscard]] PortCaps capabilities() const;
  [[nodiscard]] MacAddress mac() const;
  /// Received frames that the device has dropped: for want of room in its queue, or as damaged or too long.
  [[nodiscard]] std::uint64_t dropped_by_device() const;
  /// The descriptor that tells of received frames, or -1; edge-triggered, never drained by anybody.
  [[nodiscard]] int interrupt_descriptor() const { return interrupt_fd_; }
  /// Whether rte_eth_dev_rx_intr_enable/disable are to be called around a sleep.
  [[nodiscard]] bool has_interrupt_switch() const { return has_interrupt_switch_; }
  /// As DPDK names it; empty: not known.
  [[nodiscard]] std::string driver() const;

 private:
  static constexpr std::uint16_t kNone = 0xffff;

  template <typename Call>
  int ask(Call call);
  void stop_and_close();
  void close_virtio_user();
  bool bring_up(rte_mempool* pool, std::string& problem);
  bool configure(std::string& problem);
  bool refuse_mtu(const rte_eth_dev_info& info, std::uint16_t most, std::string& problem) const;
  bool set_up_queues(rte_mempool* pool, std::string& problem);
  void heed_rules(const CardBinding& binding);
  bool take_mac(std::string& problem);
  void find_interrupt_descriptor();
  void follow_requests(void (*on_event)(void*), void* argument);
  void unfollow_requests();
  void guard_registers(bool on);
  bool fail(const char* step, int error, std::string& problem);

  DeviceSpec spec_;
  std::uint16_t id_ = kNone;
  bool plugged_ = false;
  Instant patience_end_ = kNever;  // of opening
  bool is_stuck_ = false;          // the driver has been left in the middle of a call
  int interrupt_fd_ = -1;
  bool has_interrupt_switch_ = false;
  bool lro_ = false;                 // asked for
  std::uint16_t most_segments_ = 0;  // of one frame to send
  std::string kernel_driver_;        // that the card was opened through
  CardRequest request_;
  std::vector<MappedRegisters> registers_;     // a fault there is the host's to answer
  std::pair<void (*)(void*), void*> event_{};  // function and argument, handed to DPDK by address
};

}  // namespace bypass::dpdk
