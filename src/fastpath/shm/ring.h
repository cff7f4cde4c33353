// The byte rings of a shared segment: one a direction, one producer, one consumer, each of them a process.
//
// Both indices count bytes from the beginning and are never reduced; a position follows from an index of our own. What
// the peer writes is read once and compared with what he can say at most, so a peer that writes anything anywhere
// breaks its own connection, with a reason, and nothing else.
//
// A producer may hold bytes back for more (TCP_CORK): they lie in the ring, and only `written` counts them. Should its
// process die they are to be delivered all the same, as the kernel delivers what it holds: the consumer publishes them.
//
// Bytes in a ring can change while they are looked at: copy them out once, and never parse them in place.
//
// Producer and Consumer are counters without pointers and may lie in memory that a family shares; the View, which says
// where the ring lies in this process, is brought along. A side has one Producer and one Consumer: who uses them must
// see to it that two threads, or a parent and its forked child, do not at the same time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

/// The adjacent line is fetched along with one.
inline constexpr std::size_t kLine = 128;

/// How a side ends the connection, as its kernel says or is about to say: it writes nothing more; it does not read any
/// more either, and resets it when something comes; it resets it.
enum class Shut : std::uint32_t { kNo, kEnd, kBoth, kReset };

/// What one side writes, and the other only reads.
struct SideBlock {
  alignas(kLine) std::atomic<std::uint64_t> produced;  // bytes it has put into its ring, for the other to take
  std::atomic<Shut> shut;
  std::array<std::atomic<std::uint64_t>, 6> stamps;    // of the last writes, in turn: stamp_of(); 0: none
  alignas(kLine) std::atomic<std::uint64_t> consumed;  // bytes it has taken out of the other's
  // Odd: it sleeps, or is about to, until there are bytes (room). Each sleep has its number, so that it is woken once.
  alignas(kLine) std::atomic<std::uint32_t> bytes_wanted;
  std::atomic<std::uint32_t> room_wanted;
  std::atomic<std::uint32_t> resumed, stopped;  // switch.cc: claim_resume, claim_stop
  std::atomic<std::uint64_t> written;           // as `produced`, with those held back; below it where there are none
  std::atomic<std::uint32_t> receive_buffer;    // SO_RCVBUF, for a writer who has asked for a bound; 0: not known
};
static_assert(sizeof(SideBlock) == 3 * kLine);
static_assert(offsetof(SideBlock, stamps) + sizeof(SideBlock::stamps) == 64, "they come with the index's line");
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

template <typename Byte>
Parts<Byte> parts_of(const RingView& view, std::uint64_t from, std::uint64_t bytes) {
  const std::uint64_t at = from & (view.size - 1);
  const std::uint64_t first = std::min(bytes, view.size - at);
  return {{{view.bytes + at, first}, {view.bytes, bytes - first}}};
}

/// Whether the peer's index is what it can be: not below the one `seen` last, and at most `most` above it.
[[nodiscard]] inline Refusal check_index(std::uint64_t index, std::uint64_t seen, std::uint64_t most) {
  if (index - seen <= most) [[likely]]
    return Refusal::kNone;
  return static_cast<std::int64_t>(index - seen) < 0 ? Refusal::kIndexBackwards : Refusal::kIndexAhead;
}

/// When a write came: what a counter says that all processors share, in 8 of its ticks, above the low bits of the index
/// of the write's first byte. Their difference as a signed number says which of two was earlier, half an hour apart at
/// most at 3 GHz.
[[nodiscard]] constexpr std::uint64_t stamp_of(std::uint64_t index, std::uint64_t ticks) {
  constexpr unsigned kIndexBits = 24;
  return (ticks >> 3) << kIndexBits | (index & ((std::uint64_t{1} << kIndexBits) - 1));
}
/// Of the incoming ring's bytes from `from` on, when the first write came, as far as the stamps know; later than it did
/// where more writes have come since than there are stamps, and 0 where there is none. The peer's word, which may be a
/// lie: good for an order of what is there anyway. Behind a look at its index.
[[nodiscard]] std::uint64_t first_stamp(const RingView& view, std::uint64_t from);

/// Whether the peer sleeps, and nobody has been sent to end this sleep. A sleeper stores its word and then looks at the
/// other's index once more; the other stores its index and then looks at the word. All four are seq_cst, so one of the
/// two sees what the other has stored.
[[nodiscard]] inline bool must_wake(const std::atomic<std::uint32_t>& word, std::uint32_t& woken) {
  const std::uint32_t sleep = word.load(std::memory_order_seq_cst);
  if ((sleep & 1) == 0 || sleep == woken) [[likely]]
    return false;
  woken = sleep;
  return true;
}

class Producer {
 public:
  /// Where to write now, up to most(); looks at the peer's index when less than `wanted` is known to be free. Empty:
  /// full, or broken.
  Parts<std::byte> room(const RingView& view, std::size_t wanted) {
    if (free(view) < wanted) look(view);
    if (broken_ != Refusal::kNone) return {};
    return parts_of<std::byte>(view, produced_, free(view));
  }
  /// That many of room()'s bytes are written. True: the peer sleeps for them; wake it. `ticks`: a time between the
  /// beginning of the write and now, for readers of several rings (stamp_of()); 0: nobody asks.
  [[nodiscard]] bool publish(const RingView& view, std::size_t bytes, std::uint64_t ticks = 0) {
    if (bytes == 0) return false;
    if (ticks != 0) stamp(view, produced_, ticks);
    produced_ += bytes;
    // Release: pairs with the peer's look(). And before the word: see must_wake().
    view.own->produced.store(produced_, std::memory_order_seq_cst);
    return must_wake(view.peer->bytes_wanted, woken_);
  }

