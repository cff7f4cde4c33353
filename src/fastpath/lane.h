// Lane: one end of a connection in framed mode, and its place on a link.
//
// A direction's bytes travel as DATA records over TCP, or as messages over a lane of a link. It changes from one to the
// other at stream offsets: CUT, when a lane is open; RESUME, when the link has died or the lane is left. TCP stays
// established beneath and carries the control records, in order and for certain; of it this needs nothing else.
//
//   writing   kTcp ──cut()──► kLane ──leave(), LANE_CLOSE──► kQuiescing ──QUIESCE_ACK──► kTcp, RESUME{what was sent}
//                               └──the link fails──► kStopped ──RXSTATE──► kTcp, RESUME{what was placed}
//   reading   kTcp ──CUT──► kLane ──RESUME──► kBack ──the ring's bytes are read──► kTcp
//
// What must hold, whatever a link or its end does (tests/fastpath/model_test.cc explores it):
//   * The bytes that are read are the bytes that were written, in order, none twice.
//   * una() covers no byte that may have to be sent again: the reader has said that it is placed, or TCP has it.
//   * Once an end has said RXSTATE, no message of that link counts: the number in it is final.
//   * A direction uses a lane once. To come back, both ends open another one.
//
// It owns no bytes. The send buffer is the connection's own, numbered by stream offsets: records and writes are ranges
// of it, and a change of path copies nothing. Received bytes lie in TCP's queue or in the ring.
//
// It lies in the arena: plain numbers, no pointer, no time. The caller holds the shard's lock, pulls records and writes
// (next_record, LinkEnd::next_write) when there is room for them, and ends the connection with RST once broken().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/control.h"
#include "fastpath/link.h"
#include "fastpath/message.h"
#include "fastpath/reason.h"
#include "fastpath/ring.h"

namespace bypass::fastpath {

/// The protocol's rules that the model's test leaves out one by one, to show that each is needed and that it would
/// notice.
struct LaneRules {
  static constexpr bool kCountIsOfTheLane = true;  // RXSTATE counts since the lane was opened, not since the stream was
  static constexpr bool kForeignStateEndsLink =
      true;  // RXSTATE, LINKDOWN end the link also where this direction is not on it
  static constexpr bool kFinalCountIsFrozen = true;  // a message after RXSTATE does not count
  static constexpr bool kSaysBlocked = true;         // a writer without room says so
  static constexpr bool kFinIsRepeated = true;       // RESUME takes back a FIN that was not acknowledged
  static constexpr bool kKeepsUntilPlaced = true;    // I3
  static constexpr bool kRingBeforeTcp = true;       // bytes of the ring are read before those behind RESUME
  static constexpr bool kWaitsForDevice = true;      // the peer's word alone does not free what a device may send again
  static constexpr bool kBothSayTheirEnd = true;     // FIN, QUIESCE or RESET, also who has never cut to the lane
  static constexpr bool kNothingBehindTheEnd = true;  // no RESET behind an end and the answer to the peer's
  /// Bytes that the peer has not placed from which on it is far behind: Gather::kAhead.
  static constexpr std::uint64_t kAhead = 64U << 10;
};

/// A connection's send buffer: a ring of `capacity` bytes (a power of two), in which stream offset `origin` lies first.
struct ByteSource {
  const std::byte* block = nullptr;
  std::uint64_t origin = 0;
  std::uint64_t capacity = 0;
  /// The bytes [offset, offset + length): two parts where it wraps.
  void spans(std::uint64_t offset, std::uint64_t length, std::span<const std::byte> (&out)[2]) const;
};

enum class TxPath : std::uint8_t { kTcp, kLane, kQuiescing, kStopped };
enum class RxPath : std::uint8_t { kTcp, kLane, kBack };
enum class Attachment : std::uint8_t { kNone, kOffering, kOffered, kOpen };
enum class LaneLink : std::uint8_t { kUp, kFailed, kFinal };

struct LaneConfig {
  bool opens = false;                     // the end that offers lanes: TCP's client
  std::uint32_t tcp_window = 256U << 10;  // DATA bytes that a reader takes ahead of its program; both ends use the same
};

/// What one turn may use: see LinkEnd.
struct LaneTurn {
  std::span<const std::byte> memory;  // the link's: the credit block is read from it
  ByteSource source;
  std::uint64_t most = 0;  // bytes
  bool may_send_data = true, may_send_control = true;
};

template <typename Rules = LaneRules>
class BasicLane {
 public:
  explicit BasicLane(const LaneConfig& config);

