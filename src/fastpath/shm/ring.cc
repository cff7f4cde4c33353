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

void Producer::stamp(const RingView& view) {
  Stamp& next = view.own->stamps[stamped_++ % kStamps];
  next.from.store(produced_, std::memory_order_relaxed);
  next.when.store(__builtin_ia32_rdtsc(), std::memory_order_relaxed);
}

// --- Consumer

std::uint64_t stamp_of(const RingView& view, std::uint64_t from) {
  std::uint64_t first = 0;
  for (const Stamp& each : view.peer->stamps) {
    const std::uint64_t when = each.when.load(std::memory_order_relaxed);
    if (when == 0 || static_cast<std::int64_t>(each.from.load(std::memory_order_relaxed) - from) < 0) continue;
    if (first == 0 || when < first) first = when;
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
