#include "fastpath/shm/ring.h"

#include <algorithm>

namespace bypass::fastpath::shm {
namespace {

template <typename Byte>
Parts<Byte> parts(const RingView& view, std::uint64_t from, std::uint64_t bytes) {
  const std::uint64_t at = from & (view.size - 1);
  const std::uint64_t first = std::min(bytes, view.size - at);
  return {{{view.bytes + at, first}, {view.bytes, bytes - first}}};
}

/// Whether the peer's index is what it can be: not below the one `seen` last, and at most `most` above it.
Refusal check(std::uint64_t index, std::uint64_t seen, std::uint64_t most) {
  if (index - seen <= most) return Refusal::kNone;
  return static_cast<std::int64_t>(index - seen) < 0 ? Refusal::kIndexBackwards : Refusal::kIndexAhead;
}

// A sleeper stores its word and then looks at the other's index once more; the other stores its index and then looks at
// the word. All four are seq_cst, so one of the two sees what the other has stored.

/// Whether the peer sleeps, and nobody has been sent to end this sleep.
bool must_wake(const std::atomic<std::uint32_t>& word, std::uint32_t& woken) {
  const std::uint32_t sleep = word.load(std::memory_order_seq_cst);
  if ((sleep & 1) == 0 || sleep == woken) return false;
  woken = sleep;
  return true;
}

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

/// Acquire: the peer stored it (release) behind its last read of the bytes whose room this gives.
void Producer::look(const RingView& view) {
  const std::uint64_t index = view.peer->consumed.load(std::memory_order_seq_cst);
  const Refusal why = check(index, consumed_, produced_ - consumed_);
  if (why != Refusal::kNone) {
    broken_ = why;
  } else {
    consumed_ = index;
  }
}

Parts<std::byte> Producer::room(const RingView& view, std::size_t wanted) {
  if (free(view) < wanted) look(view);
  if (broken_ != Refusal::kNone) return {};
  return parts<std::byte>(view, produced_, free(view));
}

bool Producer::publish(const RingView& view, std::size_t bytes) {
  if (bytes == 0) return false;
  produced_ += bytes;
  // Release: pairs with the peer's look(). And before the word: see above.
  view.own->produced.store(produced_, std::memory_order_seq_cst);
  return must_wake(view.peer->bytes_wanted, woken_);
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

/// Acquire: the peer stored it (release) behind the bytes.
void Consumer::look(const RingView& view) {
  const std::uint64_t index = view.peer->produced.load(std::memory_order_seq_cst);
  const Refusal why = check(index, produced_, view.size - (produced_ - consumed_));
  if (why != Refusal::kNone) {
    broken_ = why;
  } else {
    produced_ = index;
  }
}

Parts<const std::byte> Consumer::peek(const RingView& view, std::size_t wanted) {
  if (produced_ - consumed_ < wanted) look(view);
  if (broken_ != Refusal::kNone) return {};
  return parts<const std::byte>(view, consumed_, produced_ - consumed_);
}

bool Consumer::consume(const RingView& view, std::size_t bytes) {
  const std::uint64_t before = consumed_;
  consumed_ += bytes;
  // A producer sleeps with a quarter of the ring unread at least; so at each quarter it is asked about, and not
  // between.
  const std::uint64_t quarter = view.size / 4;
  if (before / quarter == consumed_ / quarter) {
    view.own->consumed.store(consumed_, std::memory_order_release);
    return false;
  }
  view.own->consumed.store(consumed_, std::memory_order_seq_cst);
  return must_wake(view.peer->room_wanted, woken_);
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
