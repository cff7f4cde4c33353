// ManagementPort: queue pair 1 of a software device, by which the connection manager's messages go and come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  /// Sends at once if the wire has room, else later.
  void send(const IpAddress& from, const IpAddress& to, const cm::Mad& mad);
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

  explicit ManagementPort(Adapter& adapter, std::size_t index) : adapter_(adapter), index_(index) {}
  int make_queue_pair(Adapter::Turn& turn, int wake_fd);
  void post(Adapter::Turn& turn, std::size_t buffer);

  Adapter& adapter_;
  const std::size_t index_;
  std::vector<Buffer> buffers_{kReceives};
  rdma::Pd* pd_ = nullptr;
  rdma::Mr* mr_ = nullptr;
  rdma::Cq* send_cq_ = nullptr;
  rdma::Cq* receive_cq_ = nullptr;
  rdma::Qp* qp_ = nullptr;
};

}  // namespace bypass::softverbs
