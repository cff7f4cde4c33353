// LaneReader: a connection's direction towards the program: bytes of DATA records, and bytes that the peer has placed
// in the ring, in the stream's order.
//
//   kTcp ──CUT──► kLane ──RESUME──► kBack ──the ring's bytes are read──► kTcp
//
// A message's bytes have their place in the stream once CUT says where the lane's part begins. The object lies in the
// arena: no pointer, no padding.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/model_test.cc.
#pragma once

#include <cstdint>

#include "fastpath/framed/control.h"
#include "fastpath/lane/lane_rules.h"
#include "fastpath/lane/message.h"
#include "fastpath/lane/ring.h"
#include "fastpath/reason.h"

namespace bypass::fastpath {

class LaneReader {
 public:
  enum Flag : std::uint16_t {
    kFin = 1U << 0,         // fin_off_ is known
    kLaneFin = 1U << 1,     // FIN came as a message, before or after its CUT
    kOver = 1U << 2,        // FIN, QUIESCE or RESET has come: the peer leaves our ring alone
    kLaneUrgent = 1U << 3,  // urgent_count_ waits for CUT
    kPeerBlocked = 1U << 4,
    kTellNow = 1U << 5,
    kCreditWritten = 1U << 6,
    kCut = 1U << 7,      // this lane has had its CUT
    kAckOwed = 1U << 8,  // QUIESCE_ACK
  };
  /// If one of these is set, there is something to write.
  static constexpr unsigned kUnquiet = kPeerBlocked | kTellNow | kCreditWritten | kAckOwed;

  enum class From : std::uint8_t { kNothing, kTcp, kRing };
  struct Readable {
    From from = From::kNothing;
    std::uint64_t bytes = 0;     // in one piece of the ring; TCP's queue may have several pieces
    std::uint64_t position = 0;  // offset in the ring
  };
  /// All that can be read, in the stream's order: first TCP's queue, then the ring, then the rest of TCP's queue.
  struct Parts {
    std::uint64_t tcp = 0;
    std::uint64_t ring = 0, ring_at = 0;  // ring bytes, from the byte with count ring_at on
    std::uint64_t tcp_behind = 0;
    [[nodiscard]] std::uint64_t bytes() const { return tcp + ring + tcp_behind; }
  };

  [[nodiscard]] bool has(unsigned flags) const { return (flags_ & flags) != 0; }
  void set(unsigned flags) { flags_ = static_cast<std::uint16_t>(flags_ | flags); }
  void clear(unsigned flags) { flags_ = static_cast<std::uint16_t>(flags_ & ~flags); }
  [[nodiscard]] RxPath path() const { return path_; }
  [[nodiscard]] const RingReader& ring() const { return ring_; }

  // --- The program's side
  /// The next bytes of the stream. `ring_first`: see LaneRules::kRingBeforeTcp.
  [[nodiscard]] Readable readable(bool ring_first) const;
  [[nodiscard]] Parts parts() const;
  void take(std::uint64_t bytes, From from);
  [[nodiscard]] std::uint64_t consumed() const { return rcv_; }
  [[nodiscard]] bool at_eof() const { return has(kFin) && rcv_ == fin_off_; }
  [[nodiscard]] std::uint64_t urgent_mark() const { return urgent_off_; }
  /// `window`: how many bytes of DATA records are taken before the program reads them.
  [[nodiscard]] bool is_full(std::uint64_t window) const;

  // --- Records
  [[nodiscard]] bool tcp_credit_due(std::uint64_t window) const {
    return !has(kFin) && tcp_taken_ != tcp_told_ && 4 * (tcp_taken_ - tcp_told_) >= window;
  }
  /// The number that CREDIT carries.
  [[nodiscard]] std::uint64_t tell_tcp_credit() { return tcp_told_ = tcp_taken_; }
  /// The stream offset at which the lane's part begins, as far as it is known.
  [[nodiscard]] std::uint64_t before_lane() const { return has(kCut) ? cut_off_ : in_off_; }
  [[nodiscard]] Reason on_data(std::uint64_t bytes, std::uint64_t window);
  [[nodiscard]] Reason on_cut(const Record& record, std::uint16_t lane);
  /// `of_link`: the record names this lane's link. `is_final`: this end has sent RXSTATE.
  [[nodiscard]] Reason on_resume(const Record& record, bool of_link, bool is_final);
  [[nodiscard]] Reason on_fin(const Record& record);
  void on_urgent(std::uint64_t offset);
  /// True before the first lane.
  [[nodiscard]] bool has_no_epoch() const { return epoch_ == 0; }

