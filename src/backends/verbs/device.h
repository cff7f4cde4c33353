// Device: an RDMA device's port with a raw-packet queue pair on it, and what belongs to that: protection domain,
// registered memory, completion queues, steering rules. All of it can be given back and made anew.
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
  /// Ethernet, IPv4 and TCP with all their options.
  static constexpr std::uint16_t kTsoHeaders = 14 + 60 + 60;

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { close(); }

  /// `target`: NAME[:PORT]. False: `problem` says what to change.
  bool open(const std::string& target, std::string& problem);
  /// Queues of at most so many requests, over this memory. False: `problem`.
  bool make_queues(std::span<std::byte> memory, std::uint32_t depth, std::string& problem);
  /// Frames to that address and broadcasts come here. False: `problem`.
  bool steer(const MacAddress& mac, std::string& problem);
  /// Of an interface that the kernel keeps, the flows to that address come here that steer() asks for, by the next
  /// call.
  void steer_flows(const MacAddress& mac);
  /// This flow comes here, or no longer. Also while the device is lost: then once it is back. Under the shard's lock.
  bool steer(const FlowSpec& flow, bool add);
  /// What is steered here, or will be once the device is back.
  [[nodiscard]] std::vector<FlowSpec> flows() const { return flows_.steered(); }
  [[nodiscard]] bool is_steered(const FlowSpec& flow) const { return flows_.is_steered(flow); }
  /// It is asked for no flow any more until remake().
  void suspend_flows() { flows_.suspend(); }
  /// Gives everything back; nothing is written into the memory any more.
  void close();
  /// After close(): everything as open(), make_queues() and steer() were asked for it. False: `problem`, and nothing of
  /// it is there.
  bool remake(std::string& problem);
  /// Flows that remake() has not been given back since this was last asked.
  [[nodiscard]] std::size_t take_lost_flows() { return std::exchange(lost_flows_, 0U); }

  /// After a failure: the queue pair as it was at first; all that was posted is forgotten, and what had been completed,
  /// too. Under the shard's lock. False (and the reason has been said): what was posted may still be the device's.
  bool restart();

  [[nodiscard]] MacAddress mac() const { return mac_; }
  [[nodiscard]] std::uint8_t number() const { return number_; }
  /// The kernel has a network interface on it.
  [[nodiscard]] bool has_interface() const;
  /// Bytes of the largest IP packet that fits on its wire; 0: it does not say.
  [[nodiscard]] std::uint32_t mtu() const { return verbs_->wire_mtu != nullptr ? verbs_->wire_mtu(context_) : 0; }
  /// Frames that have come for it and were lost, since it was made; 0: it does not say.
  [[nodiscard]] std::uint64_t lost() const { return verbs_->lost != nullptr ? verbs_->lost(context_) : 0; }
  [[nodiscard]] bool checksums() const { return can_.checksums; }
  /// Payload bytes of a large segment that the device cuts; 0: it cuts none.
  [[nodiscard]] std::uint32_t tso_bytes() const { return can_.tso_bytes; }
  [[nodiscard]] std::uint32_t depth() const { return depth_; }
  [[nodiscard]] std::uint32_t key() const { return memory_->lkey; }
  [[nodiscard]] ibv_qp* queue() const { return queue_; }
  [[nodiscard]] SendQueue& sender() { return sender_; }
  [[nodiscard]] CompletionQueue& received() { return received_; }
  [[nodiscard]] CompletionQueue& sent() { return sent_; }
  /// Of received frames, whose completions have time stamps if received().is_timed().
  [[nodiscard]] DeviceClock& clock() { return clock_; }
  [[nodiscard]] int wait_descriptor() const { return channel_->fd; }

  /// The next received frame's completion makes wait_descriptor() readable. What lay there is fetched.
  void arm();
  void fetch();

  // --- Asynchronous events
  [[nodiscard]] bool has_link() const;
  [[nodiscard]] int event_descriptor() const { return context_->async_fd; }
  /// False: there is none (errno is EAGAIN), or there will be none any more.
  bool next_event(ibv_async_event& out) const { return verbs_->get_async_event(context_, &out) == 0; }
  void acknowledge(ibv_async_event& event) const { verbs_->ack_async_event(&event); }
  void log(LogLevel level, const std::string& text) const;

  /// The wire below a software device is there and lets this process not in; the link is down then.
  [[nodiscard]] bool is_forbidden() const;

  /// A forked child: the parent's wire is not its own.
  void drop_in_child() const;

 private:
  /// What the stack has been told of.
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
  FlowRules flows_;             // both threads'
  unsigned refused_ = 0;        // flows
  std::size_t lost_flows_ = 0;  // by remake()
  MacAddress mac_;
  Abilities can_;
  DeviceClock clock_;
  bool timed_ = false;
  std::uint32_t depth_ = 0;
  // As they were asked for
  std::span<std::byte> frames_;
  std::uint32_t wanted_depth_ = 0;
  std::optional<MacAddress> all_of_;                   // whose frames come here; nothing: flows alone …
  MacAddress flows_of_;                                // … to this one
  std::array<std::atomic<int>, 3> owned_{-1, -1, -1};  // the library's own descriptors; a forked child reads them
};

}  // namespace bypass::verbs
