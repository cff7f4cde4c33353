// The byte rings of a shared segment. There is one for each direction, with one producer and one consumer in different
// processes.
//
// Both indices count bytes from the beginning and are never reduced; a position follows from an index of our own. What
// the peer writes is read once, and compared with the greatest value that it can have. So a peer that writes anything
// anywhere breaks only its own connection, with a reason.
//
// A producer may hold bytes back for more (TCP_CORK): they lie in the ring, and only `written` counts them. If its
// process dies, they must still be delivered, as the kernel delivers what it holds: the consumer publishes them.
//
// Bytes in a ring can change while they are read: copy them out once, and never parse them in place.
//
// Producer and Consumer are counters without pointers, and may lie in memory that a family shares. The RingView, which
// says where the ring lies in this process, is passed to each call. A side has one Producer and one Consumer. Their
// user must ensure that two threads, or a parent and its forked child, do not use them at the same time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

/// The processor fetches a second line along with one.
inline constexpr std::size_t kLine = 128;

/// How a side ends the connection, as its kernel says or will say. kEnd: it writes nothing more. kBoth: it also reads
/// no more, and resets the connection when something comes. kReset: it resets the connection.
enum class Shut : std::uint32_t { kNo, kEnd, kBoth, kReset };

/// What one side writes, and the other side only reads.
struct SideBlock {
  alignas(kLine) std::atomic<std::uint64_t> produced;  // bytes that it has put into its ring, for the other to take
  std::atomic<Shut> shut;
  std::array<std::atomic<std::uint64_t>, 6> stamps;    // times of the last writes, in turn: stamp_of(); 0: no time
  alignas(kLine) std::atomic<std::uint64_t> consumed;  // bytes that it has taken from the other's ring
  // Odd: the side sleeps, or is about to, until there are bytes (room). Each sleep has its own number, so that it is
  // woken once.
  alignas(kLine) std::atomic<std::uint32_t> bytes_wanted;
  std::atomic<std::uint32_t> room_wanted;
  std::atomic<std::uint32_t> resumed, stopped;  // carrier_switch.cc: claim_resume, claim_stop
  // as `produced`, plus bytes held back; below `produced` if no bytes are held back
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> receive_buffer;  // SO_RCVBUF, for a writer that asked for a bound; 0: not known
};
static_assert(sizeof(SideBlock) == 3 * kLine);
static_assert(offsetof(SideBlock, stamps) + sizeof(SideBlock::stamps) == 64, "they come with the index's line");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// One ring, as one process sees it.
struct RingView {
  SideBlock* own = nullptr;
  const SideBlock* peer = nullptr;
  std::byte* bytes = nullptr;
  std::uint64_t size = 0;  // a power of two
};

/// Two parts if the bytes wrap; otherwise the second part is empty.
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

/// Whether the peer's index is possible: not below the one `seen` last, and at most `most` above it.
[[nodiscard]] inline Refusal check_index(std::uint64_t index, std::uint64_t seen, std::uint64_t most) {
  if (index - seen <= most) [[likely]]
    return Refusal::kNone;
  return static_cast<std::int64_t>(index - seen) < 0 ? Refusal::kIndexBackwards : Refusal::kIndexAhead;
}

/// A stamp says when a write came. Its upper bits are a counter that all processors share, in units of 8 ticks; its low
/// bits are those of the index of the write's first byte. The signed difference of two stamps says which write was
/// earlier, if they are at most half an hour apart at 3 GHz.
[[nodiscard]] constexpr std::uint64_t stamp_of(std::uint64_t index, std::uint64_t ticks) {
  constexpr unsigned kIndexBits = 24;
  return (ticks >> 3) << kIndexBits | (index & ((std::uint64_t{1} << kIndexBits) - 1));
}
/// When the first write of the incoming ring's bytes from `from` on came, as far as the stamps know. The time is too
/// late if more writes have come since than there are stamps, and 0 if there is no stamp. The peer may lie: use it only
/// to order bytes that are there anyway. To be called after a look at the peer's index.
[[nodiscard]] std::uint64_t first_stamp(const RingView& view, std::uint64_t from);

/// Whether the peer sleeps, and nobody has been sent to end this sleep. A sleeper stores its word and then reads the
/// other's index once more. The other stores its index and then reads the word. All four are seq_cst, so at least one
/// side sees what the other stored.
[[nodiscard]] inline bool must_wake(const std::atomic<std::uint32_t>& word, std::uint32_t& woken) {
  const std::uint32_t sleep = word.load(std::memory_order_seq_cst);
  if ((sleep & 1) == 0 || sleep == woken) [[likely]]
    return false;
  woken = sleep;
  return true;
}

class Producer {
 public:
  /// The room to write into, up to most(). Reads the peer's index if less than `wanted` is known to be free. Empty: the
  /// ring is full, or broken.
  Parts<std::byte> room(const RingView& view, std::size_t wanted) {
    if (free(view) < wanted) look(view);
    if (broken_ != Refusal::kNone) return {};
    return parts_of<std::byte>(view, produced_, free(view));
  }
  /// So many of room()'s bytes are written and now published. True: the peer sleeps for them; wake it. `ticks`: a time
  /// between the beginning of the write and now, for readers of several rings (stamp_of()); 0: not needed.
  [[nodiscard]] bool publish(const RingView& view, std::size_t bytes, std::uint64_t ticks = 0) {
    if (bytes == 0) return false;
    if (ticks != 0) stamp(view, produced_, ticks);
    produced_ += bytes;
    // Release pairs with the peer's look(). The store comes before the word is read: see must_wake().
    view.own->produced.store(produced_, std::memory_order_seq_cst);
    return must_wake(view.peer->bytes_wanted, woken_);
  }

