// Lane: one end of a connection in framed mode, and its place on a link.
//
// A direction's bytes travel as DATA records over TCP, or as messages over a lane of a link. It changes from one to the
// other at stream offsets: CUT, when a lane is open; RESUME, when the link has died or the lane is left. TCP stays
// established beneath and carries the control records, in order and for certain; the lane needs nothing else of TCP.
//
// LaneWriter is the direction from the program, LaneReader the one to it, LaneAttachment the place on the link. What
// joins them is here: what is said next, over TCP and over the link, and what a word of the peer's means for all three.
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

#include "fastpath/framed/control.h"
#include "fastpath/lane/lane_attachment.h"
#include "fastpath/lane/lane_reader.h"
#include "fastpath/lane/lane_rules.h"
#include "fastpath/lane/lane_writer.h"
#include "fastpath/lane/message.h"
#include "fastpath/lane/ring.h"
#include "fastpath/link/link.h"
#include "fastpath/reason.h"

namespace bypass::fastpath {

template <typename Rules = LaneRules>
class BasicLane {
 public:
  explicit BasicLane(const LaneConfig& config);

  // --- The program's side
  /// `bytes` more lie in the send buffer.
  void write(std::uint64_t bytes) { tx_.write(bytes); }
  using Gather = LaneGather;
  static constexpr std::uint64_t kGathered = LaneWriter<Rules>::kGathered;
  static constexpr std::uint64_t kGatheredAhead = LaneWriter<Rules>::kGatheredAhead;
  void gather(Gather what) { tx_.gather(what); }
  [[nodiscard]] bool is_gathering() const { return tx_.is_gathering(); }
  /// TCP_CORK, MSG_MORE: what is less than `segment` bytes waits for uncork(), or for the end of the stream. No word
  /// of the peer's ends that.
  void cork(std::uint16_t segment) { tx_.cork(segment); }
  void uncork() { tx_.uncork(); }
  [[nodiscard]] bool is_corked() const { return tx_.is_corked(); }
  /// The last byte written is urgent.
  void mark_urgent() { tx_.mark_urgent(); }
  void shutdown_send() { tx_.shutdown(); }
  /// The program waits for room in the send buffer. Where all that the lane took is placed, TCP's ACK will bring it;
  /// who has ended its direction writes no more.
  void wait_for_buffer() { tx_.wait_for_buffer(); }
  /// True, once: the program waits for room and the peer was not told, but meanwhile everything has been placed. No
  /// message will say so: the connection is to have its turn.
  [[nodiscard]] bool take_room_for_waiter() { return tx_.take_room_for_waiter(); }
  /// Everything before it may be forgotten.
  [[nodiscard]] std::uint64_t una() const { return tx_.una(); }
  [[nodiscard]] std::uint64_t end() const { return tx_.end(); }
  [[nodiscard]] std::uint64_t next_offset() const { return tx_.next_offset(); }

  using From = LaneReader::From;
  using Readable = LaneReader::Readable;
  using Parts = LaneReader::Parts;
  /// The next bytes of the stream.
  [[nodiscard]] Readable readable() const { return rx_.readable(Rules::kRingBeforeTcp); }
  /// All that can be read, in the stream's order.
  [[nodiscard]] Parts parts() const { return rx_.parts(); }
  [[nodiscard]] const RingReader& ring() const { return rx_.ring(); }
  /// The program has taken them: at most readable().bytes.
  void consume(std::uint64_t bytes) {
    rx_.take(bytes, readable().from);
    settle();
  }
  [[nodiscard]] std::uint64_t consumed() const { return rx_.consumed(); }
  [[nodiscard]] bool at_eof() const { return rx_.at_eof(); }
  /// The peer can send no more before the program reads: a ring, or the window that DATA records have, is full.
  [[nodiscard]] bool is_full() const { return rx_.is_full(tcp_window_); }
  /// The peer's direction has its end, read or not.
  [[nodiscard]] bool peer_ended() const { return rx_.has(LaneReader::kFin); }
  /// The stream offset behind the last urgent byte; 0 if there was none.
  [[nodiscard]] std::uint64_t urgent_mark() const { return rx_.urgent_mark(); }

