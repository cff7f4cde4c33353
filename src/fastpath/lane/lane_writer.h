// LaneWriter: a connection's direction from the program: which bytes of the send buffer go by DATA records and which by
// messages, and from where on they may be forgotten.
//
//   kTcp ──cut()──► kLane ──leave(), LANE_CLOSE──► kQuiescing ──QUIESCE_ACK──► kTcp, RESUME{what was sent}
//                     └──the link fails──► kStopped ──RXSTATE──► kTcp, RESUME{what was placed}
//
// It owns no bytes: records and writes are ranges of the connection's send buffer. It lies in the arena: no pointer, no
// padding.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastpath/framed/control.h"
#include "fastpath/lane/lane_rules.h"
#include "fastpath/lane/message.h"
#include "fastpath/lane/ring.h"
#include "fastpath/link/link.h"
#include "fastpath/reason.h"

namespace bypass::fastpath {

/// What of the program's bytes waits for more, and for how long: until the peer says that it has placed what was sent
/// before them.
enum class LaneGather : std::uint8_t {
  kNothing,
  kLittle,  // less than kGathered bytes, as for an ACK under Nagle's algorithm (RFC 9293, 3.7.4)
  kAhead,   // less than kGatheredAhead, while the peer has Rules::kAhead bytes to place, and has been asked to say so:
            // a reader pays for each message, and gains nothing from one that comes long before it is read
};

template <typename Rules>
class LaneWriter {
 public:
  enum Flag : std::uint16_t {
    kFinQueued = 1U << 0,
    kFinSent = 1U << 1,
    kFinAcked = 1U << 2,
    kUrgentSent = 1U << 3,
    kBufferBlocked = 1U << 4,
    kBlockedTold = 1U << 5,
    kQuiesceSent = 1U << 6,
    kOver = 1U << 7,  // QUIESCE_ACK has come, and our writes are done: the peer leaves our credit block alone
    kCut = 1U << 8,
    kGatherLittle = 1U << 9,
    kGatherAhead = 1U << 10,
    kLastWritten = 1U << 11,  // no write behind it carries bytes
    kWritesDone = 1U << 12,   // nor does the link read any
    kAckCame = 1U << 13,      // QUIESCE_ACK waits for that
    kResetSent = 1U << 14,
  };
  /// With one of these there may be something to write, or a write is not what it usually is.
  static constexpr unsigned kUnquiet = kFinQueued | kBufferBlocked | kQuiesceSent | kGatherLittle;
  static constexpr std::uint64_t kGathered = 2048, kGatheredAhead = 32U << 10;

  [[nodiscard]] bool has(unsigned flags) const { return (flags_ & flags) != 0; }
  void set(unsigned flags) { flags_ = static_cast<std::uint16_t>(flags_ | flags); }
  void clear(unsigned flags) { flags_ = static_cast<std::uint16_t>(flags_ & ~flags); }
  [[nodiscard]] TxPath path() const { return path_; }
  [[nodiscard]] std::uint8_t epoch() const { return epoch_; }
  [[nodiscard]] const RingWriter& ring() const { return ring_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] std::uint64_t next_offset() const { return off_; }
  [[nodiscard]] std::uint64_t cut_offset() const { return cut_off_; }
  [[nodiscard]] bool all_sent() const { return off_ == end_; }
  [[nodiscard]] bool urgent_waits() const { return urgent_off_ > off_; }

  // --- The program's side
  void write(std::uint64_t bytes) { end_ += bytes; }
  void gather(LaneGather what) {
    if (what == LaneGather::kNothing && !has(kGatherLittle | kGatherAhead)) [[likely]]
      return;
    if (is_corked()) return;
    clear(kGatherLittle | kGatherAhead);
    if (what != LaneGather::kNothing) set(what == LaneGather::kLittle ? kGatherLittle : kGatherAhead);
  }
  [[nodiscard]] bool is_gathering() const;
  void cork(std::uint16_t segment) {
    cork_ = segment;
    clear(kGatherAhead);
    set(kGatherLittle);
  }
  void uncork() {
    cork_ = 0;
    gather(LaneGather::kNothing);
  }
  [[nodiscard]] bool is_corked() const { return cork_ != 0; }
  void mark_urgent() { urgent_off_ = end_; }
  void shutdown() {
    set(kFinQueued);
    clear(kBufferBlocked);
  }
  void wait_for_buffer() {
    const bool comes = off_ < end_ || ring_.placed() != ring_.sent();
    if (comes && !has(kFinQueued)) set(kBufferBlocked);
  }
  [[nodiscard]] bool take_room_for_waiter() {
    if (!has(kBufferBlocked) || path_ != TxPath::kLane || off_ < end_ || waits_for_credit()) return false;
    clear(kBufferBlocked);
    return true;
  }
  [[nodiscard]] std::uint64_t una() const;

  // --- Over TCP
  /// URGENT or FIN is to be said.
  [[nodiscard]] bool has_tcp_word() const {
    return path_ == TxPath::kTcp && ((urgent_waits() && !has(kUrgentSent)) || fin_due());
  }
  /// `window`: bytes of DATA records that the peer takes ahead of its program.
  [[nodiscard]] std::uint64_t data_ready(std::uint64_t window) const {
    return path_ == TxPath::kTcp ? std::min(end_ - off_, window - (tcp_sent_ - tcp_credit_)) : 0;
  }
  [[nodiscard]] bool next_data(Record& out, std::uint64_t most);
  void on_tcp_acked(std::uint64_t offset) { tcp_una_ = std::max(tcp_una_, std::min(offset, tcp_end_)); }
  [[nodiscard]] Reason on_tcp_credit(std::uint64_t taken);
  /// The peer's TCP has ended in order: it has everything.
  void all_acked() {
    set(kFinSent);
    end_is_acked();
  }

