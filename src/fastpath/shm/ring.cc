#include "fastpath/shm/ring.h"

#include <utility>

namespace bypass::fastpath::shm {
namespace {

/// Each sleep has a number of its own, even if the last sleep was not ended.
void begin_sleep(std::atomic<std::uint32_t>& word, std::uint32_t& sleeps) {
  sleeps = (sleeps + 1) | 1;
  word.store(sleeps, std::memory_order_seq_cst);
}

void end_sleep(std::atomic<std::uint32_t>& word, std::uint32_t& sleeps) {
  if ((sleeps & 1) == 0) return;
  word.store(++sleeps, std::memory_order_relaxed);
}

}  // namespace

// --- Producer

bool Producer::hold(const RingView& view, std::size_t bytes, std::uint32_t segment, std::uint64_t ticks) {
  const std::uint64_t before = published();
  produced_ += bytes;
  held_ += static_cast<std::uint32_t>(bytes);
  // Release: a reader that takes what a dead process held back must see the bytes before this count.
  view.own->written.store(produced_, std::memory_order_release);
  if (held_ < segment) return false;
  if (ticks != 0) stamp(view, before, ticks);
  held_ %= segment;
  view.own->produced.store(published(), std::memory_order_seq_cst);
  return must_wake(view.peer->bytes_wanted, woken_);
}

bool Producer::release(const RingView& view, std::size_t bytes, std::uint64_t ticks) {
  const std::size_t held = std::exchange(held_, 0U);
  produced_ -= held;
  return publish(view, held + bytes, ticks);
}

bool Producer::arm(const RingView& view, std::size_t wanted) {
  begin_sleep(view.own->room_wanted, sleeps_);
  look(view);
  if (broken_ == Refusal::kNone && free(view) < wanted) return false;
  disarm(view);
  return true;
}

void Producer::want(const RingView& view) {
  begin_sleep(view.own->room_wanted, sleeps_);
}

void Producer::disarm(const RingView& view) {
  end_sleep(view.own->room_wanted, sleeps_);
}

// --- Consumer

std::uint64_t first_stamp(const RingView& view, std::uint64_t from) {
  constexpr unsigned kAbove = 40;  // the low bits of an index, at the top of 64 bits
  std::uint64_t first = 0;
  for (const std::atomic<std::uint64_t>& each : view.peer->stamps) {
    const std::uint64_t stamp = each.load(std::memory_order_relaxed);
    if (stamp == 0 || static_cast<std::int64_t>((stamp << kAbove) - (from << kAbove)) < 0) continue;
    if (first == 0 || static_cast<std::int64_t>(stamp - first) < 0) first = stamp;
  }
  return first;
}

// The dead side's block has no other writer any more.
bool Consumer::take_held(const RingView& view) {
  look(view);
  const std::uint64_t written = view.peer->written.load(std::memory_order_acquire);
  const std::uint64_t held = written - produced_;
  if (broken_ != Refusal::kNone || held == 0 || held > view.size - (produced_ - consumed_)) return false;
  const_cast<SideBlock*>(view.peer)->produced.store(written, std::memory_order_seq_cst);
  return true;
}

bool Consumer::arm(const RingView& view) {
  begin_sleep(view.own->bytes_wanted, sleeps_);
  look(view);
  if (broken_ == Refusal::kNone && produced_ == consumed_) return false;
  disarm(view);
  return true;
}

void Consumer::want(const RingView& view) {
  begin_sleep(view.own->bytes_wanted, sleeps_);
}

void Consumer::disarm(const RingView& view) {
  end_sleep(view.own->bytes_wanted, sleeps_);
}

}  // namespace bypass::fastpath::shm
