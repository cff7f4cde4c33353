// Device: an RDMA device's port with a raw-packet queue pair on it, and what belongs to that: protection domain,
// registered memory, completion queues, steering rules.
//
// Its thread sleeps until the device tells of an asynchronous event (link up and down, a queue pair that failed, the
// device's loss).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/packet/descriptor.h"
#include "backends/verbs/flow_rules.h"
#include "backends/verbs/verbs.h"
#include "stack/address.h"

namespace bypass::verbs {

/// Whom a Device tells. On its thread.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  virtual void on_link(bool up) = 0;
  /// The queue pair takes no more requests; Device::restart() makes it usable again.
  virtual void on_queue_failure() = 0;
  virtual void on_device_lost() = 0;
};

class Device {
 public:
  /// Buffers of one frame: 64 KiB in pieces of 8.
  static constexpr std::uint32_t kMostSegments = 10;
  /// Ethernet, IPv4 and TCP with all their options.
  static constexpr std::uint16_t kTsoHeaders = 14 + 60 + 60;

  explicit Device(DeviceEvents& events) : events_(events) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { close(); }

  /// `target`: NAME[:PORT]. False: `problem` says what to change.
  bool open(const std::string& target, std::string& problem);
  /// Ends the thread and gives everything back.
  void close();
  /// Queues of at most so many requests, over this memory. False: `problem`.
  bool make_queues(std::span<std::byte> memory, std::uint32_t depth, std::string& problem);
  /// Frames to that address and broadcasts come here. False: `problem`.
  bool steer(const MacAddress& mac, std::string& problem);
  /// Of an interface that the kernel keeps, this flow to that address comes here, or no longer.
  bool steer(const MacAddress& mac, const FlowSpec& flow, bool add);
  /// Has the thread look at the link, and then listen.
  bool watch(std::string& problem);
  /// After a failure: the queue pair as it was at first; all that was posted is forgotten, and what had been completed,
  /// too. Under the shard's lock. False: what was posted may still be the device's.
  bool restart();

  [[nodiscard]] MacAddress mac() const { return mac_; }
  /// The kernel has a network interface on it.
  [[nodiscard]] bool has_interface() const;
  /// Bytes of the largest IP packet that fits on its wire; 0: it does not say.
  [[nodiscard]] std::uint32_t mtu() const { return verbs_->wire_mtu != nullptr ? verbs_->wire_mtu(context_) : 0; }
  [[nodiscard]] bool checksums() const { return checksums_; }
  /// Payload bytes of a large segment that the device cuts; 0: it cuts none.
  [[nodiscard]] std::uint32_t tso_bytes() const { return tso_bytes_; }
  [[nodiscard]] std::uint32_t depth() const { return depth_; }
  [[nodiscard]] std::uint32_t inline_bytes() const { return inline_bytes_; }
  [[nodiscard]] std::uint32_t key() const { return memory_->lkey; }
  [[nodiscard]] ibv_qp* queue() const { return queue_; }
  [[nodiscard]] ibv_cq* received() const { return received_; }
  [[nodiscard]] ibv_cq* sent() const { return sent_; }
  [[nodiscard]] int wait_descriptor() const { return channel_->fd; }

  /// The next received frame's completion makes wait_descriptor() readable. What lay there is fetched.
  void arm();
  void fetch();

  /// The wire below a software device is there and lets this process not in; the link is down then.
  [[nodiscard]] bool is_forbidden() const;

  /// A forked child: the parent's wire is not its own.
  void drop_in_child() const;

 private:
  bool find(const std::string& name, std::string& problem);
  bool look(std::string& problem);
  bool make_queue_pair(std::string& problem);
  bool enter_service(std::string& problem);
  bool add_rule(const MacAddress& destination, std::string& problem);
  void discard_completions() const;
  void own_descriptors(bool own) const;
  static void run(void* self);
  bool take_events();
  void handle(const ibv_async_event& event);
  void tell_loss();

  DeviceEvents& events_;
  const Verbs* verbs_ = nullptr;
  std::string name_;
  std::uint8_t number_ = 1;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* memory_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* received_ = nullptr;
  ibv_cq* sent_ = nullptr;
  ibv_qp* queue_ = nullptr;
  std::vector<ibv_flow*> rules_;
  FlowRules flows_;
  unsigned refused_ = 0;  // flows
  MacAddress mac_;
  bool checksums_ = false;
  bool armed_ = false;
  std::uint32_t depth_ = 0, inline_bytes_ = 0, tso_bytes_ = 0;
  packet::Descriptor stop_;
  std::uint64_t thread_ = 0;
};

}  // namespace bypass::verbs