  // --- The lane
  void open(std::uint8_t ring_log2) {
    ring_.open(ring_log2);
    sequence_ = 0;
  }
  /// From the next byte on, this direction is on the lane. Returns the epoch that begins.
  std::uint8_t cut() {
    set(kCut);
    cut_off_ = off_;
    path_ = TxPath::kLane;
    return ++epoch_;
  }
  /// Where FIN is under way on the lane, its answer ends this direction.
  void quiesce() {
    if (path_ == TxPath::kLane && !has(kFinSent)) path_ = TxPath::kQuiescing;
  }
  void stop() {
    if (path_ != TxPath::kTcp) path_ = TxPath::kStopped;
  }
  /// From `offset` on, this direction is TCP's. What the buffer has from there on is sent again.
  void resume_at(std::uint64_t offset);
  /// The peer has everything, the end included: nothing of this direction is left.
  void end_is_acked() {
    set(kFinAcked);
    lane_una_ = end_;
    path_ = TxPath::kTcp;
  }
  void all_placed() { ring_.all_placed(); }
  /// The reader has placed or taken more.
  [[nodiscard]] Reason on_credit(const CreditBlock& block) { return ring_.on_credit(block); }
  void detach() {
    clear(kBlockedTold | kQuiesceSent | kOver | kCut | kLastWritten | kWritesDone | kAckCame | kResetSent);
  }

  // --- Messages
  [[nodiscard]] bool data_due() const {
    return path_ == TxPath::kLane && off_ < end_ && ring_.room() != 0 && !is_gathering();
  }
  [[nodiscard]] bool fin_due() const { return has(kFinQueued) && !has(kFinSent) && off_ == end_; }
  /// Nothing can be sent, or written, before the reader has placed or taken more.
  [[nodiscard]] bool waits_for_credit() const;
  /// That is to be said.
  [[nodiscard]] bool blocked() const { return Rules::kSaysBlocked && waits_for_credit() && !has(kBlockedTold); }
  /// Were the program to write `bytes` now, all that there is would fit into one message.
  [[nodiscard]] bool fits_whole(std::uint64_t bytes) const {
    const std::uint64_t all = end_ - off_ + bytes;
    if (all > kGatheredAhead) return false;  // LinkEnd::kQuantum: the next one's turn
    // That somebody waits for room is nothing to be said again.
    const unsigned told = has(kBlockedTold) ? unsigned{kBufferBlocked} : 0;
    return !has(kUnquiet & ~told) && ring_.room() >= all && ring_.before_wrap() >= all;
  }
  /// One that carries no bytes. `to`: the peer's lane.
  [[nodiscard]] Write notify(Op op, const LaneAddress& to);
  [[nodiscard]] Write data_message(const LaneTurn& turn, const LaneAddress& to);
  [[nodiscard]] Write bytes_message(const ByteSource& source, std::uint64_t bytes, const LaneAddress& to);

 private:
  [[nodiscard]] bool is_ahead() const { return ring_.sent() - ring_.placed() >= Rules::kAhead; }
  /// The next little will be gathered: the peer is to say when it need not be.
  [[nodiscard]] bool will_gather() const {
    if (!has(kGatherLittle | kGatherAhead)) [[likely]]
      return false;
    return !is_corked() && !has(kBlockedTold) && (has(kGatherLittle) || is_ahead());
  }

  std::uint64_t off_ = 0;       // the next byte to be sent
  std::uint64_t end_ = 0;       // behind the last byte written
  std::uint64_t tcp_una_ = 0;   // below it, TCP's peer has what went over TCP
  std::uint64_t tcp_end_ = 0;   // behind the last byte that went over TCP
  std::uint64_t cut_off_ = 0;   // where the lane's part begins
  std::uint64_t lane_una_ = 0;  // below it, what went over the last lane is placed
  std::uint64_t urgent_off_ = 0;
  std::uint64_t tcp_sent_ = 0, tcp_credit_ = 0;  // DATA bytes: sent, taken by the peer's program
  RingWriter ring_;
  std::uint16_t flags_ = 0;
  std::uint16_t sequence_ = 0;
  std::uint16_t cork_ = 0;  // bytes of a segment; 0: nothing is corked
  TxPath path_ = TxPath::kTcp;
  std::uint8_t epoch_ = 0;
};

template <typename Rules>
bool LaneWriter<Rules>::is_gathering() const {
  if (!has(kGatherLittle | kGatherAhead)) [[likely]]
    return false;
  const std::uint64_t bytes = end_ - off_;
  if (has(kFinQueued) || urgent_waits()) return false;
  if (is_corked()) return bytes < cork_;
  if (has(kGatherLittle)) return bytes < kGathered && ring_.placed() != ring_.sent();
  return bytes < kGatheredAhead && has(kBlockedTold) && is_ahead();
}

}  // namespace bypass::fastpath
