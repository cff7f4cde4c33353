#include "backends/dpdk/card/interrupt_trust.h"

#include <algorithm>

namespace bypass::dpdk {

Duration InterruptTrust::patience() const {
  return state_ == State::kProven && misses_ == 0 ? kLongestProven : pause_;
}

void InterruptTrust::on_event() {
  if (!has_interrupt_) return;
  misses_ = 0;
  if (state_ == State::kDead && ++events_ < kEventsToRevive) return;
  state_ = State::kProven;
}

void InterruptTrust::on_missed() {
  events_ = 0;
  pause_ = kShortest;
  if (++misses_ >= kMissesToBeDead) state_ = State::kDead;
}

void InterruptTrust::on_idle() {
  const bool is_short = state_ == State::kDead || misses_ != 0;
  pause_ = std::min(2 * pause_, is_short ? kLongest : kLongestUnproven);
}

}  // namespace bypass::dpdk
