// SpinHabit: whether a thread's waits spin, by what became of those before.
#pragma once

#include <algorithm>

namespace bypass::socket {

/// A wait that spins and has to sleep all the same has taken the processor from others for nothing: the next one sleeps
/// at once, then two, four and so on. So an idle server costs nothing, and more programs than there are processors do
/// not wait for each other's spinning. What spinning has caught, or would have, takes half of it back.
class SpinHabit {
 public:
  /// The longest row of waits that sleep at once. Then one spins, to see.
  static constexpr int kMostAsleep = 64;

  [[nodiscard]] bool spins() const { return left_ == 0; }
  /// A wait that was to spin has ended before it slept.
  void on_caught() { asleep_ /= 2; }
  /// … and has slept.
  void on_missed() { left_ = asleep_ = std::clamp(2 * asleep_, 1, kMostAsleep); }
  /// A wait that was not to spin is over, `in_time` when spinning would have caught it. (A handler's wait may have come
  /// in between.)
  void on_slept_at_once(bool in_time) { left_ = in_time ? left_ / 2 : std::max(left_ - 1, 0); }

 private:
  int left_ = 0;    // waits that sleep at once from here on
  int asleep_ = 0;  // as many as did in the last row
};

}  // namespace bypass::socket