  // --- The program's side
  /// `bytes` more lie in the send buffer.
  void write(std::uint64_t bytes) { end_ += bytes; }
  /// What of the program's bytes waits for more, and for how long: until the peer says that it has placed what was sent
  /// before them.
  enum class Gather : std::uint8_t {
    kNothing,
    kLittle,  // less than kGathered bytes, as for an ACK under Nagle's algorithm (RFC 9293, 3.7.4)
    kAhead,  // less than kGatheredAhead, while the peer has Rules::kAhead bytes to place, and has been asked to say so:
             // a reader pays for each message, and gains nothing from one that comes long before it is read
  };
  static constexpr std::uint64_t kGathered = 2048, kGatheredAhead = 32U << 10;
  void gather(Gather what) {
    if (what == Gather::kNothing && !has(kGatherLittle | kGatherAhead)) [[likely]]
      return;
    if (is_corked()) return;
    flags_ &= ~std::uint32_t{kGatherLittle | kGatherAhead};
    if (what != Gather::kNothing) flags_ |= what == Gather::kLittle ? kGatherLittle : kGatherAhead;
  }
  [[nodiscard]] bool is_gathering() const {
    if (!has(kGatherLittle | kGatherAhead)) [[likely]]
      return false;
    const std::uint64_t bytes = end_ - off_;
    if (has(kFinQueued) || urgent_off_ > off_) return false;
    if (is_corked()) return bytes < cork_;
    if (has(kGatherLittle)) return bytes < kGathered && tx_ring_.placed() != tx_ring_.sent();
    return bytes < kGatheredAhead && has(kBlockedTold) && is_ahead();
  }
  /// TCP_CORK, MSG_MORE: what is less than `segment` bytes waits for uncork(), or for the end of the stream. No word
  /// of the peer's ends that.
  void cork(std::uint16_t segment) {
    cork_ = segment;
    flags_ = (flags_ & ~std::uint32_t{kGatherAhead}) | kGatherLittle;
  }
  void uncork() {
    cork_ = 0;
    gather(Gather::kNothing);
  }
  [[nodiscard]] bool is_corked() const { return cork_ != 0; }
  /// The last byte written is urgent.
  void mark_urgent() { urgent_off_ = end_; }
  void shutdown_send() { flags_ = (flags_ | kFinQueued) & ~std::uint32_t{kBufferBlocked}; }
  /// The program waits for room in the send buffer. Where all that the lane took is placed, TCP's ACK will bring it;
  /// who has ended its direction writes no more.
  void wait_for_buffer() {
    const bool comes = off_ < end_ || tx_ring_.placed() != tx_ring_.sent();
    if (comes && !has(kFinQueued)) flags_ |= kBufferBlocked;
  }
  /// True, once: the program waits for room and the peer was not told, but meanwhile everything has been placed. No
  /// message will say so: the connection is to have its turn.
  [[nodiscard]] bool take_room_for_waiter() {
    if (!has(kBufferBlocked) || tx_path_ != TxPath::kLane || off_ < end_ || waits_for_credit()) return false;
    flags_ &= ~std::uint32_t{kBufferBlocked};
    return true;
  }
  /// Everything before it may be forgotten.
  [[nodiscard]] std::uint64_t una() const;
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] std::uint64_t next_offset() const { return off_; }

