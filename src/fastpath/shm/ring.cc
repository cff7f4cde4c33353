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
