// A lane's byte ring: it lies at the reader, and the writer places bytes into it. Each end keeps cumulative counters of
// its own; what the other end must know of them comes as messages (bytes placed) and in a credit block (bytes taken).
//
// Nothing that the peer writes is an index: positions follow from counters that only this end writes. What the peer
// says is read once, and compared with what it can say at most.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastpath/reason.h"

namespace bypass::fastpath {

/// What the reader writes into the writer's memory, without waking it. Counted since the lane was opened.
struct CreditBlock {
  std::uint64_t placed = 0;    // the reader will honour these, whatever becomes of the link: the writer may forget them
  std::uint64_t consumed = 0;  // the reader's program has taken these: their room is free
};
static_assert(sizeof(CreditBlock) == 16);

/// One look at a block that the peer may be writing. `consumed` is read first: what a mover writes in the order of
/// addresses, or shm by two stores, never shows more consumed than placed.
CreditBlock read_credit(const std::byte* at);
/// One look at a counter of the peer's.
std::uint64_t read_counter(const std::byte* at);
/// The store for movers within one memory; pairs with read_credit.
void write_credit(std::byte* at, const CreditBlock& block);

/// The writer's counters.
class RingWriter {
 public:
  void open(std::uint8_t log2) { *this = {}, log2_ = log2; }
  [[nodiscard]] std::uint64_t capacity() const { return std::uint64_t{1} << log2_; }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  [[nodiscard]] std::uint64_t placed() const { return placed_; }
  [[nodiscard]] std::uint64_t room() const { return capacity() - (sent_ - consumed_); }
  /// Where the next byte goes, and how many may follow before the ring wraps.
  [[nodiscard]] std::uint64_t position() const { return sent_ & (capacity() - 1); }
  [[nodiscard]] std::uint64_t before_wrap() const { return capacity() - position(); }
  void advance(std::uint64_t bytes) { sent_ += bytes; }
  /// An older block than the last one is no news; one that says more than was sent is a lie.
  [[nodiscard]] Reason on_credit(const CreditBlock& block);
  [[nodiscard]] bool is_news(const CreditBlock& block) const {
    return block.placed > placed_ || block.consumed > consumed_;
  }
  /// The reader has said that all is placed.
  void all_placed() { placed_ = sent_; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t placed_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t log2_ = 0;
};

/// The reader's counters.
class RingReader {
 public:
  void open(std::uint8_t log2) { *this = {}, log2_ = log2; }
  [[nodiscard]] std::uint64_t capacity() const { return std::uint64_t{1} << log2_; }
  [[nodiscard]] std::uint64_t placed() const { return placed_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  /// Where the byte with this count lies, and how many follow it before the ring wraps.
  [[nodiscard]] std::uint64_t position(std::uint64_t count) const { return count & (capacity() - 1); }
  [[nodiscard]] std::uint64_t before_wrap(std::uint64_t count) const { return capacity() - position(count); }

  /// A message says that `bytes` more are there.
  [[nodiscard]] Reason place(std::uint64_t bytes);
  void consume(std::uint64_t bytes) { consumed_ += bytes; }

  /// Something the writer does not know.
  [[nodiscard]] bool has_news() const { return placed_ != told_placed_ || offered() != told_consumed_; }
  /// Enough of it to be told unasked.
  [[nodiscard]] bool has_much_news() const {
    return 4 * (placed_ - told_placed_) >= capacity() || 4 * (consumed_ - told_consumed_) >= capacity();
  }
  /// Enough of it to go along with bytes of our own: a write costs as much as they do where a device is software.
  [[nodiscard]] bool has_some_news() const {
    return 16 * (placed_ - told_placed_) >= capacity() || 16 * (consumed_ - told_consumed_) >= capacity();
  }
  /// Enough to wake a writer that waits: it can forget bytes, or a good part of the ring is free.
  [[nodiscard]] bool worth_waking() const {
    return placed_ != told_placed_ || (consumed_ != told_consumed_ && consumed_ == placed_) ||
           4 * (consumed_ - told_consumed_) >= capacity();
  }
  /// By what it was told, the writer has room. If it says that it has none, it has not looked.
  [[nodiscard]] bool told_room() const { return placed_ - told_consumed_ < capacity(); }
  /// The writer has no room, nor will it hear of any before the program reads.
  [[nodiscard]] bool is_full() const { return placed_ - offered() >= capacity(); }
  /// What to write into the writer's block; from now on it counts as told.
  CreditBlock tell();

 private:
  /// Room worth a write of its own (RFC 9293, 3.8.6.2.2): of less than that a writer behind a full ring would make ever
  /// smaller messages, one for each of the reader's reads.
  static constexpr std::uint64_t kWorthAWrite = 32U << 10;
  /// Bytes whose room the writer may know to be free: what was taken, once that is much, or all there was.
  [[nodiscard]] std::uint64_t offered() const {
    const std::uint64_t taken = consumed_ - told_consumed_;
    return consumed_ == placed_ || taken >= kWorthAWrite || 8 * taken >= capacity() ? consumed_ : told_consumed_;
  }

  std::uint64_t placed_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t told_placed_ = 0;
  std::uint64_t told_consumed_ = 0;
  std::uint64_t log2_ = 0;
};

/// Messages on a link, both ways. Each takes a receive at the peer, which has posted `window` (and kUncounted for those
/// that are not counted). Credits come back as a count in the link's block.
class MessageCredits {
 public:
  /// Of the window, for what must get through when data has used up the rest.
  static constexpr std::uint32_t kControlReserve = 8;
  /// Receives to be posted beyond the window: for BLOCKED and CREDIT of the link itself, one of each under way.
  static constexpr std::uint32_t kUncounted = 4;

  void open(std::uint32_t window, std::uint32_t reserve = kControlReserve) {
    *this = {};
    window_ = window;
    reserve_ = reserve;
  }
  [[nodiscard]] bool may_send_control() const { return sent_ - returned_ < window_; }
  [[nodiscard]] bool may_send_data() const { return sent_ - returned_ + reserve_ < window_; }
  void on_sent() { sent_++; }
  /// What the peer's count says; kMessageOverrun: more than were sent.
  [[nodiscard]] Reason on_returned(std::uint64_t count);

  /// A counted message has come. kMessageOverrun: the peer had no receive left for it.
  [[nodiscard]] Reason on_message();
  [[nodiscard]] bool has_news() const { return seen_ != told_; }
  [[nodiscard]] bool has_much_news() const { return 4 * (seen_ - told_) >= window_; }
  std::uint64_t tell() { return told_ = seen_; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t returned_ = 0;
  std::uint64_t seen_ = 0;
  std::uint64_t told_ = 0;
  std::uint32_t window_ = 0;
  std::uint32_t reserve_ = 0;
};

}  // namespace bypass::fastpath