  enum class From : std::uint8_t { kNothing, kTcp, kRing };
  struct Readable {
    From from = From::kNothing;
    std::uint64_t bytes = 0;     // in one piece (of the ring; TCP's queue may have several)
    std::uint64_t position = 0;  // in the ring
  };
  /// The next bytes of the stream.
  [[nodiscard]] Readable readable() const;
  /// All that can be read, in the stream's order: of TCP's queue, of the ring, of TCP's queue again.
  struct Parts {
    std::uint64_t tcp = 0;
    std::uint64_t ring = 0, ring_at = 0;  // from the byte with that count on
    std::uint64_t tcp_behind = 0;
    [[nodiscard]] std::uint64_t bytes() const { return tcp + ring + tcp_behind; }
  };
  [[nodiscard]] Parts parts() const;
  [[nodiscard]] const RingReader& ring() const { return rx_ring_; }
  /// The program has taken them: at most readable().bytes.
  void consume(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t consumed() const { return rcv_; }
  [[nodiscard]] bool at_eof() const { return has(kRxFin) && rcv_ == rx_fin_off_; }
  /// The peer can send no more before the program reads: a ring, or the window that DATA records have, is full.
  [[nodiscard]] bool is_full() const;
  /// The peer's direction has its end, read or not.
  [[nodiscard]] bool peer_ended() const { return has(kRxFin); }
  /// The stream offset behind the last urgent byte; 0 if there was none.
  [[nodiscard]] std::uint64_t urgent_mark() const { return rx_urgent_off_; }

  /// The connection ends here, at once: the link hears of it, TCP's RST is the caller's affair.
  void abort(Reason why = Reason::kNone);
  /// The peer broke the rules; the connection has been aborted.
  [[nodiscard]] bool broken() const { return reason_ != Reason::kNone; }
  [[nodiscard]] Reason reason() const { return reason_; }
  /// Aborted here, or reset by the peer's message.
  [[nodiscard]] bool aborted() const { return has(kAborted); }

  // --- TCP beneath
  /// Whether next_record() has one that carries no bytes.
  [[nodiscard]] bool has_control() const;
  /// Bytes that DATA records could carry now.
  [[nodiscard]] std::uint64_t data_ready() const;
  /// Bytes wait for a CREDIT record.
  [[nodiscard]] bool window_closed() const { return tx_path_ == TxPath::kTcp && off_ < end_ && data_ready() == 0; }
  /// The next record due; of DATA the header, whose body are the buffer's bytes from record.value on.
  bool next_record(Record& out, std::uint32_t most_data = kMaxData);
  /// A record that has come; of DATA its bytes are in TCP's queue.
  Reason on_record(const Record& record);
  /// TCP's peer has every DATA byte below `offset` (a stream offset).
  void on_tcp_acked(std::uint64_t offset);
  /// Both directions are over and this end has said all it had to say: TCP's FIN may be sent.
  [[nodiscard]] bool finished() const;
  /// Of our direction: the peer has said so, or it is for TCP's ACK to say.
  [[nodiscard]] bool end_acked() const { return has(kFinAcked); }
  [[nodiscard]] bool end_sent_over_tcp() const { return tx_path_ == TxPath::kTcp && has(kFinSent); }
  /// The peer's TCP has ended in order, which it does only once it has everything.
  Reason on_tcp_end();
  /// TCP is over, in order and both ways: no record can be said any more, and none need be.
  void on_tcp_over() { owed_ = 0; }

  // --- The lane
  [[nodiscard]] bool opens() const { return has(kOpens); }
  /// A lane may be opened: none is, and nothing of the last one is left.
  [[nodiscard]] bool detached() const { return attachment_ == Attachment::kNone; }
  /// Offers a lane on `link`, with our part of it; the peer's will have to lie in its first `peer_memory` bytes.
  void offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory);
  /// The peer's offer waits for accept() or decline().
  [[nodiscard]] bool offered() const { return attachment_ == Attachment::kOffered; }
  [[nodiscard]] std::uint32_t link() const { return link_; }
  /// The link must be up. A peer whose part does not lie in its memory is broken.
  void accept(const LaneAddress& local, std::uint64_t peer_memory);
  void decline(Reason why);
  [[nodiscard]] const LaneAddress& local() const { return local_; }
  [[nodiscard]] const LaneAddress& remote() const { return remote_; }
  /// Why the last offer was declined.
  [[nodiscard]] Reason declined() const { return declined_; }

