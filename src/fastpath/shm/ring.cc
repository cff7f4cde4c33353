#include "fastpath/shm/ring.h"

namespace bypass::fastpath::shm {
namespace {

/// A sleep of its own number, also where the last one was not ended.
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
  constexpr unsigned kAbove = 40;  // of an index's low bits in 64
  std::uint64_t first = 0;
  for (const std::atomic<std::uint64_t>& each : view.peer->stamps) {
    const std::uint64_t stamp = each.load(std::memory_order_relaxed);
    if (stamp == 0 || static_cast<std::int64_t>((stamp << kAbove) - (from << kAbove)) < 0) continue;
    if (first == 0 || static_cast<std::int64_t>(stamp - first) < 0) first = stamp;
  }
  return first;
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