  /// That many of room()'s bytes are written, and held back together with those that are so already, but for whole
  /// pieces of `segment` bytes, which are published. As publish().
  [[nodiscard]] bool hold(const RingView& view, std::size_t bytes, std::uint32_t segment, std::uint64_t ticks = 0);
  /// publish() where bytes may be held back, which go first.
  [[nodiscard]] bool release(const RingView& view, std::size_t bytes = 0, std::uint64_t ticks = 0);
  /// Of produced(), those that are held back.
  [[nodiscard]] std::uint32_t held() const { return held_; }
  [[nodiscard]] std::uint64_t published() const { return produced_ - held_; }

  /// About to sleep until there is room; true: there is `wanted`, at most three quarters of the ring, already (or the
  /// ring is broken): do not.
  [[nodiscard]] bool arm(const RingView& view, std::size_t wanted);
  /// The first half of arm(), for a caller that looks at the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  /// From now on room() gives so many bytes at most, those that are unread included; never less than three eighths of
  /// the ring, as a sleeper with two thirds of it unread must have a quarter of the ring to be woken by.
  void bound(const RingView& view, std::uint64_t most) {
    withheld_ = static_cast<std::uint32_t>(view.size - std::clamp(most, view.size / 8 * 3, view.size));
  }
  [[nodiscard]] std::uint64_t most(const RingView& view) const { return view.size - withheld_; }
  /// Bytes that the peer has not taken, by its index of now. Not of a ring that is broken().
  [[nodiscard]] std::uint64_t unread(const RingView& view) {
    look(view);
    return produced_ - consumed_;
  }

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t produced() const { return produced_; }

 private:
  /// Acquire: the peer stored it (release) behind its last read of the bytes whose room this gives.
  void look(const RingView& view) {
    const std::uint64_t index = view.peer->consumed.load(std::memory_order_seq_cst);
    const Refusal why = check_index(index, consumed_, produced_ - consumed_);
    if (why != Refusal::kNone)
      broken_ = why;
    else
      consumed_ = index;
  }
  /// None where a bound came below what is unread.
  [[nodiscard]] std::uint64_t free(const RingView& view) const {
    const std::uint64_t unread = produced_ - consumed_;
    return most(view) > unread ? most(view) - unread : 0;
  }
  /// Relaxed: the index's store covers it.
  void stamp(const RingView& view, std::uint64_t first, std::uint64_t ticks) {
    view.own->stamps[next_stamp_].store(stamp_of(first, ticks), std::memory_order_relaxed);
    if (++next_stamp_ == view.own->stamps.size()) next_stamp_ = 0;
  }

  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;  // the peer's index when last looked at
  std::uint32_t woken_ = 0;     // the peer's sleep that has been ended
  std::uint32_t sleeps_ = 0;    // ours
  std::uint32_t held_ = 0;      // at most the ring, kMostRing
  std::uint32_t withheld_ = 0;  // of the ring, what may not be used: bound()
  Refusal broken_ = Refusal::kNone;
  std::uint8_t next_stamp_ = 0;
};

class Consumer {
 public:
  /// What is there; looks at the peer's index when less than `wanted` is known to be. Empty: nothing, or broken.
  Parts<const std::byte> peek(const RingView& view, std::size_t wanted = 1) {
    if (produced_ - consumed_ < wanted) look(view);
    if (broken_ != Refusal::kNone) return {};
    return parts_of<const std::byte>(view, consumed_, produced_ - consumed_);
  }
  /// That many of peek()'s bytes are taken. True: the peer sleeps for their room; wake it.
  [[nodiscard]] bool consume(const RingView& view, std::size_t bytes) {
    const std::uint64_t before = consumed_;
    consumed_ += bytes;
    // A producer sleeps with a quarter of the ring unread at least; so at each quarter it is asked about, and not
    // between.
    const std::uint64_t quarter = view.size / 4;
    if (((before ^ consumed_) & ~(quarter - 1)) == 0) [[likely]] {
      view.own->consumed.store(consumed_, std::memory_order_release);
      return false;
    }
    view.own->consumed.store(consumed_, std::memory_order_seq_cst);
    return must_wake(view.peer->room_wanted, woken_);
  }

  /// The other side ended as a process does that dies: what it held back is published for it. False: it held nothing
  /// back, or says what cannot be.
  [[nodiscard]] bool take_held(const RingView& view);

  /// About to sleep until there are bytes; true: there are (or the ring is broken): do not.
  [[nodiscard]] bool arm(const RingView& view);
  /// The first half of arm(), for a caller that looks at the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  /// The peer's index when last looked at.
  [[nodiscard]] std::uint64_t seen() const { return produced_; }

 private:
  /// Acquire: the peer stored it (release) behind the bytes.
  void look(const RingView& view) {
    const std::uint64_t index = view.peer->produced.load(std::memory_order_seq_cst);
    const Refusal why = check_index(index, produced_, view.size - (produced_ - consumed_));
    if (why != Refusal::kNone)
      broken_ = why;
    else
      produced_ = index;
  }

  std::uint64_t consumed_ = 0;
  std::uint64_t produced_ = 0;  // the peer's index when last looked at
  std::uint32_t woken_ = 0;
  std::uint32_t sleeps_ = 0;
  Refusal broken_ = Refusal::kNone;
};

}  // namespace bypass::fastpath::shm