  [[nodiscard]] bool can_cut() const;
  /// From the next byte on, this direction is on the lane.
  void cut();
  /// Both directions leave the lane for TCP, if may_leave().
  void leave();
  /// The lane is open, its link up, and neither end has begun to leave it.
  [[nodiscard]] bool may_leave() const { return on_link() && !has(kCloseSent | kPeerClose); }
  [[nodiscard]] TxPath tx_path() const { return tx_path_; }
  [[nodiscard]] RxPath rx_path() const { return rx_path_; }
  [[nodiscard]] std::uint8_t epoch() const { return tx_epoch_; }
  /// A record says that the link is dead; the caller fails it.
  [[nodiscard]] bool link_suspect() const { return has(kSuspect) && link_state_ == LaneLink::kUp; }
  /// The lane's place may be given to another connection: its ring is read, and neither end will write to the other's
  /// part, or say anything to it, again.
  [[nodiscard]] bool released() const;

  /// No write of this lane can read from the send buffer any more.
  [[nodiscard]] bool source_idle() const;
  /// The writer does not know yet what was placed or read: see tell().
  [[nodiscard]] bool has_news() const { return on_link() && rx_ring_.has_news() && !has(kRxOver | kAborted); }

  // --- The link beneath (LinkEnd calls these)
  [[nodiscard]] bool has_writes(std::span<const std::byte> memory);
  /// The next write of this lane; false when none may be made now. `starved`: for want of message credits.
  bool next_write(const LaneTurn& turn, Write& out, bool& starved);
  /// As it usually is between two calls: !has_writes(), known by few looks. (False says nothing.)
  [[nodiscard]] bool is_quiet() const { return (flags_ & kUnquiet) == 0 && is_usual() && off_ == end_; }
  /// Of a lane that LinkEnd has no reason to look at: were the program to write `bytes` now, they would be all there is
  /// to write, and with what was gathered one message. Then write(), and, unless they are gathered too, write_whole().
  [[nodiscard]] bool may_write_whole(std::uint64_t bytes) const {
    const std::uint64_t all = end_ - off_ + bytes;
    if (all > kGatheredAhead) return false;  // LinkEnd::kQuantum: the next one's turn
    // That somebody waits for room is nothing to be said again.
    const std::uint32_t told = has(kBlockedTold) ? std::uint32_t{kBufferBlocked} : 0;
    return (flags_ & kUnquiet & ~told) == 0 && is_usual() && tx_ring_.room() >= all && tx_ring_.before_wrap() >= all &&
           !rx_ring_.has_some_news();
  }
  [[nodiscard]] Write write_whole(const ByteSource& source) { return bytes_message(source, end_ - off_); }
  void on_message(const Message& message, std::uint32_t length);
  /// The link has done the write that was the `last_of` this lane: it reads the send buffer no more.
  void on_writes_done();
  void on_link_failed();
  void on_link_final();
  /// Looks whether the reader has placed or taken more.
  void look(std::span<const std::byte> memory);
  /// The writer waits, and has said so, and the block says more by now than it has looked at. The message that calls it
  /// is still to come: who polls need not wait for that.
  [[nodiscard]] bool sees_credit(std::span<const std::byte> memory) const;
  /// What the writer does not know yet is to be told, though it is little: after a while without traffic.
  void tell() {
    if (rx_ring_.has_news()) flags_ |= kTellNow;
  }

  std::uint16_t next_ready = kNoLane;  // LinkEnd's list
  std::uint16_t queued = 0;

