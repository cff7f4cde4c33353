// A lane's byte ring. The ring lies in the reader's memory, and the writer places bytes into it. Each end keeps
// cumulative counters of its own. It learns the other end's counters from messages (bytes placed) and from a credit
// block (bytes taken).
//
// Nothing that the peer writes is used as an index: positions follow from counters that only this end writes. What the
// peer says is read once, and compared with the greatest value that it can have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastpath/reason.h"

namespace bypass::fastpath {

/// What the reader writes into the writer's memory, without waking the writer. Both count from the opening of the lane.
struct CreditBlock {
  std::uint64_t placed = 0;    // the reader keeps these even if the link dies: the writer may forget them
  std::uint64_t consumed = 0;  // the reader's program has taken these: their room is free
};
static_assert(sizeof(CreditBlock) == 16);

/// Reads a block once, while the peer may be writing it. `consumed` is read first. A mover writes in the order of
/// addresses, and shm by two stores, so the result never shows more consumed than placed.
CreditBlock read_credit(const std::byte* at);
/// Reads once a counter that the peer writes.
std::uint64_t read_counter(const std::byte* at);
/// Writes a block within one memory; pairs with read_credit().
void write_credit(std::byte* at, const CreditBlock& block);

/// The writer's counters.
class RingWriter {
 public:
  void open(std::uint8_t log2) { *this = {}, log2_ = log2; }
  [[nodiscard]] std::uint64_t capacity() const { return std::uint64_t{1} << log2_; }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  [[nodiscard]] std::uint64_t placed() const { return placed_; }
  [[nodiscard]] std::uint64_t room() const { return capacity() - (sent_ - consumed_); }
  /// The ring offset of the next byte, and how many may follow before the ring wraps.
  [[nodiscard]] std::uint64_t position() const { return sent_ & (capacity() - 1); }
  [[nodiscard]] std::uint64_t before_wrap() const { return capacity() - position(); }
  void advance(std::uint64_t bytes) { sent_ += bytes; }
  /// An older block than the last one changes nothing. A block that says more than was sent breaks the protocol.
  [[nodiscard]] Reason on_credit(const CreditBlock& block);
  [[nodiscard]] bool is_news(const CreditBlock& block) const {
    return block.placed > placed_ || block.consumed > consumed_;
  }
  /// The reader has said that everything is placed.
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
  /// The ring offset of the byte with this count, and how many follow it before the ring wraps.
  [[nodiscard]] std::uint64_t position(std::uint64_t count) const { return count & (capacity() - 1); }
  [[nodiscard]] std::uint64_t before_wrap(std::uint64_t count) const { return capacity() - position(count); }

  /// A message says that `bytes` more are in the ring.
  [[nodiscard]] Reason place(std::uint64_t bytes);
  void consume(std::uint64_t bytes) { consumed_ += bytes; }

  /// True if there is something the writer does not know.
  [[nodiscard]] bool has_news() const { return placed_ != told_placed_ || offered() != told_consumed_; }
  /// True if there is enough news to send it by itself.
  [[nodiscard]] bool has_much_news() const {
    return 4 * (placed_ - told_placed_) >= capacity() || 4 * (consumed_ - told_consumed_) >= capacity();
  }
  /// True if there is enough news to go along with bytes of our own. Where the device is software, a write for the news
  /// costs as much as one for the bytes.
  [[nodiscard]] bool has_some_news() const {
    return 16 * (placed_ - told_placed_) >= capacity() || 16 * (consumed_ - told_consumed_) >= capacity();
  }
  /// True if there is enough to wake a writer that waits: it can forget bytes, or a good part of the ring is free.
  [[nodiscard]] bool worth_waking() const {
    return placed_ != told_placed_ || (consumed_ != told_consumed_ && consumed_ == placed_) ||
           4 * (consumed_ - told_consumed_) >= capacity();
  }
  /// True if the writer has room by what was reported to it. A writer that says it has none has not looked.
  [[nodiscard]] bool told_room() const { return placed_ - told_consumed_ < capacity(); }
  /// True if the writer has no room, and will be told of none before the program reads.
  [[nodiscard]] bool is_full() const { return placed_ - offered() >= capacity(); }
  /// The block to write into the writer's memory; from now on its counts are taken as reported.
  CreditBlock tell();

 private:
  /// Room that is worth a write of its own (RFC 9293, 3.8.6.2.2). For less room a writer behind a full ring would make
  /// ever smaller messages, one for each read of the reader.
  static constexpr std::uint64_t kWorthAWrite = 32U << 10;
  /// Bytes whose room is reported as free: what the program took, once it is much, or when it took all there was.
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

/// Credits for messages on a link, both ways. Each message uses one receive that the peer has posted. The peer posts
/// `window` receives, and kUncounted more for messages that are not counted. Credits return as a count in the link's
/// block.
class MessageCredits {
 public:
  /// The part of the window that is kept for control messages when data has used up the rest.
  static constexpr std::uint32_t kControlReserve = 8;
  /// Receives posted beyond the window: for the link's own BLOCKED and CREDIT, one of each under way.
  static constexpr std::uint32_t kUncounted = 4;

  void open(std::uint32_t window, std::uint32_t reserve = kControlReserve) {
    *this = {};
    window_ = window;
    reserve_ = reserve;
  }
  [[nodiscard]] bool may_send_control() const { return sent_ - returned_ < window_; }
  [[nodiscard]] bool may_send_data() const { return sent_ - returned_ + reserve_ < window_; }
  void on_sent() { sent_++; }
  /// Takes the count that the peer returned. kMessageOverrun: it exceeds what was sent.
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
