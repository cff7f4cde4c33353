#include "stack/timer_wheel.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace bypass {

std::uint64_t TimerWheelBase::tick_of(Instant at) {
  const std::int64_t ns = at.time_since_epoch().count();
  return ns <= 0 ? 0 : static_cast<std::uint64_t>(ns) >> kTickShift;
}

unsigned TimerWheelBase::slot_for(std::uint64_t tick) const {
  if (tick <= tick_) return index_in(0, tick_);
  const auto highest = static_cast<unsigned>(std::bit_width(tick ^ tick_)) - 1;
  if (highest < kFirstBits) return index_in(0, tick);
  const unsigned level = 1 + (highest - kFirstBits) / kBits;
  return level > kUpper ? kFar : base_of(level) + index_in(level, tick);
}

void TimerWheelBase::link(TimerNode& node, unsigned slot) {
  TimerNode*& head = heads_[slot];
  node.next_ = head;
  node.link_ = &head;
  node.slot_ = slot;
  if (head != nullptr) head->link_ = &node.next_;
  head = &node;
  if (slot < kSlots) occupied_[slot / 64] |= std::uint64_t{1} << (slot % 64);
}

void TimerWheelBase::unlink(TimerNode& node) {
  *node.link_ = node.next_;
  if (node.next_ != nullptr) node.next_->link_ = node.link_;
  node.link_ = nullptr;
  const unsigned slot = node.slot_;
  if (slot < kSlots && heads_[slot] == nullptr) occupied_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
}

void TimerWheelBase::schedule_node(TimerNode& node, Instant at) {
  if (node.scheduled()) unlink(node);
  node.expires_ = at;
  next_ = std::min(next_, at);
  link(node, slot_for(tick_of(at)));
}

void TimerWheelBase::cancel_node(TimerNode& node) {
  if (node.scheduled()) unlink(node);
}

void TimerWheelBase::clear() {
  occupied_.fill(0);
  heads_.fill(nullptr);
  next_ = kNever;
}

void TimerWheelBase::all_due(unsigned slot) {
  while (TimerNode* node = heads_[slot]) {
    unlink(*node);
    link(*node, kDue);
  }
}

/// Makes the slots [first, last) due: they lie in the past.
void TimerWheelBase::all_due(unsigned first, unsigned last) {
  for (unsigned slot = next_occupied(first, last); slot < last; slot = next_occupied(slot + 1, last)) all_due(slot);
}

/// Moves each entry of a slot that time has entered to its place in a lower level.
void TimerWheelBase::spread(unsigned slot, Instant now) {
  TimerNode* list = std::exchange(heads_[slot], nullptr);
  if (slot < kSlots) occupied_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
  while (list != nullptr) {
    TimerNode* node = std::exchange(list, list->next_);
    link(*node, node->expires_ <= now ? kDue : slot_for(tick_of(node->expires_)));
  }
}

// In a level whose block is unchanged, the slots before the new tick are due, and the slot that holds the tick is
// spread. A level whose block was left is due as a whole.
void TimerWheelBase::advance(Instant now) {
  const std::uint64_t from = tick_;
  tick_ = std::max(tick_, tick_of(now));
  for (unsigned level = 0; level <= kUpper; level++) {
    const unsigned base = base_of(level), width = width_of(level);
    const unsigned next_shift = shift_of(level + 1);
    if (from >> next_shift == tick_ >> next_shift) {
      const unsigned index = index_in(level, tick_);
      all_due(base, base + index);
      return spread(base + index, now);
    }
    all_due(base, base + width);
  }
  spread(kFar, now);
}

TimerNode* TimerWheelBase::take_due() {
  TimerNode* node = heads_[kDue];
  if (node != nullptr) unlink(*node);
  return node;
}

unsigned TimerWheelBase::next_occupied(unsigned first, unsigned last) const {
  while (first < last) {
    const std::uint64_t word = occupied_[first / 64] >> (first % 64);
    if (word != 0) return std::min(last, first + static_cast<unsigned>(std::countr_zero(word)));
    first = (first / 64 + 1) * 64;
  }
  return last;
}

/// Returns kNever if the slot holds more than `look` entries.
Instant TimerWheelBase::earliest_in(unsigned slot, unsigned look) const {
  Instant earliest = kNever;
  for (const TimerNode* node = heads_[slot]; node != nullptr; node = node->next_) {
    if (look-- == 0) return kNever;
    earliest = std::min(earliest, node->expires_);
  }
  return earliest;
}

Instant TimerWheelBase::start_of(unsigned level, unsigned index) const {
  const unsigned above = shift_of(level + 1);
  const std::uint64_t tick = (tick_ >> above << above) + (std::uint64_t{index} << shift_of(level));
  return Instant{Duration{static_cast<std::int64_t>(tick << kTickShift)}};
}

// All entries of a level come before those of the level above.
void TimerWheelBase::settle() {
  for (unsigned level = 0; level <= kUpper; level++) {
    const unsigned base = base_of(level), last = base + width_of(level);
    const unsigned slot = next_occupied(base, last);
    if (slot == last) continue;
    const bool current = level == 0 && slot == index_in(0, tick_);
    next_ = earliest_in(slot, current ? ~0U : kExactLook);
    // In a crowded slot the slot's beginning is used; the next expire() finds the exact time.
    if (next_ == kNever) next_ = start_of(level, slot - base);
    return;
  }
  constexpr unsigned kTop = shift_of(kUpper + 1);
  const std::uint64_t beyond = ((tick_ >> kTop) + 1) << kTop;
  next_ = heads_[kFar] == nullptr ? kNever : Instant{Duration{static_cast<std::int64_t>(beyond << kTickShift)}};
}

}  // namespace bypass