 private:
  enum Flag : std::uint32_t {
    kFinQueued = 1U << 0,
    kFinSent = 1U << 1,
    kFinAcked = 1U << 2,
    kUrgentSent = 1U << 3,
    kBufferBlocked = 1U << 4,
    kBlockedTold = 1U << 5,
    kQuiesceSent = 1U << 6,
    kTxOver = 1U << 7,         // QUIESCE_ACK has come, and our writes are done: the peer leaves our credit block alone
    kRxFin = 1U << 8,          // rx_fin_off_ is known
    kRxLaneFin = 1U << 9,      // FIN came as a message; CUT has not come yet, or it has
    kRxOver = 1U << 10,        // FIN, QUIESCE or RESET has come: the peer leaves our ring alone
    kRxLaneUrgent = 1U << 11,  // rx_urgent_count_ waits for CUT
    kPeerBlocked = 1U << 12,
    kTellNow = 1U << 13,
    kCreditWritten = 1U << 14,
    kSuspect = 1U << 15,
    kRxStateSent = 1U << 16,
    kPeerRxState = 1U << 17,
    kCloseSent = 1U << 18,
    kPeerClose = 1U << 19,
    kOpens = 1U << 20,
    kAborted = 1U << 21,
    kResetSent = 1U << 22,
    kRxCut = 1U << 23,  // this lane has had its CUT
    kTxCut = 1U << 24,
    kOfferWaits = 1U << 25,  // for the last lane to be detached
    kAckOwed = 1U << 26,     // QUIESCE_ACK
    kGatherLittle = 1U << 27,
    kLastWritten = 1U << 28,  // no write behind it carries bytes
    kWritesDone = 1U << 29,   // nor does the link read any
    kAckCame = 1U << 30,      // QUIESCE_ACK waits for that
    kGatherAhead = 1U << 31,
  };
  enum Owed : std::uint16_t {  // records, in the order in which they must leave
    kOweOpen = 1U << 0,
    kOweOk = 1U << 1,
    kOweNo = 1U << 2,
    kOweCut = 1U << 3,
    kOweResume = 1U << 4,
    kOweLinkDown = 1U << 5,
    kOweRxState = 1U << 6,
    kOweClose = 1U << 7,
    kOwePong = 1U << 8,
  };
  static constexpr std::uint32_t kOfOneLane = kBlockedTold | kQuiesceSent | kTxOver | kRxOver | kRxLaneUrgent |
                                              kPeerBlocked | kTellNow | kCreditWritten | kSuspect | kRxStateSent |
                                              kPeerRxState | kCloseSent | kPeerClose | kResetSent | kRxCut | kTxCut |
                                              kAckOwed | kLastWritten | kWritesDone | kAckCame;

  /// With one of these there may be something to write, or a write is not what it usually is.
  static constexpr std::uint32_t kUnquiet = kFinQueued | kBufferBlocked | kQuiesceSent | kPeerBlocked | kTellNow |
                                            kCreditWritten | kAborted | kAckOwed | kGatherLittle;

  [[nodiscard]] bool has(std::uint32_t flag) const { return (flags_ & flag) != 0; }
  [[nodiscard]] bool take_owed(Owed what);
  [[nodiscard]] bool next_control(Record& out);
  [[nodiscard]] bool next_data(Record& out, std::uint32_t most);
  Reason take_record(const Record& record);
  Reason on_data(const Record& record);
  Reason on_cut(const Record& record);
  Reason on_resume(const Record& record);
  Reason on_rx_state(const Record& record);
  Reason on_fin(const Record& record);
  Reason on_lane_open(const Record& record);
  Reason on_lane_answer(const Record& record);
  Reason on_lane_close(const Record& record);
  Reason on_tcp_credit(const Record& record);
  Reason on_ping(const Record& record);
  void resume_at(std::uint64_t offset);
  void open_rings();
  void settle();

