// ManagementPort: queue pair 1 of a software device, by which the connection manager's messages go and come.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "softverbs/abi/adapter/adapter.h"
#include "softverbs/cm/mad.h"
#include "softverbs/cm/manager.h"

namespace bypass::softverbs {

class ManagementPort {
 public:
  struct Received {
    IpAddress from, to;
    cm::Mad mad;
  };

  /// Opens the device. `wake_fd` (eventfd(2)) is written to when messages have come. Null: the reason was reported. A
  /// port lives until the process ends, as a kernel's connection manager does.
  static std::unique_ptr<ManagementPort> open(std::size_t index, int wake_fd);

  [[nodiscard]] cm::DeviceInfo describe();
  /// Sends at once if the wire has room, else later. A message to a peer whose MAC is not known waits for it beside
  /// the others: a sender that is not there holds up no answer to somebody else.
  void send(const IpAddress& from, const IpAddress& to, const cm::Mad& mad);
  /// Whether messages wait for a MAC. Then send_waiting() is to be called every kLook.
  [[nodiscard]] bool waits() const { return !waiting_.empty(); }
  void send_waiting();
  static constexpr Duration kLook = std::chrono::milliseconds(5);
  cm::Neighbour resolve(const IpAddress& address);
  /// Appends what has come.
  void receive(std::vector<Received>& out);
  /// True once after the other end of a wire in memory has gone.
  bool take_peer_lost();

 private:
  static constexpr std::size_t kGrh = 40, kReceives = 256, kSends = 256;
  struct Buffer {
    std::array<std::byte, kGrh> grh;
    cm::Mad mad;
  };

  struct Waiting {
    IpAddress from, to;
    cm::Mad mad;
    Instant until;
  };
  static constexpr std::size_t kMostWaiting = 256;  // of more, the oldest are lost

  explicit ManagementPort(Adapter& adapter, std::size_t index) : adapter_(adapter), index_(index) {}
  int make_queue_pair(Adapter::Turn& turn, int wake_fd);
  void post(Adapter::Turn& turn, std::size_t buffer);
  rdma::Resolution look_for(Adapter::Turn& turn, const IpAddress& address);
  void send_now(Adapter::Turn& turn, const IpAddress& from, const IpAddress& to, const cm::Mad& mad);

  Adapter& adapter_;
  const std::size_t index_;
  std::vector<Buffer> buffers_{kReceives};
  std::deque<Waiting> waiting_;
  rdma::Pd* pd_ = nullptr;
  rdma::Mr* mr_ = nullptr;
  rdma::Cq* send_cq_ = nullptr;
  rdma::Cq* receive_cq_ = nullptr;
  rdma::Qp* qp_ = nullptr;
};

}  // namespace bypass::softverbs
