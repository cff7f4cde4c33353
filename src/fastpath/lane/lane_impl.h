// The definitions of lane.h's template: what both directions share, and TCP's records. The messages are in
// lane_link_impl.h.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/model_test.cc.
#pragma once

#include <algorithm>

#include "fastpath/lane/lane.h"
#include "fastpath/lane/lane_writer_impl.h"

namespace bypass::fastpath {

template <typename Rules>
BasicLane<Rules>::BasicLane(const LaneConfig& config) : tcp_window_(config.tcp_window), at_(config.opens) {}

// --- Opening

template <typename Rules>
void BasicLane<Rules>::offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory) {
  at_.offer(link, local, peer_memory);
  // The peer may write as soon as it has accepted, and its link may be faster than its TCP.
  rx_.open(local.ring_log2);
}

template <typename Rules>
void BasicLane<Rules>::accept(const LaneAddress& local, std::uint64_t peer_memory) {
  if (const Reason why = at_.accept(local, peer_memory); why != Reason::kNone) return abort(why);
  rx_.open(local.ring_log2);
  tx_.open(at_.remote().ring_log2);
}

template <typename Rules>
bool BasicLane<Rules>::can_cut() const {
  constexpr unsigned kAgainst = At::kCloseSent | At::kPeerClose | At::kPeerRxState | At::kSuspect | At::kAborted;
  return at_.on_link() && tx_.path() == TxPath::kTcp && !tx_.has(Tx::kCut | Tx::kFinSent) && !at_.has(kAgainst) &&
         !at_.owes(At::kOweResume);
}

template <typename Rules>
void BasicLane<Rules>::cut() {
  at_.owe_cut(tx_.cut());
}

template <typename Rules>
void BasicLane<Rules>::leave() {
  if (at_.leave()) tx_.quiesce();
}

template <typename Rules>
void BasicLane<Rules>::resume_at(std::uint64_t offset) {
  tx_.resume_at(offset);
  at_.owe(At::kOweResume);
}

/// Takes the steps that have become possible: a direction leaves its path, or the lane is detached.
template <typename Rules>
void BasicLane<Rules>::settle() {
  rx_.settle();
  if (!at_.is_open() || tx_.path() != TxPath::kTcp || rx_.path() != RxPath::kTcp) return;
  if (at_.owes(At::kOweCut | At::kOweResume) || !source_idle()) return;
  const bool both_dead = at_.has(At::kRxStateSent) && at_.has(At::kPeerRxState);
  const bool both_left = at_.has(At::kCloseSent) && at_.has(At::kPeerClose) && !at_.owes(At::kOweClose);
  if (both_dead || (both_left && (is_silent() || at_.has(At::kRxStateSent)))) detach();
}

template <typename Rules>
void BasicLane<Rules>::detach() {
  tx_.detach();
  rx_.detach();
  at_.detach();
}

// --- Records to be sent

template <typename Rules>
bool BasicLane<Rules>::source_idle() const {
  if (tx_.path() != TxPath::kTcp) return false;
  return detached() || at_.link_state() == LaneLink::kFinal || !tx_.has(Tx::kCut) || tx_.has(Tx::kOver);
}

template <typename Rules>
bool BasicLane<Rules>::next_record(Record& out, std::uint32_t most_data) {
  out = {};
  if (aborted()) return false;
  if (!next_control(out) && !tx_.next_data(out, std::min<std::uint64_t>(data_ready(), most_data))) return false;
  settle();
  return true;
}

// The records that open a lane go before those that speak about it. CUT goes before RXSTATE: an end that has received
// RXSTATE knows that no CUT will come.
template <typename Rules>
bool BasicLane<Rules>::next_control(Record& out) {
  out.link = at_.link();
  if (at_.take_owed(At::kOweOpen)) {
    out.type = RecordType::kLaneOpen, out.address = at_.local();
  } else if (at_.take_owed(At::kOweOk)) {
    out.type = RecordType::kLaneOk, out.address = at_.local();
  } else if (at_.take_owed(At::kOweNo)) {
    out.type = RecordType::kLaneNo, out.reason = static_cast<std::uint32_t>(at_.declined());
  } else if (at_.take_owed(At::kOweCut)) {
    out.type = RecordType::kCut, out.epoch = at_.cut_epoch(), out.lane = at_.remote().lane;
    out.value = tx_.cut_offset();
  } else if (at_.take_owed(At::kOweResume)) {
    out.type = RecordType::kResume, out.epoch = tx_.epoch(), out.value = tx_.next_offset();
  } else if (at_.take_owed(At::kOweLinkDown)) {
    out.type = RecordType::kLinkDown;
  } else if (at_.take_owed(At::kOweRxState)) {
    const std::uint64_t placed = rx_.ring().placed();
    out.type = RecordType::kRxState, out.lane = at_.local().lane;
    out.value = Rules::kCountIsOfTheLane ? placed : rx_.before_lane() + placed;
    at_.set(At::kRxStateSent);
  } else if (at_.take_owed(At::kOweClose)) {
    out.type = RecordType::kLaneClose;
  } else if (at_.take_owed(At::kOwePong)) {
    out.type = RecordType::kPong, out.link = 0, out.value = ping_token_;
  } else if (rx_.tcp_credit_due(tcp_window_)) {
    out.type = RecordType::kCredit, out.link = 0, out.value = rx_.tell_tcp_credit();
  } else {
    return false;
  }
  return true;
}

