// Lane: one end of a connection in framed mode, and its place on a link.
//
// A direction's bytes travel as DATA records over TCP, or as messages over a lane of a link. A direction changes its
// path at a stream offset: CUT takes it to an open lane, RESUME takes it back when the link has died or the lane is
// left. TCP stays established beneath. It carries the control records reliably and in order; the lane needs nothing
// else of TCP.
//
// LaneWriter is the direction from the program, LaneReader the direction to the program, LaneAttachment the place on
// the link. This class joins the three: it decides what is sent next, over TCP and over the link, and applies what the
// peer says to all three.
//
// What must hold, whatever a link or its end does (tests/fastpath/model_test.cc explores it):
//   * The program reads the bytes that the peer's program wrote, in order, each once.
//   * una() covers no byte that may have to be sent again: the reader has said that the byte is placed, or TCP has
//     acknowledged it.
//   * Once an end has sent RXSTATE, it counts no further message of that link: the number in RXSTATE is final.
//   * A direction uses a lane once. To move to a lane again, both ends open a new one.
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
  /// TCP_CORK, MSG_MORE: a rest of fewer than `segment` bytes waits for uncork() or for the end of the stream. Nothing
  /// that the peer says lets it go earlier.
  void cork(std::uint16_t segment) { tx_.cork(segment); }
  void uncork() { tx_.uncork(); }
  [[nodiscard]] bool is_corked() const { return tx_.is_corked(); }
  /// The last byte written is urgent.
  void mark_urgent() { tx_.mark_urgent(); }
  void shutdown_send() { tx_.shutdown(); }
  /// The program waits for room in the send buffer. If the reader has placed everything that the lane took, TCP's ACK
  /// will bring the room. A direction that was shut down needs no room.
  void wait_for_buffer() { tx_.wait_for_buffer(); }
  /// True, once: the program waits for room, the peer was not told, and meanwhile everything has been placed. No
  /// message will report this, so the caller gives the connection its turn.
  [[nodiscard]] bool take_room_for_waiter() { return tx_.take_room_for_waiter(); }
  /// The program's bytes below this offset may be forgotten.
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
  /// The program has taken `bytes`, at most readable().bytes.
  void consume(std::uint64_t bytes) {
    rx_.take(bytes, readable().from);
    settle();
  }
  [[nodiscard]] std::uint64_t consumed() const { return rx_.consumed(); }
  [[nodiscard]] bool at_eof() const { return rx_.at_eof(); }
  /// The peer can send no more before the program reads: the ring is full, or the window that DATA records have.
  [[nodiscard]] bool is_full() const { return rx_.is_full(tcp_window_); }
  /// True if the end of the peer's direction has arrived, whether the program has read up to it or not.
  [[nodiscard]] bool peer_ended() const { return rx_.has(LaneReader::kFin); }
  /// The stream offset behind the last urgent byte; 0 if there was none.
  [[nodiscard]] std::uint64_t urgent_mark() const { return rx_.urgent_mark(); }

  /// Ends the connection at once. The link's peer is told by RESET; the caller sends TCP's RST.
  void abort(Reason why = Reason::kNone) { at_.abort(why); }
  /// The peer broke the rules; the connection has been aborted.
  [[nodiscard]] bool broken() const { return at_.reason() != Reason::kNone; }
  [[nodiscard]] Reason reason() const { return at_.reason(); }
  /// True if the connection was aborted here, or reset by the peer's message.
  [[nodiscard]] bool aborted() const { return at_.aborted(); }

  // --- TCP beneath
  /// Whether next_record() has a record that carries no bytes.
  [[nodiscard]] bool has_control() const {
    if (aborted()) return false;
    return at_.owes_any() || rx_.tcp_credit_due(tcp_window_) || tx_.has_tcp_word();
  }
  /// Bytes that could leave in DATA records now.
  [[nodiscard]] std::uint64_t data_ready() const { return aborted() ? 0 : tx_.data_ready(tcp_window_); }
  /// True if bytes wait for a CREDIT record.
  [[nodiscard]] bool window_closed() const {
    return tx_.path() == TxPath::kTcp && !tx_.all_sent() && data_ready() == 0;
  }
  /// The next record that is due. Of a DATA record, this is the header; its body is the send buffer's bytes from
  /// record.value on.
  bool next_record(Record& out, std::uint32_t most_data = kMaxData);
  /// Takes a record that has arrived. The bytes of a DATA record stay in TCP's queue.
  Reason on_record(const Record& record);
  /// The peer's TCP has acknowledged every DATA byte below the stream offset `offset`.
  void on_tcp_acked(std::uint64_t offset) { tx_.on_tcp_acked(offset); }
  /// True if both directions are over and this end has sent everything it owed: TCP's FIN may be sent.
  [[nodiscard]] bool finished() const;
  /// Our direction has ended, and the peer has acknowledged that end. If the end went over TCP (end_sent_over_tcp()),
  /// TCP's ACK tells.
  [[nodiscard]] bool end_acked() const { return tx_.has(Tx::kFinAcked); }
  [[nodiscard]] bool end_sent_over_tcp() const { return tx_.path() == TxPath::kTcp && tx_.has(Tx::kFinSent); }
  /// The peer's TCP has ended in order. A peer ends TCP only after it has received everything.
  Reason on_tcp_end();
  /// Both directions of TCP have ended in order: no record can be sent any more, and none is needed.
  void on_tcp_over() { at_.forget_all(); }

  // --- The lane
  [[nodiscard]] bool opens() const { return at_.has(At::kOpens); }
  /// True if a lane may be opened: none is open, and nothing is left of the last one.
  [[nodiscard]] bool detached() const { return at_.is(Attachment::kNone); }
  /// Offers a lane on `link` with our ring and credit block (`local`). The peer's must lie in the first `peer_memory`
  /// bytes of the memory that we may write.
  void offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory);
  /// The peer's offer waits for accept() or decline().
  [[nodiscard]] bool offered() const { return at_.is(Attachment::kOffered); }
  [[nodiscard]] std::uint32_t link() const { return at_.link(); }
  /// Accepts the peer's offer. The link must be up. A peer whose ring or credit block lies outside its memory is
  /// broken().
  void accept(const LaneAddress& local, std::uint64_t peer_memory);
  void decline(Reason why) { at_.decline(why); }
  [[nodiscard]] const LaneAddress& local() const { return at_.local(); }
  [[nodiscard]] const LaneAddress& remote() const { return at_.remote(); }
  /// Why the last offer was declined.
  [[nodiscard]] Reason declined() const { return at_.declined(); }

  [[nodiscard]] bool can_cut() const;
  /// From the next byte on, this direction uses the lane.
  void cut();
  /// Both directions return from the lane to TCP, if may_leave().
  void leave();
  /// The lane is open, its link up, and neither end has begun to leave it.
  [[nodiscard]] bool may_leave() const { return at_.on_link() && !at_.has(At::kCloseSent | At::kPeerClose); }
  [[nodiscard]] TxPath tx_path() const { return tx_.path(); }
  [[nodiscard]] RxPath rx_path() const { return rx_.path(); }
  [[nodiscard]] std::uint8_t epoch() const { return tx_.epoch(); }
  /// The peer's record says that the link is dead, while it is still up here. The caller then fails the link.
  [[nodiscard]] bool link_suspect() const { return at_.has(At::kSuspect) && at_.link_state() == LaneLink::kUp; }
  /// The lane's number and ring may be given to another connection: the ring is read, and neither end will write to the
  /// other's part, or send a message on the lane, again.
  [[nodiscard]] bool released() const;

  /// True if no write of this lane can read from the send buffer any more.
  [[nodiscard]] bool source_idle() const;
  /// True if the writer does not know yet what was placed or read here: see tell().
  [[nodiscard]] bool has_news() const { return at_.on_link() && rx_.has_news() && !aborted(); }

  // --- The link beneath (LinkEnd calls these)
  [[nodiscard]] bool has_writes(std::span<const std::byte> memory);
  /// The next write of this lane; false when none may be made now. `starved` is set if only message credits are
  /// missing.
  bool next_write(const LaneTurn& turn, Write& out, bool& starved);
  /// True if the lane is in its usual state and certainly has no writes: a cheap form of !has_writes(). False says
  /// nothing.
  [[nodiscard]] bool is_quiet() const {
    return !tx_.has(Tx::kUnquiet) && !rx_.has(LaneReader::kUnquiet) && !aborted() && is_usual() && tx_.all_sent();
  }
  /// For a lane that is not in LinkEnd's queue: whether `bytes` that the program writes now could leave in one message,
  /// together with what was gathered. If so, the caller calls write(), and then write_whole() unless the bytes are
  /// gathered too.
  [[nodiscard]] bool may_write_whole(std::uint64_t bytes) const {
    return tx_.fits_whole(bytes) && !rx_.has(LaneReader::kUnquiet) && !aborted() && is_usual() &&
           !rx_.ring().has_some_news();
  }
  [[nodiscard]] Write write_whole(const ByteSource& source) {
    return tx_.bytes_message(source, tx_.end() - tx_.next_offset(), at_.remote());
  }
  void on_message(const Message& message, std::uint32_t length);
  /// The link has completed the write whose `last_of` names this lane: it reads the send buffer no more.
  void on_writes_done();
  void on_link_failed();
  void on_link_final();
  /// Reads the credit block: the reader may have placed or taken more.
  void look(std::span<const std::byte> memory);
  /// True if the writer has told the peer that it waits, and the credit block shows more than the writer has seen. The
  /// message that wakes the writer is still to come; a thread that polls need not wait for it.
  [[nodiscard]] bool sees_credit(std::span<const std::byte> memory) const;
  /// Called after a while without traffic: tells the writer what was placed and read, although it is little.
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
  /// False after QUIESCE_ACK: the credit block belongs to the peer then.
  [[nodiscard]] bool news_due() const {
    if (!rx_.has_news() || aborted()) return false;
    return rx_.is_news_due() || (tx_.data_due() && rx_.ring().has_some_news());
  }
  [[nodiscard]] bool reset_due() const;
  [[nodiscard]] bool end_due() const;
  /// True if each end has sent its last message on the lane, and each was answered.
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
