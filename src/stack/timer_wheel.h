// TimerWheel: deadlines of many objects, O(1) each (Varghese and Lauck's hierarchical wheel).
//
// Level 0 has 256 slots of 2^16 ns (66 us). Each level above has 64 slots that are as wide as everything below: 16.8
// ms, 1.07 s, 69 s, 73 min, 78 h. The highest bit in which a deadline's tick differs from the current tick decides its
// level. So a level's slots all lie ahead and never wrap. A slot that time enters is spread over the levels below.
// Within the current slot deadlines are compared exactly. Nothing fires early, and nothing fires later than the first
// expire() after it is due.
//
// It lies in the arena with its objects, which embed a TimerNode. The caller holds the shard's lock. It is an index:
// after a death, call clear(), then TimerNode::forget() and schedule() for each object.
#pragma once

#include <array>
#include <boost/intrusive/parent_from_member.hpp>
#include <cstdint>

#include "stack/time.h"

namespace bypass {

class TimerNode {
 public:
  [[nodiscard]] bool scheduled() const { return link_ != nullptr; }
  /// Valid while scheduled.
  [[nodiscard]] Instant expires() const { return expires_; }

  /// For a node whose wheel has forgotten it. The node's padding may belong to another object.
  void forget() {
    next_ = nullptr;
    link_ = nullptr;
  }

 private:
  friend class TimerWheelBase;
  TimerNode* next_ = nullptr;
  TimerNode** link_ = nullptr;  // the pointer that points here: a slot's head or another node's next_
  Instant expires_{};
  std::uint32_t slot_ = 0;
};

class TimerWheelBase {
 public:
  /// Never later than the earliest deadline. It is earlier if that deadline was cancelled or is far away (an expire()
  /// then finds nothing due and moves on). kNever if nothing is scheduled.
  [[nodiscard]] Instant next_deadline() const { return next_; }
  /// Forgets everything, in whatever state the wheel is; the nodes are stale from then on.
  void clear();

 protected:
  void schedule_node(TimerNode& node, Instant at);
  void cancel_node(TimerNode& node);
  /// Moves what is due to the list that take_due() empties.
  void advance(Instant now);
  TimerNode* take_due();
  /// To be called after the due nodes have fired: finds the earliest deadline.
  void settle();

 private:
  static constexpr unsigned kTickShift = 16;
  static constexpr unsigned kFirstBits = 8, kBits = 6, kUpper = 5;
  static constexpr unsigned kFirst = 1U << kFirstBits, kWidth = 1U << kBits;
  static constexpr unsigned kSlots = kFirst + kUpper * kWidth;
  static constexpr unsigned kFar = kSlots, kDue = kSlots + 1;  // beyond the top level; taken out to fire
  static constexpr unsigned kExactLook = 16;                   // entries of a coming slot that are compared

  static std::uint64_t tick_of(Instant at);
  static constexpr unsigned shift_of(unsigned level) { return level == 0 ? 0 : kFirstBits + (level - 1) * kBits; }
  static constexpr unsigned base_of(unsigned level) { return level == 0 ? 0 : kFirst + (level - 1) * kWidth; }
  static constexpr unsigned width_of(unsigned level) { return level == 0 ? kFirst : kWidth; }
  [[nodiscard]] unsigned slot_for(std::uint64_t tick) const;
  [[nodiscard]] unsigned index_in(unsigned level, std::uint64_t tick) const {
    return static_cast<unsigned>(tick >> shift_of(level)) & (width_of(level) - 1);
  }

  void link(TimerNode& node, unsigned slot);
  void unlink(TimerNode& node);
  void all_due(unsigned slot);
  void all_due(unsigned first, unsigned last);
  void spread(unsigned slot, Instant now);
  [[nodiscard]] unsigned next_occupied(unsigned first, unsigned last) const;
  [[nodiscard]] Instant earliest_in(unsigned slot, unsigned look) const;
  [[nodiscard]] Instant start_of(unsigned level, unsigned index) const;

  std::uint64_t tick_ = 0;  // the current tick: everything before it has fired
  Instant next_ = kNever;
  std::array<std::uint64_t, kSlots / 64> occupied_{};
  std::array<TimerNode*, kSlots + 2> heads_{};
};

/// A wheel of T's that embed their node as `Node`: TimerWheel<Tcb, &Tcb::wheel>.
template <typename T, TimerNode T::*Node>
class TimerWheel : public TimerWheelBase {
 public:
  /// Schedules the object at `at`, wherever it was before. A deadline that has passed fires at the next expire().
  void schedule(T& object, Instant at) { schedule_node(object.*Node, at); }
  void cancel(T& object) { cancel_node(object.*Node); }

  /// Calls fire(T&) once for each object whose deadline is not after `now`, in no particular order. The object is
  /// unscheduled before the call. fire() may schedule and cancel any object; what it schedules fires at a later
  /// expire().
  template <typename F>
  void expire(Instant now, F&& fire) {
    if (now < next_deadline()) return;
    advance(now);
    while (TimerNode* node = take_due()) fire(*boost::intrusive::get_parent_from_member<T>(node, Node));
    settle();
  }
};

}  // namespace bypass