  /// The connection ends here, at once: the link hears of it, TCP's RST is the caller's affair.
  void abort(Reason why = Reason::kNone) { at_.abort(why); }
  /// The peer broke the rules; the connection has been aborted.
  [[nodiscard]] bool broken() const { return at_.reason() != Reason::kNone; }
  [[nodiscard]] Reason reason() const { return at_.reason(); }
  /// Aborted here, or reset by the peer's message.
  [[nodiscard]] bool aborted() const { return at_.aborted(); }

  // --- TCP beneath
  /// Whether next_record() has one that carries no bytes.
  [[nodiscard]] bool has_control() const {
    if (aborted()) return false;
    return at_.owes_any() || rx_.tcp_credit_due(tcp_window_) || tx_.has_tcp_word();
  }
  /// Bytes that DATA records could carry now.
  [[nodiscard]] std::uint64_t data_ready() const { return aborted() ? 0 : tx_.data_ready(tcp_window_); }
  /// Bytes wait for a CREDIT record.
  [[nodiscard]] bool window_closed() const {
    return tx_.path() == TxPath::kTcp && !tx_.all_sent() && data_ready() == 0;
  }
  /// The next record due; of DATA the header, whose body are the buffer's bytes from record.value on.
  bool next_record(Record& out, std::uint32_t most_data = kMaxData);
  /// A record that has come; of DATA its bytes are in TCP's queue.
  Reason on_record(const Record& record);
  /// TCP's peer has every DATA byte below `offset` (a stream offset).
  void on_tcp_acked(std::uint64_t offset) { tx_.on_tcp_acked(offset); }
  /// Both directions are over and this end has said all it had to say: TCP's FIN may be sent.
  [[nodiscard]] bool finished() const;
  /// Of our direction: the peer has said so, or it is for TCP's ACK to say.
  [[nodiscard]] bool end_acked() const { return tx_.has(Tx::kFinAcked); }
  [[nodiscard]] bool end_sent_over_tcp() const { return tx_.path() == TxPath::kTcp && tx_.has(Tx::kFinSent); }
  /// The peer's TCP has ended in order, which it does only once it has everything.
  Reason on_tcp_end();
  /// TCP is over, in order and both ways: no record can be said any more, and none need be.
  void on_tcp_over() { at_.forget_all(); }

  // --- The lane
  [[nodiscard]] bool opens() const { return at_.has(At::kOpens); }
  /// A lane may be opened: none is, and nothing of the last one is left.
  [[nodiscard]] bool detached() const { return at_.is(Attachment::kNone); }
  /// Offers a lane on `link`, with our part of it; the peer's will have to lie in its first `peer_memory` bytes.
  void offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory);
  /// The peer's offer waits for accept() or decline().
  [[nodiscard]] bool offered() const { return at_.is(Attachment::kOffered); }
  [[nodiscard]] std::uint32_t link() const { return at_.link(); }
  /// The link must be up. A peer whose part does not lie in its memory is broken.
  void accept(const LaneAddress& local, std::uint64_t peer_memory);
  void decline(Reason why) { at_.decline(why); }
  [[nodiscard]] const LaneAddress& local() const { return at_.local(); }
  [[nodiscard]] const LaneAddress& remote() const { return at_.remote(); }
  /// Why the last offer was declined.
  [[nodiscard]] Reason declined() const { return at_.declined(); }

