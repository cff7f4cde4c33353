// LaneWriter: a connection's direction from the program: which bytes of the send buffer go by DATA records and which by
// messages, and from which offset on the buffer must keep them.
//
//   kTcp ──cut()──► kLane ──leave(), LANE_CLOSE──► kQuiescing ──QUIESCE_ACK──► kTcp, RESUME{what was sent}
//                     └──the link fails──► kStopped ──RXSTATE──► kTcp, RESUME{what was placed}
//
// It owns no bytes: records and writes are ranges of the connection's send buffer. It lies in the arena: no pointer, no
// padding.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/gather_test.cc.
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

/// Which of the program's bytes wait for more bytes. They wait until the peer says that it has placed everything sent
/// before them.
enum class LaneGather : std::uint8_t {
  kNothing,
  kLittle,  // less than kGathered bytes, as for an ACK under Nagle's algorithm (RFC 9293, 3.7.4)
  // less than kGatheredAhead bytes, while the peer has Rules::kAhead bytes to place and was asked to report when it
  // has. A reader pays for each message, and gains nothing from one that comes long before it is read
  kAhead,
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
    kOver = 1U << 7,  // QUIESCE_ACK has come and our writes are done: the peer writes our credit block no more
    kCut = 1U << 8,
    kGatherLittle = 1U << 9,
    kGatherAhead = 1U << 10,
    kLastWritten = 1U << 11,  // no later write carries bytes
    kWritesDone = 1U << 12,   // the link has read the bytes of all writes
    kAckCame = 1U << 13,      // QUIESCE_ACK has come and waits for kWritesDone
    kResetSent = 1U << 14,
  };
  /// If one of these is set, there may be something to write, or a write is not the usual one.
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
  /// True if URGENT or FIN is to be sent over TCP.
  [[nodiscard]] bool has_tcp_word() const {
    return path_ == TxPath::kTcp && ((urgent_waits() && !has(kUrgentSent)) || fin_due());
  }
  /// `window`: how many bytes of DATA records the peer takes before its program reads them.
  [[nodiscard]] std::uint64_t data_ready(std::uint64_t window) const {
    return path_ == TxPath::kTcp ? std::min(end_ - off_, window - (tcp_sent_ - tcp_credit_)) : 0;
  }
  [[nodiscard]] bool next_data(Record& out, std::uint64_t most);
  void on_tcp_acked(std::uint64_t offset) { tcp_una_ = std::max(tcp_una_, std::min(offset, tcp_end_)); }
  [[nodiscard]] Reason on_tcp_credit(std::uint64_t taken);
  /// The peer's TCP has ended in order: the peer has received everything.
  void all_acked() {
    set(kFinSent);
    end_is_acked();
  }

  // --- The lane
  void open(std::uint8_t ring_log2) {
    ring_.open(ring_log2);
    sequence_ = 0;
  }
  /// From the next byte on, this direction uses the lane. Returns the epoch that begins here.
  std::uint8_t cut() {
    set(kCut);
    cut_off_ = off_;
    path_ = TxPath::kLane;
    return ++epoch_;
  }
  /// Ends the use of the lane by QUIESCE. If FIN is under way on the lane already, the answer to FIN ends this
  /// direction.
  void quiesce() {
    if (path_ == TxPath::kLane && !has(kFinSent)) path_ = TxPath::kQuiescing;
  }
  void stop() {
    if (path_ != TxPath::kTcp) path_ = TxPath::kStopped;
  }
  /// From `offset` on, this direction uses TCP. The buffer's bytes from there on are sent again.
  void resume_at(std::uint64_t offset);
  /// The peer has received everything including the end: this direction is over.
  void end_is_acked() {
    set(kFinAcked);
    lane_una_ = end_;
    path_ = TxPath::kTcp;
  }
  void all_placed() { ring_.all_placed(); }
  /// Reads what the reader has placed and taken.
  [[nodiscard]] Reason on_credit(const CreditBlock& block) { return ring_.on_credit(block); }
  void detach() {
    clear(kBlockedTold | kQuiesceSent | kOver | kCut | kLastWritten | kWritesDone | kAckCame | kResetSent);
  }

  // --- Messages
  [[nodiscard]] bool data_due() const {
    return path_ == TxPath::kLane && off_ < end_ && ring_.room() != 0 && !is_gathering();
  }
  [[nodiscard]] bool fin_due() const { return has(kFinQueued) && !has(kFinSent) && off_ == end_; }
  /// True if nothing can be sent, or written by the program, before the reader has placed or taken more.
  [[nodiscard]] bool waits_for_credit() const;
  /// True if that is to be told to the peer.
  [[nodiscard]] bool blocked() const { return Rules::kSaysBlocked && waits_for_credit() && !has(kBlockedTold); }
  /// Whether `bytes` that the program writes now would fit into one message, together with all that waits.
  [[nodiscard]] bool fits_whole(std::uint64_t bytes) const {
    const std::uint64_t all = end_ - off_ + bytes;
    if (all > kGatheredAhead) return false;  // LinkEnd::kQuantum: more than one turn carries
    // That the program waits for room need not be sent again.
    const unsigned told = has(kBlockedTold) ? unsigned{kBufferBlocked} : 0;
    return !has(kUnquiet & ~told) && ring_.room() >= all && ring_.before_wrap() >= all;
  }
  /// A message that carries no bytes. `to`: the peer's lane.
  [[nodiscard]] Write notify(Op op, const LaneAddress& to);
  [[nodiscard]] Write data_message(const LaneTurn& turn, const LaneAddress& to);
  [[nodiscard]] Write bytes_message(const ByteSource& source, std::uint64_t bytes, const LaneAddress& to);

 private:
  [[nodiscard]] bool is_ahead() const { return ring_.sent() - ring_.placed() >= Rules::kAhead; }
  /// Whether the next few bytes will be gathered. The peer is then asked to say when this is no longer needed.
  [[nodiscard]] bool will_gather() const {
    if (!has(kGatherLittle | kGatherAhead)) [[likely]]
      return false;
    return !is_corked() && !has(kBlockedTold) && (has(kGatherLittle) || is_ahead());
  }

  std::uint64_t off_ = 0;       // the next byte to be sent
  std::uint64_t end_ = 0;       // after the last byte written
  std::uint64_t tcp_una_ = 0;   // TCP has acknowledged what went over it below this offset
  std::uint64_t tcp_end_ = 0;   // after the last byte that went over TCP
  std::uint64_t cut_off_ = 0;   // offset at which the lane's part begins
  std::uint64_t lane_una_ = 0;  // what went over the last lane is placed below this offset
  std::uint64_t urgent_off_ = 0;
  std::uint64_t tcp_sent_ = 0, tcp_credit_ = 0;  // DATA bytes: sent, and taken by the peer's program
  RingWriter ring_;
  std::uint16_t flags_ = 0;
  std::uint16_t sequence_ = 0;
  std::uint16_t cork_ = 0;  // size of a segment in bytes; 0: not corked
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
