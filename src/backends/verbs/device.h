// Device: an RDMA device's port with a raw-packet queue pair. It has what belongs to that: protection domain,
// registered memory, completion queues, steering rules. Everything can be given back and made anew.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/verbs/completion_queue.h"
#include "backends/verbs/device_clock.h"
#include "backends/verbs/flow_rules.h"
#include "backends/verbs/send_queue.h"
#include "backends/verbs/verbs.h"
#include "stack/address.h"

namespace bypass::verbs {

class Device {
 public:
  /// The longest headers: Ethernet, and IPv4 and TCP with all their options.
  static constexpr std::uint16_t kTsoHeaders = 14 + 60 + 60;

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { close(); }

  /// `target`: NAME[:PORT]. False: `problem` says what to change.
  bool open(const std::string& target, std::string& problem);
  /// Makes queues of at most so many requests, over this memory. False: `problem` says why.
  bool make_queues(std::span<std::byte> memory, std::uint32_t depth, std::string& problem);
  /// Steers frames to that address and broadcasts here. False: `problem` says why.
  bool steer(const MacAddress& mac, std::string& problem);
  /// On an interface that the kernel keeps, only flows come here: those to that MAC address that the next function asks
  /// for.
  void steer_flows(const MacAddress& mac);
  /// Starts or stops steering this flow here. While the device is lost, it is done once the device is back. Called
  /// under the shard's lock.
  bool steer(const FlowSpec& flow, bool add);
  /// The flows that are steered here, or will be once the device is back.
  [[nodiscard]] std::vector<FlowSpec> flows() const { return flows_.steered(); }
  [[nodiscard]] bool is_steered(const FlowSpec& flow) const { return flows_.is_steered(flow); }
  /// Asks the device for no flow any more, until remake().
  void suspend_flows() { flows_.suspend(); }
  /// Gives everything back. Nothing is written into the memory any more.
  void close();
  /// Called after close(): makes everything again that open(), make_queues() and steer() were asked for. False:
  /// `problem` says why, and nothing is left.
  bool remake(std::string& problem);
  /// How many flows the device refused to give back to remake(), since the last call.
  [[nodiscard]] std::size_t take_lost_flows() { return std::exchange(lost_flows_, 0U); }

  /// Called after a failure: makes the queue pair as it was at first. What was posted, and what had been completed, is
  /// forgotten. Called under the shard's lock. False: what was posted may still be the device's; the reason has been
  /// logged.
  bool restart();

  [[nodiscard]] MacAddress mac() const { return mac_; }
  [[nodiscard]] std::uint8_t number() const { return number_; }
  /// Whether the kernel has a network interface on the device's port.
  [[nodiscard]] bool has_interface() const;
  /// Bytes of the largest IP packet that fits on the device's wire; 0: the device does not say.
  [[nodiscard]] std::uint32_t mtu() const { return verbs_->wire_mtu != nullptr ? verbs_->wire_mtu(context_) : 0; }
  /// How many frames for this device were lost since it was made; 0: the device does not say.
  [[nodiscard]] std::uint64_t lost() const { return verbs_->lost != nullptr ? verbs_->lost(context_) : 0; }
  [[nodiscard]] bool checksums() const { return can_.checksums; }
  /// The most payload bytes of a large segment that the device cuts; 0: it cuts none.
  [[nodiscard]] std::uint32_t tso_bytes() const { return can_.tso_bytes; }
  [[nodiscard]] std::uint32_t depth() const { return depth_; }
  [[nodiscard]] std::uint32_t key() const { return memory_->lkey; }
  [[nodiscard]] ibv_qp* queue() const { return queue_; }
  [[nodiscard]] SendQueue& sender() { return sender_; }
  [[nodiscard]] CompletionQueue& received() { return received_; }
  [[nodiscard]] CompletionQueue& sent() { return sent_; }
  /// The clock of received frames. Their completions have time stamps if received().is_timed().
  [[nodiscard]] DeviceClock& clock() { return clock_; }
  [[nodiscard]] int wait_descriptor() const { return channel_->fd; }

  /// Makes wait_descriptor() readable when the next received frame completes. It fetches what lay there.
  void arm();
  void fetch();

  // --- Asynchronous events
  [[nodiscard]] bool has_link() const;
  [[nodiscard]] int event_descriptor() const { return context_->async_fd; }
  /// False: no event waits (errno is EAGAIN), or no event will come any more.
  bool next_event(ibv_async_event& out) const { return verbs_->get_async_event(context_, &out) == 0; }
  void acknowledge(ibv_async_event& event) const { verbs_->ack_async_event(&event); }
  void log(LogLevel level, const std::string& text) const;

  /// The wire below a software device is there and does not let this process in. The link is down then.
  [[nodiscard]] bool is_forbidden() const;

  /// Called in a forked child: the parent's wire is not its own.
  void drop_in_child() const;

 private:
  /// The abilities of the device that the stack has been told of.
  struct Abilities {
    bool checksums = false;
    std::uint32_t tso_bytes = 0;
    [[nodiscard]] bool include(const Abilities& others) const {
      return checksums >= others.checksums && tso_bytes >= others.tso_bytes;
    }
  };

  bool find(std::string& problem);
  bool look(std::string& problem);
  void note_abilities(const ibv_device_attr_ex& device);
  bool make_completion_queues(std::string& problem);
  bool make_queue_pair(std::string& problem);
  ibv_qp* create_queue_pair(ibv_qp_cap& cap);
  bool enter_service(std::string& problem);
  bool steer_again(std::string& problem);
  bool add_rule(const MacAddress& destination, std::string& problem);
  void discard_completions();
  void own_descriptor(std::size_t which, int fd);
  void disown_descriptors();

  const Verbs* verbs_ = nullptr;
  std::string name_;
  std::uint8_t number_ = 1;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* memory_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  CompletionQueue received_, sent_;
  ibv_qp* queue_ = nullptr;
  SendQueue sender_;
  std::vector<ibv_flow*> rules_;
  FlowRules flows_;             // both threads use it
  unsigned refused_ = 0;        // flows that the device refused
  std::size_t lost_flows_ = 0;  // flows that remake() did not get back
  MacAddress mac_;
  Abilities can_;
  DeviceClock clock_;
  bool timed_ = false;
  std::uint32_t depth_ = 0;
  // What was asked for
  std::span<std::byte> frames_;
  std::uint32_t wanted_depth_ = 0;
  std::optional<MacAddress> all_of_;  // the address whose frames all come here; nothing: only flows come …
  MacAddress flows_of_;               // … to this address
  std::array<std::atomic<int>, 3> owned_{-1, -1, -1};  // the library's own descriptors; a forked child reads them
};

}  // namespace bypass::verbs
