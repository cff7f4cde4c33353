// The byte rings of a shared segment: one a direction, one producer, one consumer, each of them a process.
//
// Both indices count bytes from the beginning and are never reduced; a position follows from an index of our own. What
// the peer writes is read once and compared with what he can say at most, so a peer that writes anything anywhere
// breaks his own connection, with a reason, and nothing else.
//
// Bytes in a ring can change while they are looked at: copy them out once, and never parse them in place.
//
// Producer and Consumer are counters without pointers and may lie in memory that a family shares; the View, which says
// where the ring lies in this process, is brought along. A side has one Producer and one Consumer: who uses them must
// see to it that two threads, or a parent and its forked child, do not at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

/// The adjacent line is fetched along with one.
inline constexpr std::size_t kLine = 128;

/// What one side writes, and the other only reads.
struct SideBlock {
  alignas(kLine) std::atomic<std::uint64_t> produced;  // bytes it has put into its ring
  std::atomic<std::uint32_t> shut;                     // it writes nothing more, as its kernel says or is about to say
  alignas(kLine) std::atomic<std::uint64_t> consumed;  // bytes it has taken out of the other's
  // Odd: it sleeps, or is about to, until there are bytes (room). Each sleep has its number, so that it is woken once.
  alignas(kLine) std::atomic<std::uint32_t> bytes_wanted;
  std::atomic<std::uint32_t> room_wanted;
  std::atomic<std::uint32_t> resumed, stopped;  // switch.h: claim_resume, claim_stop
};
static_assert(sizeof(SideBlock) == 3 * kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// One ring as one process sees it.
struct RingView {
  SideBlock* own = nullptr;
  const SideBlock* peer = nullptr;
  std::byte* bytes = nullptr;
  std::uint64_t size = 0;  // a power of two
};

/// Two parts where it wraps, else the second one is empty.
template <typename Byte>
struct Parts {
  std::span<Byte> part[2];
  [[nodiscard]] std::size_t size() const { return part[0].size() + part[1].size(); }
};

class Producer {
 public:
  /// Where to write now; looks at the peer's index when less than `wanted` is known to be free. Empty: full, or broken.
  Parts<std::byte> room(const RingView& view, std::size_t wanted);
  /// That many of room()'s bytes are written. True: the peer sleeps for them; wake it.
  [[nodiscard]] bool publish(const RingView& view, std::size_t bytes);

  /// About to sleep until there is room; true: there is `wanted`, at most three quarters of the ring, already (or the
  /// ring is broken): do not.
  [[nodiscard]] bool arm(const RingView& view, std::size_t wanted);
  /// The first half of arm(), for a caller that looks at the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t produced() const { return produced_; }

 private:
  void look(const RingView& view);
  [[nodiscard]] std::uint64_t free(const RingView& view) const { return view.size - (produced_ - consumed_); }

  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;  // the peer's index when last looked at
  std::uint32_t woken_ = 0;     // the peer's sleep that has been ended
  std::uint32_t sleeps_ = 0;    // ours
  Refusal broken_ = Refusal::kNone;
};

class Consumer {
 public:
  /// What is there; looks at the peer's index when less than `wanted` is known to be. Empty: nothing, or broken.
  Parts<const std::byte> peek(const RingView& view, std::size_t wanted = 1);
  /// That many of peek()'s bytes are taken. True: the peer sleeps for their room; wake it.
  [[nodiscard]] bool consume(const RingView& view, std::size_t bytes);

  /// About to sleep until there are bytes; true: there are (or the ring is broken): do not.
  [[nodiscard]] bool arm(const RingView& view);
  /// The first half of arm(), for a caller that looks at the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }

 private:
  void look(const RingView& view);

  std::uint64_t consumed_ = 0;
  std::uint64_t produced_ = 0;  // the peer's index when last looked at
  std::uint32_t woken_ = 0;
  std::uint32_t sleeps_ = 0;
  Refusal broken_ = Refusal::kNone;
};

}  // namespace bypass::fastpath::shm
