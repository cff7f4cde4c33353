// VerbsPort: frames through a raw-packet queue pair (verbs:DEVICE[:PORT]).
//
// Receive requests are posted in lists, send requests in one list a batch of which the last alone asks for a
// completion; small frames are copied into the request. Frames lie in memory that is registered once.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/packet/frame_port.h"
#include "backends/verbs/device.h"
#include "backends/verbs/kernel_side.h"

namespace bypass::verbs {

class VerbsPort final : public packet::FramePort, private DeviceEvents {
 public:
  VerbsPort();
  ~VerbsPort() override;
  /// Null: `problem` says why.
  static std::unique_ptr<VerbsPort> open(const PortSpec& spec, std::string& problem);

  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  bool arm(std::uint16_t queue) override;
  void disarm(std::uint16_t queue) override;
  bool steer(const FlowSpec& flow, bool add) override;
  void look() override {}  // the device's own thread tells
  void drop_in_child() const { device_.drop_in_child(); }

 private:
  struct Requests;

  bool set_up(const PortSpec& spec, std::string& problem);
  [[nodiscard]] MacAddress own_mac(const PortSpec& spec) const;
  bool choose_frames(const PortSpec& spec, std::string& problem);
  void refill();
  void reap();
  bool kernel_is_due();
  std::size_t transmit(std::span<Packet* const> frames);
  std::size_t post(std::span<Packet* const> frames);
  Packet* finish(const ibv_wc& completion);
  void repair();
  void forget_posted();

  void on_link(bool up) override { set_link(up); }
  void on_queue_failure() override;
  void on_device_lost() override;

  static constexpr std::uint32_t kDepth = 2048;

  std::vector<Packet*> waiting_;  // a ring: frames whose sending has not been confirmed, the oldest at sent_
  std::uint64_t posted_sends_ = 0, sent_ = 0;
  std::vector<Packet*> receiving_;  // by request
  std::vector<std::uint32_t> free_requests_;
  std::unique_ptr<Requests> requests_;
  std::atomic<bool> failed_{false};
  bool lost_ = false;
  KernelSide kernel_;  // of an interface that is shared with it
  std::uint32_t looks_ = 0, kernel_looks_ = 0;
  Device device_{*this};
};

}  // namespace bypass::verbs
