// RcSetup: makes an RC link (link_device.h has the exchange), and holds it afterwards.
//
//   asks      kMaking ──► kAsked ──LINK_ACC──► kConnecting ──► kPinging ──pong──► kUp (LINK_READY)
//   answers   kMaking, connecting at once ──► kAnswered (LINK_ACC) ──ping──► kPonged ──LINK_READY──► kUp
//
// The proof: each end writes into the other's memory the number that the other has chosen, with a message. So the paths
// in both directions, both keys and both addresses have been used before a lane needs them.
#pragma once

#include <cstdint>
#include <span>

#include "backends/verbs/rc/link.h"
#include "backends/verbs/rc/worker.h"
#include "fastpath/setup/rc_record.h"
#include "fastpath/setup/setup_steps.h"

namespace bypass::verbs {

class RcSetup final : public fastpath::SetupSteps, private RcTask {
 public:
  /// The time from the first message to the link. It is longer than a worker may need to find the peer's address.
  static constexpr Duration kLimit = std::chrono::seconds{5};

  struct Common {
    const RcContext& context;
    const SendMemory& buffers;
    RcWorker& worker;
    std::uint16_t window;
    std::uint64_t (*random)();  // returns 0 when there are no random numbers
  };

  RcSetup(const Common& common, std::span<std::byte> memory, const IpAddress& peer, Instant now);
  ~RcSetup() override = default;
  void request(std::uint32_t id);
  void answer(std::span<const std::byte> body, fastpath::Reason refusal);

  bool next_record(fastpath::Record& record, std::span<std::byte> body) override;
  void poll(Instant now) override;
  [[nodiscard]] int wait_descriptor() const override;
  [[nodiscard]] fastpath::Link& link() override { return link_; }
  [[nodiscard]] std::uint32_t window() const override { return remote_.window; }
  [[nodiscard]] std::uint64_t peer_memory() const override { return remote_.size; }
  void give_up() override { link_.give_up(); }

  // --- For the device
  /// The link's queues; null while the worker has them.
  [[nodiscard]] const ibv_qp* pair() const { return done() ? link_.pair().pair() : nullptr; }
  [[nodiscard]] const ibv_cq* completions() const { return done() ? link_.pair().completions() : nullptr; }
  /// `silent`: no completion will come any more.
  void on_device_failure(bool silent);
  /// Ends the setup: it does and says nothing more, and gives back what it has.
  void close();
  /// Called after close(): whether everything has been given back.
  [[nodiscard]] bool closed();
  [[nodiscard]] std::span<const std::byte> memory() const { return link_.memory(); }

 private:
  enum class Work : std::uint8_t { kMake, kConnect, kMakeAndConnect, kDestroy };

  void run() override;
  [[nodiscard]] fastpath::Reason work();
  [[nodiscard]] fastpath::Reason make();
  [[nodiscard]] fastpath::Reason connect();
  void start(Work work);
  void after_work();
  void on_accepted(std::span<const std::byte> body) override;
  void send_proof(fastpath::Op op) override;
  [[nodiscard]] std::uint64_t own_proof() const override { return local_.nonce; }
  [[nodiscard]] bool is_connected() const { return step_ >= Step::kPinging && step_ < Step::kUp; }

  const Common& common_;
  RcLink link_;
  const IpAddress peer_;
  fastpath::RcEnd local_, remote_;
  // Only the worker uses these while it is busy
  Work work_ = Work::kMake;
  fastpath::Reason outcome_ = fastpath::Reason::kNone;
};

}  // namespace bypass::verbs