  [[nodiscard]] bool can_cut() const;
  /// From the next byte on, this direction is on the lane.
  void cut();
  /// Both directions leave the lane for TCP, if may_leave().
  void leave();
  /// The lane is open, its link up, and neither end has begun to leave it.
  [[nodiscard]] bool may_leave() const { return at_.on_link() && !at_.has(At::kCloseSent | At::kPeerClose); }
  [[nodiscard]] TxPath tx_path() const { return tx_.path(); }
  [[nodiscard]] RxPath rx_path() const { return rx_.path(); }
  [[nodiscard]] std::uint8_t epoch() const { return tx_.epoch(); }
  /// A record says that the link is dead; the caller fails it.
  [[nodiscard]] bool link_suspect() const { return at_.has(At::kSuspect) && at_.link_state() == LaneLink::kUp; }
  /// The lane's place may be given to another connection: its ring is read, and neither end will write to the other's
  /// part, or say anything to it, again.
  [[nodiscard]] bool released() const;

  /// No write of this lane can read from the send buffer any more.
  [[nodiscard]] bool source_idle() const;
  /// The writer does not know yet what was placed or read: see tell().
  [[nodiscard]] bool has_news() const { return at_.on_link() && rx_.has_news() && !aborted(); }

  // --- The link beneath (LinkEnd calls these)
  [[nodiscard]] bool has_writes(std::span<const std::byte> memory);
  /// The next write of this lane; false when none may be made now. `starved`: for want of message credits.
  bool next_write(const LaneTurn& turn, Write& out, bool& starved);
  /// As it usually is between two calls: !has_writes(), known by few looks. (False says nothing.)
  [[nodiscard]] bool is_quiet() const {
    return !tx_.has(Tx::kUnquiet) && !rx_.has(LaneReader::kUnquiet) && !aborted() && is_usual() && tx_.all_sent();
  }
  /// Of a lane that LinkEnd has no reason to look at: were the program to write `bytes` now, they would be all there is
  /// to write, and with what was gathered one message. Then write(), and, unless they are gathered too, write_whole().
  [[nodiscard]] bool may_write_whole(std::uint64_t bytes) const {
    return tx_.fits_whole(bytes) && !rx_.has(LaneReader::kUnquiet) && !aborted() && is_usual() &&
           !rx_.ring().has_some_news();
  }
  [[nodiscard]] Write write_whole(const ByteSource& source) {
    return tx_.bytes_message(source, tx_.end() - tx_.next_offset(), at_.remote());
  }
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
  void tell() { rx_.tell_soon(); }

  std::uint16_t next_ready = kNoLane;  // LinkEnd's list
  std::uint16_t queued = 0;

 private:
  using Tx = LaneWriter<Rules>;
  using At = LaneAttachment;

  [[nodiscard]] bool next_control(Record& out);
  Reason take_record(const Record& record);
  Reason on_rx_state(const Record& record);
  Reason on_lane_answer(const Record& record);
  void resume_at(std::uint64_t offset);
  void settle();
  void detach();

  [[nodiscard]] bool is_usual() const {
    return tx_.path() == TxPath::kLane && at_.on_link() && !tx_.urgent_waits() && !rx_.ring().has_much_news();
  }
  /// After QUIESCE_ACK the block is the peer's.
  [[nodiscard]] bool news_due() const {
    if (!rx_.has_news() || aborted()) return false;
    return rx_.is_news_due() || (tx_.data_due() && rx_.ring().has_some_news());
  }
  [[nodiscard]] bool reset_due() const;
  [[nodiscard]] bool end_due() const;
  /// Both ends have said their last word on the lane, and have been answered.
  [[nodiscard]] bool is_silent() const;
  [[nodiscard]] Op next_control_op() const;
  Write credit_write();
  Write control_message(Op op);
  Reason take_message(const Message& message, std::uint32_t length);
  Reason on_quiesce_ack();
  void writing_is_over();
  void end_of_ring() { rx_.end_of_ring(at_.link_state() == LaneLink::kUp); }

  // No padding anywhere: tests compare ends byte by byte.
  std::uint32_t tcp_window_;
  LaneWriter<Rules> tx_;
  LaneReader rx_;
  LaneAttachment at_;
  std::uint64_t ping_token_ = 0;
};

using Lane = BasicLane<>;
extern template class BasicLane<LaneRules>;

}  // namespace bypass::fastpath
