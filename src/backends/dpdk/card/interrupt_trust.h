// InterruptTrust: whether a card's receive interrupt comes, and how long a sleeper may rely on it.
//
// A driver's word about its interrupts is no proof. The card may never signal a vector that was set up (e1000e with
// MSI-X under DPDK's driver), and a guest's vectors may be lost later. So a sleeper looks at the queue now and then,
// even if nothing woke it. Frames that lie there without an event count against the interrupt. After the first such
// look the sleeps are short. After kMissesToBeDead in a row the interrupt counts as dead, and short sleeps stay.
//
//   kUnproven   nothing has come yet                  the sleep doubles up to kLongestUnproven
//   kProven     an event came with the last frames    kLongestProven
//   kDead       frames come, events do not            kShortest, doubling to kLongest while nothing comes
//
// With a dead interrupt an idle program wakes 250 times a second (kLongest).
#pragma once

#include <cstdint>

#include "stack/time.h"

namespace bypass::dpdk {

class InterruptTrust {
 public:
  enum class State : std::uint8_t { kUnproven, kProven, kDead };

  static constexpr Duration kShortest = std::chrono::microseconds(500), kLongest = std::chrono::milliseconds(4);
  static constexpr Duration kLongestUnproven = std::chrono::milliseconds(64);
  static constexpr Duration kLongestProven = std::chrono::seconds(1);
  /// One late event proves nothing: the card may hold it back (interrupt moderation) until the sleeper has looked.
  static constexpr unsigned kMissesToBeDead = 3;
  /// So many events in a row bring a dead interrupt back.
  static constexpr unsigned kEventsToRevive = 8;

  constexpr InterruptTrust() = default;
  /// Without an interrupt it is dead from the start, and no event revives it.
  constexpr explicit InterruptTrust(bool has_interrupt)
      : state_(has_interrupt ? State::kUnproven : State::kDead), has_interrupt_(has_interrupt) {}

  [[nodiscard]] constexpr State state() const { return state_; }
  /// After so long a sleeper looks by itself.
  [[nodiscard]] Duration patience() const;

  /// The interrupt has come since the queue was last armed.
  void on_event();
  /// A sleeper looked by itself, found frames, and no event had come.
  void on_missed();
  /// It looked by itself and found nothing.
  void on_idle();

 private:
  State state_ = State::kUnproven;
  bool has_interrupt_ = true;
  unsigned misses_ = 0, events_ = 0;  // in a row
  Duration pause_ = kShortest;
};

}  // namespace bypass::dpdk