  /// So many of room()'s bytes are written, and held back with those that are held already. Only whole pieces of
  /// `segment` bytes are published. Returns as publish().
  [[nodiscard]] bool hold(const RingView& view, std::size_t bytes, std::uint32_t segment, std::uint64_t ticks = 0);
  /// As publish(), if bytes may be held back; these are published first.
  [[nodiscard]] bool release(const RingView& view, std::size_t bytes = 0, std::uint64_t ticks = 0);
  /// How many of produced() bytes are held back.
  [[nodiscard]] std::uint32_t held() const { return held_; }
  [[nodiscard]] std::uint64_t published() const { return produced_ - held_; }

  /// To be called before a sleep until there is room. True: do not sleep, because `wanted` bytes are free already (at
  /// most three quarters of the ring), or the ring is broken.
  [[nodiscard]] bool arm(const RingView& view, std::size_t wanted);
  /// The first half of arm(), for a caller that reads the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  /// From now on at most so many bytes, including the unread ones, may lie in the ring. The bound is never less than
  /// three eighths of the ring: a sleeper with two thirds of the bound unread must have a quarter of the ring by which
  /// it is woken.
  void bound(const RingView& view, std::uint64_t most) {
    withheld_ = static_cast<std::uint32_t>(view.size - std::clamp(most, view.size / 8 * 3, view.size));
  }
  [[nodiscard]] std::uint64_t most(const RingView& view) const { return view.size - withheld_; }
  /// Bytes that the peer has not taken, by its index of now. Not for a ring that is broken().
  [[nodiscard]] std::uint64_t unread(const RingView& view) {
    look(view);
    return produced_ - consumed_;
  }

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t produced() const { return produced_; }

 private:
  /// Acquire: the peer stored the index (release) after its last read of the bytes whose room becomes free.
  void look(const RingView& view) {
    const std::uint64_t index = view.peer->consumed.load(std::memory_order_seq_cst);
    const Refusal why = check_index(index, consumed_, produced_ - consumed_);
    if (why != Refusal::kNone)
      broken_ = why;
    else
      consumed_ = index;
  }
  /// 0 if the bound was set below the unread bytes.
  [[nodiscard]] std::uint64_t free(const RingView& view) const {
    const std::uint64_t unread = produced_ - consumed_;
    return most(view) > unread ? most(view) - unread : 0;
  }
  /// Relaxed is enough: the store of the index orders it.
  void stamp(const RingView& view, std::uint64_t first, std::uint64_t ticks) {
    view.own->stamps[next_stamp_].store(stamp_of(first, ticks), std::memory_order_relaxed);
    if (++next_stamp_ == view.own->stamps.size()) next_stamp_ = 0;
  }

  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;  // the peer's index when last looked at
  std::uint32_t woken_ = 0;     // the last sleep of the peer that was ended
  std::uint32_t sleeps_ = 0;    // number of our own sleeps
  std::uint32_t held_ = 0;      // at most the ring, kMostRing
  std::uint32_t withheld_ = 0;  // bytes of the ring that may not be used: bound()
  Refusal broken_ = Refusal::kNone;
  std::uint8_t next_stamp_ = 0;
};

class Consumer {
 public:
  /// The bytes that are there. Reads the peer's index if fewer than `wanted` are known. Empty: there is nothing, or the
  /// ring is broken.
  Parts<const std::byte> peek(const RingView& view, std::size_t wanted = 1) {
    if (produced_ - consumed_ < wanted) look(view);
    if (broken_ != Refusal::kNone) return {};
    return parts_of<const std::byte>(view, consumed_, produced_ - consumed_);
  }
  /// So many of peek()'s bytes are taken. True: the peer sleeps for their room; wake it.
  [[nodiscard]] bool consume(const RingView& view, std::size_t bytes) {
    const std::uint64_t before = consumed_;
    consumed_ += bytes;
    // A producer sleeps with at least a quarter of the ring unread. So its word is checked at each quarter, and not
    // between.
    const std::uint64_t quarter = view.size / 4;
    if (((before ^ consumed_) & ~(quarter - 1)) == 0) [[likely]] {
      view.own->consumed.store(consumed_, std::memory_order_release);
      return false;
    }
    view.own->consumed.store(consumed_, std::memory_order_seq_cst);
    return must_wake(view.peer->room_wanted, woken_);
  }

  /// The other side died: what it held back is published in its place. False: it held nothing back, or its count is
  /// impossible.
  [[nodiscard]] bool take_held(const RingView& view);

  /// To be called before a sleep until there are bytes. True: do not sleep, because there are bytes, or the ring is
  /// broken.
  [[nodiscard]] bool arm(const RingView& view);
  /// The first half of arm(), for a caller that reads the peer's index itself.
  void want(const RingView& view);
  void disarm(const RingView& view);

  [[nodiscard]] Refusal broken() const { return broken_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  /// The peer's index when last looked at.
  [[nodiscard]] std::uint64_t seen() const { return produced_; }

 private:
  /// Acquire: the peer stored the index (release) after the bytes.
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
