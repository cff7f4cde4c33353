// FakeDevice: an RDMA device that the test controls. It accepts, refuses and completes requests, fails, goes and comes
// back, each when the test says so. The verbs of the port under test end here.
//
// The device's thread of the port under test also calls it: while the port opens, and while the device is lost.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace bypass::verbs {

class FakeDevice {
 public:
  static constexpr const char* kName = "fake0";

  /// What the device can do. Set before the port is opened.
  struct Abilities {
    bool extended_queues = true;    // create_cq_ex
    bool extended_requests = true;  // ibv_wr_…
    bool extended_pair = true;      // create_qp_ex at all
    bool checksums = false;
    bool timestamps = false;
    std::uint32_t max_tso = 0;
    std::uint32_t inline_bytes = 0;
    std::uint8_t ports = 1;
    std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  };
  /// An errno for each call; 0: the call works.
  struct Errors {
    int list = 0, open = 0, register_memory = 0, create_cq = 0, create_qp = 0, modify_qp = 0, fork_init = 0,
        create_flow = 0;
  };
  /// A request to send, as the port posted it.
  struct Send {
    std::uint64_t id = 0;
    unsigned flags = 0;
    bool large = false;
    std::string headers;  // of a large one
    std::uint16_t mss = 0;
    std::vector<std::string> pieces;
    [[nodiscard]] bool is_signaled() const { return (flags & IBV_SEND_SIGNALED) != 0; }
    [[nodiscard]] std::string bytes() const;
  };

  FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;
  ~FakeDevice();

  /// Puts a frame from the wire into the oldest receive request. False: no request is posted.
  bool arrive(const std::string& frame, bool checksums_good = false, std::uint64_t time = 0);
  /// Sends the posted requests, and completes those that asked for a completion.
  void send_all();
  /// The queue pair fails: all posted requests are completed with an error.
  void fail();
  /// Reports an event.
  void report(ibv_event_type type) const;
  /// The kernel takes the device away, and gives it back.
  void disappear();
  void come_back();

  Abilities can;
  Errors errors;
  std::optional<std::size_t> refuse_send_after;  // so many requests; then EINVAL
  bool refuse_receives = false;
  bool names_refused = true;  // what the man pages promise: *bad_wr
  std::atomic<bool> carrier{true};
  std::uint64_t clock = 0;  // ticks
  bool soft = false;        // one of the software library's
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  std::string problem;    // what it says of an opening that fails
  std::uint32_t mtu = 0;  // the MTU of the device's wire; 0: the device does not tell it
  std::vector<std::string> sent;
  std::set<std::thread::id> flow_threads;  // that asked for rules

  [[nodiscard]] const std::deque<Send>& posted() const { return sends_; }
  [[nodiscard]] std::size_t sends() const { return sends_.size(); }
  [[nodiscard]] std::size_t receives() const { return receives_.size(); }
  /// Batches of requests to send.
  [[nodiscard]] std::size_t doorbells() const { return doorbells_; }
  /// Lists of receive requests.
  [[nodiscard]] std::size_t receive_lists() const { return receive_lists_; }
  /// Memory regions that were asked for.
  [[nodiscard]] int registrations() const { return registrations_.load(); }
  [[nodiscard]] int channel() const { return channel_.fd; }
  /// How often the list of devices was asked for.
  [[nodiscard]] int looks() const { return looks_.load(); }
  /// Steering rules.
  [[nodiscard]] int flows() const { return flows_.load(); }
  /// … of these, the rules that are gone.
  [[nodiscard]] int flows_made() const { return flows_made_.load(); }
  /// All objects that were made and not given back.
  [[nodiscard]] int alive() const { return alive_.load(); }
  /// The calls that a fork needs, and the opening, in the order in which they came.
  [[nodiscard]] const std::string& opening() const { return opening_; }
  [[nodiscard]] bool has_extended_queues() const {
    return !queues_.empty() && queues_.front().base.start_poll != nullptr;
  }

 private:
  friend struct FakeVerbs;
  struct Receive {
    std::uint64_t id;
    ibv_sge room;
  };
  struct Done {
    ibv_wc wc;
    std::uint64_t time;
  };
  struct Queue {
    ibv_cq_ex base{};  // the plain one is its beginning
    std::deque<Done> completions;
    Done current{};
    bool polling = false;
    bool armed = false;
  };

  static Queue& queue_of(ibv_cq_ex* cq) { return *reinterpret_cast<Queue*>(cq); }
  void complete(Queue& queue, std::uint64_t id, ibv_wc_status status, std::uint32_t bytes, bool checksums_good = false,
                std::uint64_t time = 0);
  int post(std::vector<Send> batch, std::size_t* taken);
  void reset();

  verbs_context context_{};
  ibv_device device_{};
  ibv_pd domain_{};
  ibv_mr memory_{};
  ibv_comp_channel channel_{};
  ibv_qp_ex pair_{};
  bool pair_is_extended_ = false;
  std::optional<std::vector<Send>> building_;  // between wr_start and wr_complete
  ibv_flow flow_{};
  std::list<Queue> queues_;  // received, sent
  std::deque<Send> sends_;
  std::deque<Receive> receives_;
  std::size_t doorbells_ = 0, receive_lists_ = 0;
  std::string opening_;
  std::atomic<bool> present_{true};
  std::atomic<int> looks_{0}, flows_{0}, flows_made_{0}, registrations_{0}, alive_{0};
  int async_[2] = {-1, -1};  // a pipe
};

}  // namespace bypass::verbs
