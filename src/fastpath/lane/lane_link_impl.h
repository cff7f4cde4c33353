// The definitions of lane.h's template: a lane's messages and writes.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/model_test.cc.
#pragma once

#include <cstring>

#include "fastpath/lane/lane.h"
#include "fastpath/lane/lane_writer_impl.h"

namespace bypass::fastpath {

// --- Writes

/// No RESET follows our end and our answer to the peer's end: after those the peer may give the lane's place away.
template <typename Rules>
bool BasicLane<Rules>::reset_due() const {
  if (!aborted() || tx_.has(Tx::kResetSent)) return false;
  const bool rx_over = rx_.has(LaneReader::kOver), answered = rx_over && !rx_.has(LaneReader::kAckOwed);
  return Rules::kNothingBehindTheEnd ? !(answered && tx_.has(Tx::kLastWritten)) : !(tx_.has(Tx::kOver) && rx_over);
}

/// True if this direction no longer needs the lane, and has not told the peer so on the lane.
template <typename Rules>
bool BasicLane<Rules>::end_due() const {
  return Rules::kBothSayTheirEnd && tx_.path() == TxPath::kTcp && !tx_.has(Tx::kLastWritten) &&
         (tx_.has(Tx::kFinAcked) || at_.has(At::kCloseSent));
}

template <typename Rules>
Op BasicLane<Rules>::next_control_op() const {
  if (reset_due()) return Op::kReset;
  if (rx_.has(LaneReader::kAckOwed)) return Op::kQuiesceAck;
  if (aborted()) return Op::kNone;
  if (rx_.has(LaneReader::kCreditWritten) || rx_.credit_due()) return Op::kCredit;
  if (end_due() || (tx_.path() == TxPath::kQuiescing && !tx_.has(Tx::kQuiesceSent))) return Op::kQuiesce;
  if (tx_.path() == TxPath::kLane && tx_.fin_due()) return Op::kFin;
  return tx_.blocked() ? Op::kDataBlocked : Op::kNone;
}

template <typename Rules>
void BasicLane<Rules>::look(std::span<const std::byte> memory) {
  if (!at_.is_open() || memory.size() < sizeof(CreditBlock)) return;
  if (at_.local().credit > memory.size() - sizeof(CreditBlock)) return;
  const Reason why = tx_.on_credit(read_credit(memory.data() + at_.local().credit));
  if (why != Reason::kNone) abort(why);
}

template <typename Rules>
bool BasicLane<Rules>::sees_credit(std::span<const std::byte> memory) const {
  if (!tx_.has(Tx::kBlockedTold) || aborted() || !at_.on_link() || memory.size() < sizeof(CreditBlock)) return false;
  if (at_.local().credit > memory.size() - sizeof(CreditBlock)) return false;
  return tx_.ring().is_news(read_credit(memory.data() + at_.local().credit));
}

template <typename Rules>
bool BasicLane<Rules>::has_writes(std::span<const std::byte> memory) {
  if (is_quiet() || !at_.on_link()) return false;
  if (tx_.waits_for_credit()) look(memory);
  return news_due() || next_control_op() != Op::kNone || (tx_.data_due() && !aborted());
}

template <typename Rules>
bool BasicLane<Rules>::next_write(const LaneTurn& turn, Write& out, bool& starved) {
  if (!has_writes(turn.memory)) return false;
  if (news_due()) {
    out = credit_write();
    return true;
  }
  // Bytes go before the message that says that there is no room for more; the end goes after them.
  if (const Op op = next_control_op(); op != Op::kNone) {
    starved = !turn.may_send_control;
    if (!starved) out = control_message(op);
    return !starved;
  }
  starved = !turn.may_send_data;
  if (!starved) out = tx_.data_message(turn, at_.remote());
  return !starved;
}

template <typename Rules>
Write BasicLane<Rules>::credit_write() {
  const CreditBlock block = rx_.tell();
  Write write;
  write.to = at_.remote().credit;
  write.small_length = sizeof block;
  std::memcpy(write.small.data(), &block, sizeof block);
  return write;
}

template <typename Rules>
Write BasicLane<Rules>::control_message(Op op) {
  switch (op) {
    case Op::kReset:
      tx_.set(Tx::kResetSent);
      break;
    case Op::kQuiesceAck:
      rx_.clear(LaneReader::kAckOwed);
      break;
    case Op::kCredit:
      rx_.clear(LaneReader::kCreditWritten | LaneReader::kPeerBlocked);
      break;
    case Op::kQuiesce:
      tx_.set(Tx::kQuiesceSent);
      break;
    case Op::kFin:
      tx_.set(Tx::kFinSent);
      break;
    default:
      tx_.set(Tx::kBlockedTold);
      tx_.clear(Tx::kBufferBlocked);
  }
  Write write = tx_.notify(op, at_.remote());
  const bool ends = op == Op::kReset || op == Op::kQuiesce || op == Op::kFin;
  if (ends && !tx_.has(Tx::kLastWritten)) {
    tx_.set(Tx::kLastWritten);
    write.last_of = at_.local().lane;
  }
  settle();
  return write;
}

// --- Messages

template <typename Rules>
void BasicLane<Rules>::on_message(const Message& message, std::uint32_t length) {
  if (Rules::kFinalCountIsFrozen && at_.link_state() == LaneLink::kFinal) return;
  if (!at_.is_open() && !at_.is(Attachment::kOffering)) return;
  const Reason why = take_message(message, length);
  if (why != Reason::kNone) abort(why);
  settle();
}

template <typename Rules>
Reason BasicLane<Rules>::take_message(const Message& message, std::uint32_t length) {
  const bool blocked_only = message.op == Op::kDataBlocked && length == 0;
  if (carries_bytes(message.op) != (length != 0) && !blocked_only) return Reason::kBadImmediate;
  if (const Reason why = rx_.take_message(message, length); why != Reason::kNone) return why;
  const bool over = rx_.has(LaneReader::kOver);
  switch (message.op) {
    case Op::kData:
      return Reason::kNone;
    case Op::kDataBlocked:
      rx_.set(LaneReader::kPeerBlocked);
      return Reason::kNone;
    case Op::kUrgent:
      rx_.on_urgent_message();
      return Reason::kNone;
    case Op::kCredit:
      tx_.clear(Tx::kBlockedTold);
      return Reason::kNone;
    case Op::kFin:
      if (over) return Reason::kBadState;
      end_of_ring();
      rx_.on_fin_message();
      return Reason::kNone;
    case Op::kQuiesce:
      if (over) return Reason::kBadState;
      end_of_ring();
      return Reason::kNone;
    case Op::kReset:
      if (!over) end_of_ring();  // otherwise FIN or QUIESCE has ended the ring already and is answered
      abort();
      return Reason::kNone;
    case Op::kQuiesceAck:
      return on_quiesce_ack();
    default:
      return Reason::kBadImmediate;
  }
}

template <typename Rules>
Reason BasicLane<Rules>::on_quiesce_ack() {
  const bool wrong = tx_.has(Tx::kOver | Tx::kAckCame) || !tx_.has(Tx::kLastWritten);
  tx_.set(Tx::kAckCame);
  if (wrong && !aborted()) return Reason::kBadState;
  if (tx_.has(Tx::kWritesDone) || !Rules::kWaitsForDevice) writing_is_over();
  return Reason::kNone;
}

template <typename Rules>
void BasicLane<Rules>::on_writes_done() {
  tx_.set(Tx::kWritesDone);
  if (!tx_.has(Tx::kAckCame) || tx_.has(Tx::kOver)) return;
  writing_is_over();
  settle();
}

template <typename Rules>
void BasicLane<Rules>::writing_is_over() {
  tx_.set(Tx::kOver);
  // The acknowledgement may still come after the link has failed here, and even after RXSTATE has brought the direction
  // back.
  if (aborted() || tx_.path() == TxPath::kTcp) return;
  tx_.all_placed();
  if (tx_.has(Tx::kQuiesceSent)) return resume_at(tx_.next_offset());
  tx_.end_is_acked();
}

template <typename Rules>
void BasicLane<Rules>::on_link_failed() {
  if (!at_.link_failed()) return;
  rx_.clear(LaneReader::kAckOwed);  // no message can be sent any more; RXSTATE, or TCP's end, takes its place
  tx_.stop();
}

template <typename Rules>
void BasicLane<Rules>::on_link_final() {
  on_link_failed();
  if (at_.link_final()) settle();
}

}  // namespace bypass::fastpath