  [[nodiscard]] bool on_link() const { return attachment_ == Attachment::kOpen && link_state_ == LaneLink::kUp; }
  [[nodiscard]] bool tcp_credit_due() const;
  [[nodiscard]] bool waits_for_credit() const;
  [[nodiscard]] bool is_ahead() const { return tx_ring_.sent() - tx_ring_.placed() >= Rules::kAhead; }
  /// The next little will be gathered: the peer is to say when it need not be.
  [[nodiscard]] bool will_gather() const {
    if (!has(kGatherLittle | kGatherAhead)) [[likely]]
      return false;
    return !is_corked() && !has(kBlockedTold) && (has(kGatherLittle) || is_ahead());
  }
  [[nodiscard]] bool is_usual() const {
    return tx_path_ == TxPath::kLane && on_link() && urgent_off_ <= off_ && !rx_ring_.has_much_news();
  }
  [[nodiscard]] bool data_due() const;
  [[nodiscard]] bool credit_due() const;
  [[nodiscard]] bool news_due() const;
  [[nodiscard]] bool blocked() const;
  [[nodiscard]] bool reset_due() const;
  [[nodiscard]] bool end_due() const;
  /// Both ends have said their last word on the lane, and have been answered.
  [[nodiscard]] bool is_silent() const;
  [[nodiscard]] Op next_control_op() const;
  Write credit_write();
  Write control_message(Op op);
  Write data_message(const LaneTurn& turn);
  Write bytes_message(const ByteSource& source, std::uint64_t bytes);
  Write notify(Op op);
  Reason take_message(const Message& message, std::uint32_t length);
  Reason on_quiesce_ack();
  void writing_is_over();
  void end_of_ring();
  [[nodiscard]] static bool fits(const LaneAddress& address, std::uint64_t memory);
  void detach();
  void place_fin();
  void place_urgent();

  // No padding anywhere: tests compare ends byte by byte.
  std::uint32_t link_ = 0;
  // Writing
  std::uint64_t off_ = 0;       // the next byte to be sent
  std::uint64_t end_ = 0;       // behind the last byte written
  std::uint64_t tcp_una_ = 0;   // below it, TCP's peer has what went over TCP
  std::uint64_t tcp_end_ = 0;   // behind the last byte that went over TCP
  std::uint64_t cut_off_ = 0;   // where the lane's part begins
  std::uint64_t lane_una_ = 0;  // below it, what went over the last lane is placed
  std::uint64_t urgent_off_ = 0;
  std::uint64_t tcp_sent_ = 0, tcp_credit_ = 0;  // DATA bytes: sent, taken by the peer's program
  RingWriter tx_ring_;
  // Reading
  std::uint64_t rcv_ = 0;                       // the next byte for the program
  std::uint64_t in_off_ = 0;                    // the next DATA byte's offset
  std::uint64_t tcp_ready_ = 0;                 // DATA bytes not read yet
  std::uint64_t tcp_taken_ = 0, tcp_told_ = 0;  // DATA bytes read, and told by CREDIT
  std::uint64_t rx_cut_off_ = 0, rx_resume_off_ = 0;
  std::uint64_t rx_fin_off_ = 0, rx_urgent_off_ = 0;
  std::uint64_t rx_urgent_count_ = 0;  // since the lane was opened
  std::uint64_t ping_token_ = 0;
  std::uint64_t peer_memory_ = 0;
  RingReader rx_ring_;
  LaneAddress local_, remote_;
  LaneAddress waiting_;  // an offer that has come too early
  std::uint32_t waiting_link_ = 0;
  std::uint32_t tcp_window_;
  std::uint32_t flags_ = 0;
  std::uint16_t owed_ = 0;
  std::uint16_t tx_sequence_ = 0, rx_sequence_ = 0;
  std::uint16_t cork_ = 0;  // bytes of a segment; 0: nothing is corked
  TxPath tx_path_ = TxPath::kTcp;
  RxPath rx_path_ = RxPath::kTcp;
  Attachment attachment_ = Attachment::kNone;
  LaneLink link_state_ = LaneLink::kUp;
  std::uint8_t tx_epoch_ = 0, cut_epoch_ = 0, rx_epoch_ = 0;
  Reason reason_ = Reason::kNone, declined_ = Reason::kNone;
  std::uint8_t reserved_[3] = {};
};

using Lane = BasicLane<>;
extern template class BasicLane<LaneRules>;

}  // namespace bypass::fastpath
