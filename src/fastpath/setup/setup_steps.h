// SetupSteps: what every kind of link does alike while it is set up (link_device.h shows the exchange): taking records,
// the first write each way that proves the link (setup_parts.h), and failing.
//
// A mover derives from it. The mover says what its records hold, makes and connects the link, and sends the proof. It
// calls look_for_proof() once bytes can come over the link.
// Tests: tests/fastpath/shm/setup_test.cc, tests/verbs/rc/setup_test.cc.
#pragma once

#include <cstdint>
#include <span>

#include "fastpath/link/link_device.h"
#include "fastpath/setup/setup_parts.h"

namespace bypass::fastpath {

class SetupSteps : public LinkSetup {
 public:
  [[nodiscard]] SetupState state() const final;
  [[nodiscard]] Reason reason() const final { return reason_; }
  [[nodiscard]] std::uint32_t id() const final { return id_; }
  void on_record(RecordType type, std::span<const std::byte> body) final;
  void on_lane_offered() final;
  [[nodiscard]] Instant next_timeout() const final { return step_ < Step::kUp ? deadline_ : kNever; }

 protected:
  // The steps in order; a mover leaves out what it does not need. From kClosing on nothing is sent any more.
  enum class Step : std::uint8_t {
    kMaking,
    kAsked,
    kConnecting,
    kPinging,
    kAnswered,
    kPonged,
    kUp,
    kFailed,
    kClosing,
    kClosed
  };

  SetupSteps(Mover mover, Step first, Instant deadline) : mover_(mover), step_(first), deadline_(deadline) {}

  /// A LINK_ACC that agrees has come: `body` describes the other end.
  virtual void on_accepted(std::span<const std::byte> body) = 0;
  /// Whether LINK_ACC may come now.
  [[nodiscard]] virtual bool awaits_answer() const { return step_ == Step::kAsked && !owes_.request; }
  /// Writes the number that the peer has chosen into the peer's memory.
  virtual void send_proof(Op op) = 0;
  /// The number that the peer must write into our memory.
  [[nodiscard]] virtual std::uint64_t own_proof() const = 0;
  /// Called just after the step has become kFailed.
  virtual void on_failed() {}

  /// Looks at the link for the peer's proof, and arms the link. `when_lost`: the reason if the link has gone meanwhile.
  void look_for_proof(Reason when_lost);
  /// Fails the set-up and makes a record owed that tells the peer.
  void fail(Reason why);
  /// Fails the set-up. The peer knows already, or learns it from a record that is owed.
  void end_with(Reason why);
  [[nodiscard]] bool is_over() const { return step_ >= Step::kFailed; }
  [[nodiscard]] LinkHead head() const { return {.link = id_, .reason = reason_, .mover = mover_}; }

  const Mover mover_;
  std::uint32_t id_ = 0;
  bool asks_ = false;
  Step step_;
  Reason reason_ = Reason::kNone;
  const Instant deadline_;
  OwedRecords owes_;

 private:
  void on_ready(Reason theirs);
  void look_once(Reason when_lost);
  void on_message(const Arrival& arrival);
};

}  // namespace bypass::fastpath
