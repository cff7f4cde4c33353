#include "fastpath/setup/setup_steps.h"

namespace bypass::fastpath {

SetupState SetupSteps::state() const {
  if (step_ == Step::kUp) return SetupState::kUp;
  return is_over() ? SetupState::kFailed : SetupState::kUnderWay;
}

// --- Records

void SetupSteps::on_record(RecordType type, std::span<const std::byte> body) {
  if (is_over()) return;
  LinkHead theirs;
  if (const Reason why = decode(body, mover_, theirs); why != Reason::kNone) return fail(why);
  if (theirs.link != id_) return fail(Reason::kLinkValue);
  if (type == RecordType::kLinkAcc && awaits_answer())
    return theirs.reason != Reason::kNone ? end_with(theirs.reason) : on_accepted(body);
  if (type == RecordType::kLinkReady) return on_ready(theirs.reason);
  fail(Reason::kBadState);
}

void SetupSteps::on_ready(Reason theirs) {
  if (theirs != Reason::kNone) return end_with(theirs);
  if (step_ == Step::kPonged)
    step_ = Step::kUp;
  else if (asks_ || step_ != Step::kUp)  // an offer may have said so before
    fail(Reason::kBadState);
}

void SetupSteps::on_lane_offered() {
  if (step_ == Step::kPonged) step_ = Step::kUp;
}

// --- The proof

void SetupSteps::look_for_proof(Reason when_lost) {
  look_once(when_lost);
  if (step_ < Step::kUp && link().arm()) look_once(when_lost);
}

void SetupSteps::look_once(Reason when_lost) {
  Arrival arrival;
  if (link().poll({&arrival, 1}) != 0) return on_message(arrival);
  if (link().state() != LinkState::kUp) fail(when_lost);
}

void SetupSteps::on_message(const Arrival& arrival) {
  if (step_ == Step::kPonged) return fail(Reason::kBadState);
  const Op expected = asks_ ? Op::kLinkPong : Op::kLinkPing;
  if (!is_proof(arrival, expected, link().memory(), own_proof())) return fail(Reason::kUnproven);
  if (asks_) {
    step_ = Step::kUp;
    owes_.ready = true;
    return;
  }
  step_ = Step::kPonged;
  send_proof(Op::kLinkPong);
}

// --- The end

void SetupSteps::fail(Reason why) {
  if (step_ == Step::kUp) return link().fail();  // LinkEnd handles its end
  owes_.fail();
  end_with(why);
}

void SetupSteps::end_with(Reason why) {
  if (step_ == Step::kUp) return link().fail();
  reason_ = why;
  step_ = Step::kFailed;
  on_failed();
}

}  // namespace bypass::fastpath
