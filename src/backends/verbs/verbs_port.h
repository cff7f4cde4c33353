// VerbsPort: frames through a raw-packet queue pair (verbs:DEVICE[:PORT]).
//
// Receive requests are posted in lists; send_queue.h tells how frames are sent. Frames lie in memory that is registered
// once. The queues of a lost device belong to the device's thread until the device is back (device_watch.h). Meanwhile
// the link is down.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/packet/flows/flow_guard.h"
#include "backends/packet/frame_port.h"
#include "backends/verbs/device.h"
#include "backends/verbs/device_watch.h"
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
  void look() override {}  // the device's own thread tells changes
  /// See Backend::keep_flows().
  bool keep_flows(const Handover& handover, std::string& problem);
  void drop_in_child() const { device_.drop_in_child(); }

 private:
  struct Requests;

  bool set_up(const PortSpec& spec, std::string& problem);
  [[nodiscard]] MacAddress own_mac(const PortSpec& spec) const;
  bool choose_frames(const PortSpec& spec, std::string& problem);
  void begin();
  void refill();
  void count_lost();
  void reap();
  std::size_t take(std::span<Packet*> out);
  bool kernel_is_due();
  std::size_t transmit(std::span<Packet* const> frames);
  [[nodiscard]] std::uint64_t room() const { return depth_ - (posted_sends_ - sent_); }
  std::size_t post(std::span<Packet* const> frames);
  Packet* finish(const Completion& completion);
  void stamp(Packet& frame, std::uint64_t ticks);
  void forget_posted();
  void fail();
  void attend();
  void repair();
  void follow_interface();
  bool keep_flows_again(std::string& problem);
  void leave();
  void resume();

  void on_link(bool up) override { set_link(up); }
  void on_queue_failure() override;
  void on_stage() override;
  bool can_come_back(std::string& problem) override;

  static constexpr std::uint32_t kDepth = 2048;

  std::uint64_t depth_ = 0;
  // a ring whose size is a power of two: frames that are being sent, the oldest at sent_
  std::vector<Packet*> waiting_;
  std::uint64_t posted_sends_ = 0, sent_ = 0;
  std::vector<Packet*> receiving_;  // by the request's number
  std::vector<std::uint32_t> free_requests_;
  std::unique_ptr<Requests> requests_;
  bool serves_ = true;                // the device's queues are the data path's
  std::atomic<bool> failed_{false};   // the queue pair takes nothing any more
  std::atomic<bool> trouble_{false};  // receive() has to look at failed_ or at the watch's stage
  KernelSide kernel_;                 // of the interface, if it is shared with the kernel
  std::string interface_;             // the name of that interface
  std::string follow_problem_;        // the problem logged last, when the interface was made anew
  Handover handover_;                 // the family's
  packet::FlowGuard guard_;           // … a guard over this port's flows
  std::uint32_t looks_ = 0, kernel_looks_ = 0;
  std::uint64_t lost_ = 0;  // frames that the device has lost, as counted up to now
  Device device_;
  DeviceWatch watch_{device_, *this};
};

}  // namespace bypass::verbs
