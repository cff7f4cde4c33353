// RcDevice: an RDMA device's port as a maker of RC links. Its context is its own: a port of frames on the same device
// (verbs:soft0) has another, and neither needs the other.
//
// A device that is lost fails its links. Once all of them are closed, its thread closes what is left and looks for the
// device of that name until it is back, 10 ms to 1 s apart; then links are made again. Until then nothing but the
// thread touches the context and what was made of it.
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
  // Of one that is lost
  std::vector<std::span<const std::byte>> ranges_;  // that links' writes may point to, once there are links again
  bool looking_ = false;                            // the thread looks for it
  std::atomic<bool> ending_{false};
  bool back_ = false;  // the thread's word, once it has done
};

}  // namespace bypass::verbs
