// The definitions of lane.h's template: a lane's messages and writes.
#pragma once

#include <algorithm>
#include <cstring>

#include "fastpath/lane.h"

namespace bypass::fastpath {

// --- Writes

template <typename Rules>
bool BasicLane<Rules>::data_due() const {
  return tx_path_ == TxPath::kLane && off_ < end_ && tx_ring_.room() != 0 && !is_gathering();
}

/// Nothing can be sent, or written, before the reader has placed or taken more.
template <typename Rules>
bool BasicLane<Rules>::waits_for_credit() const {
  if (tx_path_ != TxPath::kLane) return false;
  if (off_ < end_) return tx_ring_.room() == 0 || (!is_corked() && is_gathering());
  return has(kBufferBlocked) && !has(kFinSent) && tx_ring_.placed() != tx_ring_.sent();
}

template <typename Rules>
bool BasicLane<Rules>::blocked() const {
  return Rules::kSaysBlocked && waits_for_credit() && !has(kBlockedTold);
}

/// The writer waits, and there is something to wake it for: news, or old news that it has not looked at.
template <typename Rules>
bool BasicLane<Rules>::credit_due() const {
  return has(kPeerBlocked) && !has(kRxOver) && (rx_ring_.worth_waking() || rx_ring_.told_room());
}

/// After QUIESCE_ACK the block is the peer's.
template <typename Rules>
bool BasicLane<Rules>::news_due() const {
  if (!rx_ring_.has_news() || has(kRxOver | kAborted)) return false;
  return has(kTellNow) || rx_ring_.has_much_news() || (data_due() && rx_ring_.has_some_news()) || credit_due();
}

/// Not behind our end and our answer to the peer's: with them the peer may give the lane's place away.
template <typename Rules>
bool BasicLane<Rules>::reset_due() const {
  if (!has(kAborted) || has(kResetSent)) return false;
  const bool answered = has(kRxOver) && !has(kAckOwed);
  return Rules::kNothingBehindTheEnd ? !(answered && has(kLastWritten)) : !(has(kTxOver) && has(kRxOver));
}

/// The direction needs the lane no more, and has not said so on it.
template <typename Rules>
bool BasicLane<Rules>::end_due() const {
  return Rules::kBothSayTheirEnd && tx_path_ == TxPath::kTcp && !has(kLastWritten) && has(kFinAcked | kCloseSent);
}

template <typename Rules>
Op BasicLane<Rules>::next_control_op() const {
  if (reset_due()) return Op::kReset;
  if (has(kAckOwed)) return Op::kQuiesceAck;
  if (has(kAborted)) return Op::kNone;
  if (has(kCreditWritten) || credit_due()) return Op::kCredit;
  if (end_due() || (tx_path_ == TxPath::kQuiescing && !has(kQuiesceSent))) return Op::kQuiesce;
  if (tx_path_ == TxPath::kLane && has(kFinQueued) && !has(kFinSent) && off_ == end_) return Op::kFin;
  return blocked() ? Op::kDataBlocked : Op::kNone;
}

template <typename Rules>
void BasicLane<Rules>::look(std::span<const std::byte> memory) {
  if (attachment_ != Attachment::kOpen || memory.size() < sizeof(CreditBlock)) return;
  if (local_.credit > memory.size() - sizeof(CreditBlock)) return;
  const Reason why = tx_ring_.on_credit(read_credit(memory.data() + local_.credit));
  if (why != Reason::kNone) abort(why);
}

template <typename Rules>
bool BasicLane<Rules>::sees_credit(std::span<const std::byte> memory) const {
  if (!has(kBlockedTold) || has(kAborted) || !on_link() || memory.size() < sizeof(CreditBlock)) return false;
  if (local_.credit > memory.size() - sizeof(CreditBlock)) return false;
  return tx_ring_.is_news(read_credit(memory.data() + local_.credit));
}

template <typename Rules>
bool BasicLane<Rules>::has_writes(std::span<const std::byte> memory) {
  if (is_quiet() || !on_link()) return false;
  if (waits_for_credit()) look(memory);
  return news_due() || next_control_op() != Op::kNone || (data_due() && !has(kAborted));
}

template <typename Rules>
bool BasicLane<Rules>::next_write(const LaneTurn& turn, Write& out, bool& starved) {
  if (!has_writes(turn.memory)) return false;
  if (news_due()) {
    out = credit_write();
    return true;
  }
  // Bytes before the message that says that there is no room for more of them; the end behind them.
  if (const Op op = next_control_op(); op != Op::kNone) {
    starved = !turn.may_send_control;
    if (!starved) out = control_message(op);
    return !starved;
  }
  starved = !turn.may_send_data;
  if (!starved) out = data_message(turn);
  return !starved;
}

template <typename Rules>
Write BasicLane<Rules>::credit_write() {
  if (credit_due()) flags_ |= kCreditWritten;
  if (has(kCreditWritten)) flags_ &= ~std::uint32_t{kPeerBlocked};
  flags_ &= ~std::uint32_t{kTellNow};
  const CreditBlock block = rx_ring_.tell();
  Write write;
  write.to = remote_.credit;
  write.small_length = sizeof block;
  std::memcpy(write.small.data(), &block, sizeof block);
  return write;
}

template <typename Rules>
Write BasicLane<Rules>::notify(Op op) {
  Write write;
  write.notify = true;
  write.immediate = to_immediate({op, tx_sequence_, remote_.lane});
  tx_sequence_ = (tx_sequence_ + 1) & kSequenceMask;
  return write;
}

template <typename Rules>
Write BasicLane<Rules>::control_message(Op op) {
  switch (op) {
    case Op::kReset:
      flags_ |= kResetSent;
      break;
    case Op::kQuiesceAck:
      flags_ &= ~std::uint32_t{kAckOwed};
      break;
    case Op::kCredit:
      flags_ &= ~std::uint32_t{kCreditWritten | kPeerBlocked};
      break;
    case Op::kQuiesce:
      flags_ |= kQuiesceSent;
      break;
    case Op::kFin:
      flags_ |= kFinSent;
      break;
    default:
      flags_ |= kBlockedTold;
      flags_ &= ~std::uint32_t{kBufferBlocked};
  }
  Write write = notify(op);
  const bool ends = op == Op::kReset || op == Op::kQuiesce || op == Op::kFin;
  if (ends && !has(kLastWritten)) {
    flags_ |= kLastWritten;
    write.last_of = local_.lane;
  }
  settle();
  return write;
}

template <typename Rules>
Write BasicLane<Rules>::data_message(const LaneTurn& turn) {
  std::uint64_t bytes = std::min({end_ - off_, tx_ring_.room(), tx_ring_.before_wrap(), turn.most});
  if (urgent_off_ > off_) bytes = std::min(bytes, urgent_off_ - off_);
  if (is_corked() && bytes == end_ - off_ && bytes > cork_ && !has(kFinQueued)) bytes -= bytes % cork_;
  return bytes_message(turn.source, bytes);
}

template <typename Rules>
Write BasicLane<Rules>::bytes_message(const ByteSource& source, std::uint64_t bytes) {
  const std::uint64_t to = remote_.ring + tx_ring_.position();
  const std::uint64_t from = off_;
  off_ += bytes;
  tx_ring_.advance(bytes);
  Op op = Op::kData;
  if (off_ == urgent_off_) {
    op = Op::kUrgent;
    flags_ |= kUrgentSent;
  } else if ((off_ < end_ && blocked()) || will_gather()) {
    op = Op::kDataBlocked;
    flags_ |= kBlockedTold;
  }
  Write write = notify(op);
  write.to = to;
  source.spans(from, bytes, write.from);
  return write;
}

// --- Messages

template <typename Rules>
void BasicLane<Rules>::on_message(const Message& message, std::uint32_t length) {
  if (Rules::kFinalCountIsFrozen && link_state_ == LaneLink::kFinal) return;
  if (attachment_ != Attachment::kOpen && attachment_ != Attachment::kOffering) return;
  const Reason why = take_message(message, length);
  if (why != Reason::kNone) abort(why);
  settle();
}

template <typename Rules>
Reason BasicLane<Rules>::take_message(const Message& message, std::uint32_t length) {
  const bool blocked_only = message.op == Op::kDataBlocked && length == 0;
  if (carries_bytes(message.op) != (length != 0) && !blocked_only) return Reason::kBadImmediate;
  if (message.sequence != rx_sequence_) return Reason::kBadSequence;
  rx_sequence_ = (rx_sequence_ + 1) & kSequenceMask;
  if (carries_bytes(message.op)) {
    if (has(kRxOver)) return Reason::kBadState;
    if (const Reason why = rx_ring_.place(length); why != Reason::kNone) return why;
  }
  switch (message.op) {
    case Op::kData:
      return Reason::kNone;
    case Op::kDataBlocked:
      flags_ |= kPeerBlocked;
      return Reason::kNone;
    case Op::kUrgent:
      rx_urgent_count_ = rx_ring_.placed();
      flags_ |= kRxLaneUrgent;
      place_urgent();
      return Reason::kNone;
    case Op::kCredit:
      flags_ &= ~std::uint32_t{kBlockedTold};
      return Reason::kNone;
    case Op::kFin:
      if (has(kRxOver)) return Reason::kBadState;
      end_of_ring();
      flags_ |= kRxLaneFin;
      place_fin();
      return Reason::kNone;
    case Op::kQuiesce:
      if (has(kRxOver)) return Reason::kBadState;
      end_of_ring();
      return Reason::kNone;
    case Op::kReset:
      if (!has(kRxOver)) end_of_ring();  // else FIN or QUIESCE has its answer
      abort();
      return Reason::kNone;
    case Op::kQuiesceAck:
      return on_quiesce_ack();
    default:
      return Reason::kBadImmediate;
  }
}

template <typename Rules>
void BasicLane<Rules>::end_of_ring() {
  flags_ |= kRxOver;
  if (link_state_ == LaneLink::kUp) flags_ |= kAckOwed;
  flags_ &= ~std::uint32_t{kCreditWritten | kPeerBlocked | kTellNow};
}

template <typename Rules>
Reason BasicLane<Rules>::on_quiesce_ack() {
  const bool wrong = has(kTxOver | kAckCame) || !has(kLastWritten);
  flags_ |= kAckCame;
  if (wrong && !has(kAborted)) return Reason::kBadState;
  if (has(kWritesDone) || !Rules::kWaitsForDevice) writing_is_over();
  return Reason::kNone;
}

template <typename Rules>
void BasicLane<Rules>::on_writes_done() {
  flags_ |= kWritesDone;
  if (!has(kAckCame) || has(kTxOver)) return;
  writing_is_over();
  settle();
}

template <typename Rules>
void BasicLane<Rules>::writing_is_over() {
  flags_ |= kTxOver;
  // It may still come when the link has failed here, and even when RXSTATE has already brought the direction back.
  if (has(kAborted) || tx_path_ == TxPath::kTcp) return;
  tx_ring_.all_placed();
  if (has(kQuiesceSent)) return resume_at(off_);
  flags_ |= kFinAcked;
  lane_una_ = end_;
  tx_path_ = TxPath::kTcp;
}

// What came as a message has its place in the stream once CUT says where the lane's part begins.
template <typename Rules>
void BasicLane<Rules>::place_fin() {
  if (!has(kRxLaneFin) || !has(kRxCut)) return;
  rx_fin_off_ = rx_cut_off_ + rx_ring_.placed();
  flags_ |= kRxFin;
}

template <typename Rules>
void BasicLane<Rules>::place_urgent() {
  if (!has(kRxLaneUrgent) || !has(kRxCut)) return;
  rx_urgent_off_ = std::max(rx_urgent_off_, rx_cut_off_ + rx_urgent_count_);
  flags_ &= ~std::uint32_t{kRxLaneUrgent};
}

template <typename Rules>
void BasicLane<Rules>::on_link_failed() {
  if (attachment_ == Attachment::kNone || link_state_ != LaneLink::kUp) return;
  link_state_ = LaneLink::kFailed;
  flags_ &= ~std::uint32_t{kAckOwed};  // it cannot be said any more: RXSTATE, or TCP's end, will do
  if (attachment_ == Attachment::kOpen) owed_ |= kOweLinkDown;
  if (tx_path_ != TxPath::kTcp) tx_path_ = TxPath::kStopped;
}

template <typename Rules>
void BasicLane<Rules>::on_link_final() {
  on_link_failed();
  if (attachment_ == Attachment::kNone || link_state_ == LaneLink::kFinal) return;
  link_state_ = LaneLink::kFinal;
  if (attachment_ == Attachment::kOpen) owed_ |= kOweRxState;
  settle();
}

}  // namespace bypass::fastpath