// --- Records that have come

template <typename Rules>
Reason BasicLane<Rules>::on_record(const Record& record) {
  if (aborted()) return Reason::kNone;
  const Reason why = take_record(record);
  if (why != Reason::kNone) abort(why);
  settle();
  return why;
}

template <typename Rules>
Reason BasicLane<Rules>::take_record(const Record& record) {
  const bool of_this_link = at_.is_open() && record.link == at_.link();
  switch (record.type) {
    case RecordType::kData:
      return rx_.on_data(record.length, tcp_window_);
    case RecordType::kCredit:
      return tx_.on_tcp_credit(record.value);
    case RecordType::kCut:
      if (!of_this_link || at_.has(At::kPeerClose | At::kPeerRxState)) return Reason::kBadState;
      return rx_.on_cut(record, at_.local().lane);
    case RecordType::kResume:
      return rx_.on_resume(record, record.link == at_.link(), at_.has(At::kRxStateSent));
    case RecordType::kRxState:  // for a lane that this end has left already, this says nothing new
      return of_this_link ? on_rx_state(record) : Reason::kNone;
    case RecordType::kLinkDown:
      if (of_this_link && (tx_.path() != TxPath::kTcp || Rules::kForeignStateEndsLink)) at_.set(At::kSuspect);
      return Reason::kNone;
    case RecordType::kLaneOpen:
      return at_.on_open(record);
    case RecordType::kLaneOk:
    case RecordType::kLaneNo:
      return on_lane_answer(record);
    case RecordType::kLaneClose:
      if (!of_this_link) return Reason::kNone;
      at_.set(At::kPeerClose);
      leave();
      return Reason::kNone;
    case RecordType::kFin:
      return rx_.on_fin(record);
    case RecordType::kUrgent:
      rx_.on_urgent(record.value);
      return Reason::kNone;
    case RecordType::kPing:
      ping_token_ = record.value;
      at_.owe(At::kOwePong);
      return Reason::kNone;
    case RecordType::kRevert:  // before the first lane, and for good
      return detached() && rx_.has_no_epoch() ? Reason::kNone : Reason::kBadState;
    case RecordType::kPong:
    case RecordType::kLinkHello:  // about the link, not about the lane
    case RecordType::kLinkReq:
    case RecordType::kLinkAcc:
    case RecordType::kLinkReady:
      return Reason::kNone;
  }
  return Reason::kBadRecord;
}

template <typename Rules>
Reason BasicLane<Rules>::on_rx_state(const Record& record) {
  if (at_.has(At::kPeerRxState) || record.lane != at_.remote().lane) return Reason::kBadState;
  const bool on_it = tx_.path() != TxPath::kTcp;
  // This holds also if this direction is not on the link: a later CUT to the lane would never be answered.
  if (on_it || Rules::kForeignStateEndsLink) at_.set(At::kPeerRxState | At::kSuspect);
  if (!on_it) return Reason::kNone;
  const std::uint64_t resume = Rules::kCountIsOfTheLane ? tx_.cut_offset() + record.value : record.value;
  if (Rules::kCountIsOfTheLane && (record.value < tx_.ring().placed() || record.value > tx_.ring().sent()))
    return Reason::kBadOffset;
  resume_at(resume);
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_lane_answer(const Record& record) {
  if (!at_.is_answer(record)) return Reason::kBadState;
  if (record.type == RecordType::kLaneNo) {
    at_.note_declined(static_cast<Reason>(record.reason));
    detach();
    return Reason::kNone;
  }
  if (const Reason why = at_.on_ok(record); why != Reason::kNone) return why;
  tx_.open(at_.remote().ring_log2);
  return Reason::kNone;
}

// --- The end

template <typename Rules>
bool BasicLane<Rules>::finished() const {
  // Before LANE_OK no message can be sent on the lane, and a peer whose TCP has ended sends no LANE_OK.
  const bool owes_answer = rx_.has(LaneReader::kAckOwed) && at_.is_open();
  if (aborted() || !peer_ended() || owes_answer || at_.owes_any()) return false;
  return end_acked() || end_sent_over_tcp();
}

template <typename Rules>
Reason BasicLane<Rules>::on_tcp_end() {
  if (aborted()) return Reason::kNone;
  if (!tx_.has(Tx::kFinQueued) || !tx_.all_sent() || !peer_ended()) {
    abort(Reason::kBadState);
    return reason();
  }
  tx_.all_acked();
  at_.forget(At::kOweResume);
  return Reason::kNone;
}

template <typename Rules>
bool BasicLane<Rules>::released() const {
  const bool unread = rx_.path() != RxPath::kTcp && rx_.ring().consumed() != rx_.ring().placed();
  if (unread && !aborted()) return false;
  if (detached() || at_.link_state() == LaneLink::kFinal) return true;
  return is_silent() && (aborted() ? !reset_due() : finished());
}

template <typename Rules>
bool BasicLane<Rules>::is_silent() const {
  if (rx_.has(LaneReader::kAckOwed)) return false;
  const bool tx_over = tx_.has(Tx::kOver), rx_over = rx_.has(LaneReader::kOver);
  if (Rules::kBothSayTheirEnd) return tx_over && rx_over;
  return (tx_over || !tx_.has(Tx::kCut | Tx::kResetSent)) && (rx_over || (peer_ended() && !rx_.has(LaneReader::kCut)));
}

}  // namespace bypass::fastpath
