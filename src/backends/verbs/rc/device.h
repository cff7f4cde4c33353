// RcDevice: an RDMA device's port as a maker of RC links. Its context is its own: a port of frames on the same device
// (verbs:soft0) has another, and neither needs the other.
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
#include "fastpath/link_device.h"

namespace bypass::verbs {

class RcDevice final : public fastpath::LinkDevice {
 public:
  /// Links and setups at a time, those that are being closed among them.
  static constexpr std::size_t kMostLinks = 64;
  static_assert(kMostLinks <= RcWorker::kMost);

  /// `target`: NAME[:PORT]. Null: `problem` says what to change.
  static std::unique_ptr<RcDevice> open(const std::string& target, const fastpath::LinkDeviceSpec& spec,
                                        std::string& problem);
  RcDevice() = default;
  ~RcDevice() override;
  /// Calls that wait get a thread of their own. Without, they are made at once: for tests.
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
  /// A forked child: async-signal-safe.
  void drop_in_child() const;

 private:
  bool open_context(const std::string& target, std::string& problem);
  bool look(const IpAddress& address, std::string& problem);
  bool find_gid(const IpAddress& address, int count, std::string& problem);
  bool prepare(const fastpath::LinkDeviceSpec& spec, std::string& problem);
  RcSetup* make_setup(std::span<std::byte> memory, const IpAddress& peer, Instant now);
  bool take_events();
  void handle(const ibv_async_event& event);
  void fail_all();
  void sweep();

  std::string name_;
  RcContext context_;
  SendMemory buffers_;
  packet::Wakeup wakeup_;
  RcWorker worker_{wakeup_};
  std::unique_ptr<RcSetup::Common> common_;
  std::vector<std::unique_ptr<RcSetup>> setups_, closing_;
  std::array<std::atomic<int>, 2> owned_{-1, -1};  // the library's own descriptors; a forked child reads them
  bool lost_ = false;
};

}  // namespace bypass::verbs
