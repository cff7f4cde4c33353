// RcDevice: makes RC links on an RDMA device's port. It has a context of its own: a port of frames on the same device
// (verbs:soft0) has another one, and neither needs the other.
//
// When the device is lost, its links fail. Once all of them are closed, the device's thread closes what is left and
// looks for the device with that name, every 10 ms to 1 s, until it is back. Then links are made again. Until then only
// the thread touches the context and what was made from it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/packet/wakeup.h"
#include "backends/verbs/rc/queue_pair.h"
#include "backends/verbs/rc/send_memory.h"
#include "backends/verbs/rc/setup.h"
#include "backends/verbs/rc/worker.h"
#include "fastpath/link/link_device.h"

namespace bypass::verbs {

class RcDevice final : public fastpath::LinkDevice, private RcTask {
 public:
  /// The most links and setups at a time, including those that are being closed.
  static constexpr std::size_t kMostLinks = 64;
  static_assert(kMostLinks <= RcWorker::kMost);

  /// `target`: NAME[:PORT]. Null: `problem` says what to change.
  static std::unique_ptr<RcDevice> open(const std::string& target, const fastpath::LinkDeviceSpec& spec,
                                        std::string& problem);
  RcDevice() = default;
  ~RcDevice() override;
  /// Gives calls that wait a thread of their own. Without the thread, they are made at once, as tests need it.
  bool start_thread(std::string& problem);

  [[nodiscard]] fastpath::Mover mover() const override { return fastpath::Mover::kRc; }
  bool add_memory(std::span<const std::byte> range, const char*& problem) override;
  void remove_memory(std::span<const std::byte> range) override;
  fastpath::LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer,
                               Instant now) override;
  fastpath::LinkSetup* answer(std::span<const std::byte> body, fastpath::Reason refusal, std::span<std::byte> memory,
                              const IpAddress& peer, Instant now) override;
  void close(fastpath::LinkSetup* setup) override;
  bool gone(std::span<const std::byte> memory) override;
  [[nodiscard]] int descriptor() const override { return wakeup_.descriptor(); }
  void attend() override;
  [[nodiscard]] bool lost() const override { return lost_; }

  [[nodiscard]] const RcContext& context() const { return context_; }
  /// Called in a forked child; async-signal-safe.
  void drop_in_child() const;

 private:
  bool open_all(std::string& problem);
  bool open_context(std::string& problem);
  bool look(std::string& problem);
  bool find_gid(int count, std::string& problem);
  bool prepare(std::string& problem);
  void close_all();
  void run() override;
  bool come_back(std::string& problem);
  void look_for_it();
  void serve_again();
  RcSetup* make_setup(std::span<std::byte> memory, const IpAddress& peer, Instant now);
  bool take_events();
  void handle(const ibv_async_event& event);
  void fail_all();
  void sweep();

  std::string target_, name_;
  fastpath::LinkDeviceSpec spec_;
  RcContext context_;
  SendMemory buffers_;
  packet::Wakeup wakeup_;
  RcWorker worker_{wakeup_};
  std::unique_ptr<RcSetup::Common> common_;
  std::vector<std::unique_ptr<RcSetup>> setups_, closing_;
  std::array<std::atomic<int>, 2> owned_{-1, -1};  // the library's own descriptors; a forked child reads them
  bool lost_ = false;
  // For a lost device. The ranges: links' writes may read from them once there are links again.
  std::vector<std::span<const std::byte>> ranges_;
  bool looking_ = false;  // the thread looks for the device
  std::atomic<bool> ending_{false};
  bool back_ = false;  // the thread sets it when it is done
};

}  // namespace bypass::verbs