  // --- Messages
  void open(std::uint8_t ring_log2);
  /// Takes the message's sequence number and its bytes.
  [[nodiscard]] Reason take_message(const Message& message, std::uint32_t length);
  void on_urgent_message();
  void on_fin_message();
  /// Nothing more is placed in our ring. `answers`: QUIESCE_ACK can be sent.
  void end_of_ring(bool answers);

  // --- What the writer is to be told
  /// The writer waits, and there is a reason to wake it: news, or earlier news that it has not looked at.
  [[nodiscard]] bool credit_due() const {
    return has(kPeerBlocked) && !has(kOver) && (ring_.worth_waking() || ring_.told_room());
  }
  /// False after the peer's end: the credit block belongs to the peer then.
  [[nodiscard]] bool has_news() const { return ring_.has_news() && !has(kOver); }
  [[nodiscard]] bool is_news_due() const { return has(kTellNow) || ring_.has_much_news() || credit_due(); }
  void tell_soon() {
    if (ring_.has_news()) set(kTellNow);
  }
  [[nodiscard]] CreditBlock tell();

  /// Leaves the ring if the lane's part has ended and was read.
  void settle();
  void detach() { clear(kOver | kLaneUrgent | kPeerBlocked | kTellNow | kCreditWritten | kCut | kAckOwed); }

 private:
  void place_fin();
  void place_urgent();

  std::uint64_t rcv_ = 0;                       // the next byte for the program
  std::uint64_t in_off_ = 0;                    // the next DATA byte's offset
  std::uint64_t tcp_ready_ = 0;                 // DATA bytes not read yet
  std::uint64_t tcp_taken_ = 0, tcp_told_ = 0;  // DATA bytes read, and those reported by CREDIT
  std::uint64_t cut_off_ = 0, resume_off_ = 0;
  std::uint64_t fin_off_ = 0, urgent_off_ = 0;
  std::uint64_t urgent_count_ = 0;  // ring bytes up to the last urgent one, counted since the lane was opened
  RingReader ring_;
  std::uint16_t flags_ = 0;
  std::uint16_t sequence_ = 0;
  RxPath path_ = RxPath::kTcp;
  std::uint8_t epoch_ = 0;
  std::uint8_t reserved_[2] = {};
};

inline LaneReader::Readable LaneReader::readable(bool ring_first) const {
  const bool before_cut = path_ != RxPath::kTcp && rcv_ < cut_off_;
  if (path_ == RxPath::kTcp || before_cut) {
    const std::uint64_t bytes = before_cut && cut_off_ - rcv_ < tcp_ready_ ? cut_off_ - rcv_ : tcp_ready_;
    return {bytes != 0 ? From::kTcp : From::kNothing, bytes, 0};
  }
  if (!ring_first && tcp_ready_ != 0) return {From::kTcp, tcp_ready_, 0};
  const std::uint64_t end = path_ == RxPath::kBack ? resume_off_ : cut_off_ + ring_.placed();
  const std::uint64_t at = ring_.consumed(), whole = ring_.before_wrap(at);
  const std::uint64_t bytes = end - rcv_ < whole ? end - rcv_ : whole;
  return {bytes != 0 ? From::kRing : From::kNothing, bytes, ring_.position(at)};
}

inline LaneReader::Parts LaneReader::parts() const {
  if (path_ == RxPath::kTcp) return {.tcp = tcp_ready_};
  Parts out;
  if (rcv_ < cut_off_) out.tcp = tcp_ready_ < cut_off_ - rcv_ ? tcp_ready_ : cut_off_ - rcv_;
  out.tcp_behind = tcp_ready_ - out.tcp;
  out.ring_at = ring_.consumed();
  out.ring = ring_.placed() - out.ring_at;
  return out;
}

inline void LaneReader::take(std::uint64_t bytes, From from) {
  if (from == From::kRing) {
    ring_.consume(bytes);
  } else {
    tcp_ready_ -= bytes;
    tcp_taken_ += bytes;
  }
  rcv_ += bytes;
}

inline void LaneReader::settle() {
  if (path_ == RxPath::kBack && rcv_ == resume_off_) path_ = RxPath::kTcp;
  if (path_ == RxPath::kLane && has(kLaneFin) && at_eof()) {
    path_ = RxPath::kTcp;
    in_off_ = fin_off_;
  }
}

inline Reason LaneReader::take_message(const Message& message, std::uint32_t length) {
  if (message.sequence != sequence_) return Reason::kBadSequence;
  sequence_ = (sequence_ + 1) & kSequenceMask;
  if (!carries_bytes(message.op)) return Reason::kNone;
  return has(kOver) ? Reason::kBadState : ring_.place(length);
}

inline CreditBlock LaneReader::tell() {
  if (credit_due()) set(kCreditWritten);
  if (has(kCreditWritten)) clear(kPeerBlocked);
  clear(kTellNow);
  return ring_.tell();
}

}  // namespace bypass::fastpath
