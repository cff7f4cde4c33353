// FakeDevice: an RDMA device that the test plays: it takes, refuses and completes requests as it is told, and fails
// when it is told. The verbs of the port under test end here.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace bypass::verbs {

class FakeDevice {
 public:
  static constexpr const char* kName = "fake0";

  FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;
  ~FakeDevice();

  /// A frame from the wire, into the oldest receive request. False: there is none.
  bool arrive(const std::string& frame);
  /// What was posted is sent; those that asked for it are completed.
  void send_all();
  /// The queue pair fails: all that was posted is completed with an error.
  void fail();
  /// The kernel has taken the device away.
  void disappear();

  std::optional<std::size_t> refuse_send_after;  // so many requests; then EINVAL
  bool refuse_modify = false;                    // EIO
  bool carrier = true;
  std::uint32_t mtu = 0;  // of its wire; 0: it says nothing of it
  std::vector<std::string> sent;

  [[nodiscard]] std::size_t sends() const { return sends_.size(); }
  [[nodiscard]] std::size_t receives() const { return receives_.size(); }
  [[nodiscard]] int channel() const { return channel_.fd; }

 private:
  friend struct FakeVerbs;
  struct Send {
    std::uint64_t id;
    bool signaled;
    std::string bytes;
  };
  struct Receive {
    std::uint64_t id;
    ibv_sge room;
  };
  struct Queue {
    ibv_cq base{};
    std::deque<ibv_wc> completions;
    bool armed = false;
  };

  void complete(Queue& queue, std::uint64_t id, ibv_wc_status status, std::uint32_t bytes);
  void reset();

  verbs_context context_{};
  ibv_device device_{};
  ibv_pd domain_{};
  ibv_mr memory_{};
  ibv_comp_channel channel_{};
  ibv_qp pair_{};
  ibv_flow flow_{};
  std::deque<Queue> queues_;  // received, sent
  std::deque<Send> sends_;
  std::deque<Receive> receives_;
  int async_[2] = {-1, -1};  // a pipe
};

}  // namespace bypass::verbs
