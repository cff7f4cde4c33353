// SpinHabit: whether a thread's waits spin, which depends on the success of the earlier ones.
#pragma once

#include <algorithm>

namespace bypass::socket {

/// A wait that spins and then still has to sleep has used the processor for nothing. So the next wait sleeps at once,
/// then the next two, four and so on. An idle server costs nothing, and if there are more programs than processors,
/// they do not wait for each other's spinning. Each time that spinning succeeded, or would have, halves the number.
class SpinHabit {
 public:
  /// The longest row of waits that sleep at once. After it one wait spins as a test.
  static constexpr int kMostAsleep = 64;

  [[nodiscard]] bool spins() const { return left_ == 0; }
  /// A spinning wait has ended before it slept.
  void on_caught() { asleep_ /= 2; }
  /// A spinning wait had to sleep.
  void on_missed() { left_ = asleep_ = std::clamp(2 * asleep_, 1, kMostAsleep); }
  /// A wait that did not spin is over; `in_time` if spinning would have succeeded. (A handler's wait may have come in
  /// between.)
  void on_slept_at_once(bool in_time) { left_ = in_time ? left_ / 2 : std::max(left_ - 1, 0); }

 private:
  int left_ = 0;    // how many of the next waits sleep at once
  int asleep_ = 0;  // length of the last such row
};

}  // namespace bypass::socket
