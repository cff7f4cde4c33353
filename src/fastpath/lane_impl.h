// The definitions of lane.h's template: what both directions share, and TCP's records. lane_link_impl.h has the
// messages.
#pragma once

#include <algorithm>

#include "fastpath/lane.h"

namespace bypass::fastpath {

template <typename Rules>
BasicLane<Rules>::BasicLane(const LaneConfig& config) : tcp_window_(config.tcp_window) {
  if (config.opens) flags_ |= kOpens;
}

// --- The program's side

template <typename Rules>
std::uint64_t BasicLane<Rules>::una() const {
  const bool all_acked = tcp_una_ >= tcp_end_;
  if (!all_acked && tcp_una_ < cut_off_) return tcp_una_;
  if (!all_acked || tx_path_ == TxPath::kTcp) return std::max(tcp_una_, lane_una_);
  return Rules::kKeepsUntilPlaced ? cut_off_ + tx_ring_.placed() : off_;
}

template <typename Rules>
auto BasicLane<Rules>::readable() const -> Readable {
  const bool before_cut = rx_path_ != RxPath::kTcp && rcv_ < rx_cut_off_;
  if (rx_path_ == RxPath::kTcp || before_cut) {
    const std::uint64_t bytes = before_cut ? std::min(tcp_ready_, rx_cut_off_ - rcv_) : tcp_ready_;
    return {bytes != 0 ? From::kTcp : From::kNothing, bytes, 0};
  }
  if (!Rules::kRingBeforeTcp && tcp_ready_ != 0) return {From::kTcp, tcp_ready_, 0};
  const std::uint64_t end = rx_path_ == RxPath::kBack ? rx_resume_off_ : rx_cut_off_ + rx_ring_.placed();
  const std::uint64_t at = rx_ring_.consumed();
  const std::uint64_t bytes = std::min(end - rcv_, rx_ring_.before_wrap(at));
  return {bytes != 0 ? From::kRing : From::kNothing, bytes, rx_ring_.position(at)};
}

template <typename Rules>
auto BasicLane<Rules>::parts() const -> Parts {
  if (rx_path_ == RxPath::kTcp) return {.tcp = tcp_ready_};
  Parts out;
  if (rcv_ < rx_cut_off_) out.tcp = std::min(tcp_ready_, rx_cut_off_ - rcv_);
  out.tcp_behind = tcp_ready_ - out.tcp;
  out.ring_at = rx_ring_.consumed();
  out.ring = rx_ring_.placed() - out.ring_at;
  return out;
}

template <typename Rules>
void BasicLane<Rules>::consume(std::uint64_t bytes) {
  if (readable().from == From::kRing) {
    rx_ring_.consume(bytes);
  } else {
    tcp_ready_ -= bytes;
    tcp_taken_ += bytes;
  }
  rcv_ += bytes;
  settle();
}

template <typename Rules>
void BasicLane<Rules>::abort(Reason why) {
  if (has(kAborted)) return;
  flags_ |= kAborted;
  reason_ = why;
}

// --- Opening

template <typename Rules>
bool BasicLane<Rules>::fits(const LaneAddress& address, std::uint64_t memory) {
  const std::uint64_t ring = std::uint64_t{1} << (address.ring_log2 & 63);
  const bool ring_fits = ring <= memory && address.ring <= memory - ring;
  const bool credit_fits = sizeof(CreditBlock) <= memory && address.credit <= memory - sizeof(CreditBlock);
  return ring_fits && credit_fits && address.ring >= sizeof(LinkBlock) && address.credit >= sizeof(LinkBlock) &&
         address.credit % alignof(CreditBlock) == 0;
}

template <typename Rules>
void BasicLane<Rules>::offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory) {
  link_ = link;
  local_ = local;
  peer_memory_ = peer_memory;
  declined_ = Reason::kNone;
  attachment_ = Attachment::kOffering;
  // The peer may write as soon as it has accepted, and its link may be faster than its TCP.
  rx_ring_.open(local.ring_log2);
  rx_sequence_ = 0;
  owed_ |= kOweOpen;
}

template <typename Rules>
void BasicLane<Rules>::accept(const LaneAddress& local, std::uint64_t peer_memory) {
  if (!fits(remote_, peer_memory)) return abort(Reason::kBadRecord);
  local_ = local;
  attachment_ = Attachment::kOpen;
  rx_ring_.open(local.ring_log2);
  rx_sequence_ = 0;
  tx_ring_.open(remote_.ring_log2);
  tx_sequence_ = 0;
  owed_ |= kOweOk;
}

template <typename Rules>
void BasicLane<Rules>::decline(Reason why) {
  declined_ = why;
  attachment_ = Attachment::kNone;
  owed_ |= kOweNo;
}

template <typename Rules>
bool BasicLane<Rules>::can_cut() const {
  constexpr std::uint32_t kAgainst = kTxCut | kCloseSent | kPeerClose | kPeerRxState | kSuspect | kFinSent | kAborted;
  return on_link() && tx_path_ == TxPath::kTcp && !has(kAgainst) && (owed_ & kOweResume) == 0;
}

template <typename Rules>
void BasicLane<Rules>::cut() {
  flags_ |= kTxCut;
  cut_off_ = off_;
  tx_path_ = TxPath::kLane;
  cut_epoch_ = ++tx_epoch_;
  owed_ |= kOweCut;
}

template <typename Rules>
void BasicLane<Rules>::leave() {
  if (attachment_ != Attachment::kOpen || has(kCloseSent)) return;
  flags_ |= kCloseSent;
  owed_ |= kOweClose;
  // Where FIN is under way on the lane, its answer ends this direction.
  if (tx_path_ == TxPath::kLane && !has(kFinSent)) tx_path_ = TxPath::kQuiescing;
}

/// From `offset` on, this direction is TCP's. What the buffer has from there on is sent again.
template <typename Rules>
void BasicLane<Rules>::resume_at(std::uint64_t offset) {
  off_ = offset;
  lane_una_ = offset;
  tx_path_ = TxPath::kTcp;
  tx_epoch_++;
  owed_ |= kOweResume;
  if (Rules::kFinIsRepeated) flags_ &= ~std::uint32_t{kFinSent};
  if (urgent_off_ > offset) flags_ &= ~std::uint32_t{kUrgentSent};
}

/// What follows from what has become true: a direction's end on the lane, the lane's own end.
template <typename Rules>
void BasicLane<Rules>::settle() {
  if (rx_path_ == RxPath::kBack && rcv_ == rx_resume_off_) rx_path_ = RxPath::kTcp;
  if (rx_path_ == RxPath::kLane && has(kRxLaneFin) && at_eof()) {
    rx_path_ = RxPath::kTcp;
    in_off_ = rx_fin_off_;
  }
  if (attachment_ != Attachment::kOpen || tx_path_ != TxPath::kTcp || rx_path_ != RxPath::kTcp) return;
  if ((owed_ & (kOweCut | kOweResume)) != 0 || !source_idle()) return;
  const bool both_dead = has(kRxStateSent) && has(kPeerRxState);
  const bool both_left = has(kCloseSent) && has(kPeerClose) && (owed_ & kOweClose) == 0;
  if (both_dead || (both_left && (is_silent() || has(kRxStateSent)))) detach();
}

template <typename Rules>
void BasicLane<Rules>::detach() {
  attachment_ = Attachment::kNone;
  link_state_ = LaneLink::kUp;
  flags_ &= ~kOfOneLane;
  owed_ = static_cast<std::uint16_t>(owed_ & ~(kOweLinkDown | kOweRxState));  // of a link that nothing depends on
  if (!has(kOfferWaits)) return;
  flags_ &= ~std::uint32_t{kOfferWaits};
  attachment_ = Attachment::kOffered;
  link_ = waiting_link_;
  remote_ = waiting_;
}

// --- Records to be sent

template <typename Rules>
bool BasicLane<Rules>::take_owed(Owed what) {
  if ((owed_ & what) == 0) return false;
  owed_ = static_cast<std::uint16_t>(owed_ & ~what);
  return true;
}

template <typename Rules>
bool BasicLane<Rules>::tcp_credit_due() const {
  return !has(kRxFin) && tcp_taken_ != tcp_told_ && 4 * (tcp_taken_ - tcp_told_) >= tcp_window_;
}

template <typename Rules>
bool BasicLane<Rules>::is_full() const {
  if (rx_path_ == RxPath::kLane) return rx_ring_.is_full();
  return tcp_ready_ + (tcp_taken_ - tcp_told_) >= tcp_window_ && !tcp_credit_due();
}

template <typename Rules>
bool BasicLane<Rules>::has_control() const {
  if (has(kAborted)) return false;
  if (owed_ != 0 || tcp_credit_due()) return true;
  if (tx_path_ != TxPath::kTcp) return false;
  return (urgent_off_ > off_ && !has(kUrgentSent)) || (has(kFinQueued) && !has(kFinSent) && off_ == end_);
}

template <typename Rules>
std::uint64_t BasicLane<Rules>::data_ready() const {
  if (tx_path_ != TxPath::kTcp || has(kAborted)) return 0;
  return std::min(end_ - off_, tcp_window_ - (tcp_sent_ - tcp_credit_));
}

template <typename Rules>
bool BasicLane<Rules>::source_idle() const {
  if (tx_path_ != TxPath::kTcp) return false;
  return attachment_ == Attachment::kNone || link_state_ == LaneLink::kFinal || !has(kTxCut) || has(kTxOver);
}

template <typename Rules>
bool BasicLane<Rules>::next_record(Record& out, std::uint32_t most_data) {
  out = {};
  if (has(kAborted)) return false;
  if (!next_control(out) && !next_data(out, most_data)) return false;
  settle();
  return true;
}

// What opens a lane goes in front of what is said of it. CUT goes in front of RXSTATE: who has had RXSTATE knows that
// no CUT will come.
template <typename Rules>
bool BasicLane<Rules>::next_control(Record& out) {
  out.link = link_;
  if (take_owed(kOweOpen)) {
    out.type = RecordType::kLaneOpen, out.address = local_;
  } else if (take_owed(kOweOk)) {
    out.type = RecordType::kLaneOk, out.address = local_;
  } else if (take_owed(kOweNo)) {
    out.type = RecordType::kLaneNo, out.reason = static_cast<std::uint32_t>(declined_);
  } else if (take_owed(kOweCut)) {
    out.type = RecordType::kCut, out.epoch = cut_epoch_, out.lane = remote_.lane, out.value = cut_off_;
  } else if (take_owed(kOweResume)) {
    out.type = RecordType::kResume, out.epoch = tx_epoch_, out.value = off_;
  } else if (take_owed(kOweLinkDown)) {
    out.type = RecordType::kLinkDown;
  } else if (take_owed(kOweRxState)) {
    const std::uint64_t before = has(kRxCut) ? rx_cut_off_ : in_off_;
    out.type = RecordType::kRxState, out.lane = local_.lane;
    out.value = Rules::kCountIsOfTheLane ? rx_ring_.placed() : before + rx_ring_.placed();
    flags_ |= kRxStateSent;
  } else if (take_owed(kOweClose)) {
    out.type = RecordType::kLaneClose;
  } else if (take_owed(kOwePong)) {
    out.type = RecordType::kPong, out.link = 0, out.value = ping_token_;
  } else if (tcp_credit_due()) {
    out.type = RecordType::kCredit, out.link = 0, out.value = tcp_told_ = tcp_taken_;
  } else {
    return false;
  }
  return true;
}

template <typename Rules>
bool BasicLane<Rules>::next_data(Record& out, std::uint32_t most) {
  out.link = 0;
  if (tx_path_ != TxPath::kTcp) return false;
  if (urgent_off_ > off_ && !has(kUrgentSent)) {
    out.type = RecordType::kUrgent, out.value = urgent_off_;
    flags_ |= kUrgentSent;
    return true;
  }
  const std::uint64_t bytes = std::min({data_ready(), std::uint64_t{most}, std::uint64_t{kMaxData}});
  if (bytes != 0) {
    out.type = RecordType::kData, out.value = off_, out.length = static_cast<std::uint32_t>(bytes);
    off_ += bytes;
    tcp_sent_ += bytes;
    tcp_end_ = off_;
    return true;
  }
  if (!has(kFinQueued) || has(kFinSent) || off_ != end_) return false;
  out.type = RecordType::kFin, out.value = end_;
  flags_ |= kFinSent;
  return true;
}

template <typename Rules>
void BasicLane<Rules>::on_tcp_acked(std::uint64_t offset) {
  tcp_una_ = std::max(tcp_una_, std::min(offset, tcp_end_));
}

// --- Records that have come

template <typename Rules>
Reason BasicLane<Rules>::on_record(const Record& record) {
  if (has(kAborted)) return Reason::kNone;
  const Reason why = take_record(record);
  if (why != Reason::kNone) abort(why);
  settle();
  return why;
}

template <typename Rules>
Reason BasicLane<Rules>::take_record(const Record& record) {
  const bool of_this_link = attachment_ == Attachment::kOpen && record.link == link_;
  switch (record.type) {
    case RecordType::kData:
      return on_data(record);
    case RecordType::kCredit:
      return on_tcp_credit(record);
    case RecordType::kCut:
      return of_this_link ? on_cut(record) : Reason::kBadState;
    case RecordType::kResume:
      return on_resume(record);
    case RecordType::kRxState:  // of a lane that this end has left already, it is no news
      return of_this_link ? on_rx_state(record) : Reason::kNone;
    case RecordType::kLinkDown:
      if (of_this_link && (tx_path_ != TxPath::kTcp || Rules::kForeignStateEndsLink)) flags_ |= kSuspect;
      return Reason::kNone;
    case RecordType::kLaneOpen:
      return on_lane_open(record);
    case RecordType::kLaneOk:
    case RecordType::kLaneNo:
      return on_lane_answer(record);
    case RecordType::kLaneClose:
      return of_this_link ? on_lane_close(record) : Reason::kNone;
    case RecordType::kFin:
      return on_fin(record);
    case RecordType::kUrgent:
      rx_urgent_off_ = std::max(rx_urgent_off_, record.value);
      return Reason::kNone;
    case RecordType::kPing:
      return on_ping(record);
    case RecordType::kRevert:  // before the first lane, and for good
      return attachment_ == Attachment::kNone && rx_epoch_ == 0 ? Reason::kNone : Reason::kBadState;
    case RecordType::kPong:
    case RecordType::kLinkHello:  // of the link, not of the lane
    case RecordType::kLinkReq:
    case RecordType::kLinkAcc:
    case RecordType::kLinkReady:
      return Reason::kNone;
  }
  return Reason::kBadRecord;
}

template <typename Rules>
Reason BasicLane<Rules>::on_data(const Record& record) {
  if (rx_path_ == RxPath::kLane || has(kRxFin)) return Reason::kBadState;
  in_off_ += record.length;
  tcp_ready_ += record.length;
  return tcp_ready_ > tcp_window_ ? Reason::kRingOverrun : Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_tcp_credit(const Record& record) {
  if (record.value > tcp_sent_) return Reason::kBadCredit;
  tcp_credit_ = std::max(tcp_credit_, record.value);
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_ping(const Record& record) {
  ping_token_ = record.value;
  owed_ |= kOwePong;
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_cut(const Record& record) {
  if (rx_path_ != RxPath::kTcp || has(kRxCut | kRxFin | kPeerClose | kPeerRxState)) return Reason::kBadState;
  if (record.epoch != static_cast<std::uint8_t>(rx_epoch_ + 1)) return Reason::kBadEpoch;
  if (record.value != in_off_ || record.lane != local_.lane) return Reason::kBadOffset;
  rx_epoch_++;
  rx_path_ = RxPath::kLane;
  rx_cut_off_ = record.value;
  flags_ |= kRxCut;
  place_urgent();
  place_fin();
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_resume(const Record& record) {
  if (record.epoch != static_cast<std::uint8_t>(rx_epoch_ + 1)) return Reason::kBadEpoch;
  rx_epoch_++;
  // FIN came over the lane and was read, and the answer was lost: the direction is over.
  if (rx_path_ == RxPath::kTcp && has(kRxFin)) return record.value == rx_fin_off_ ? Reason::kNone : Reason::kBadOffset;
  if (rx_path_ != RxPath::kLane || record.link != link_) return Reason::kBadState;
  // Only of a count that can change no more may the peer say where it ends.
  if (!has(kRxStateSent | kRxOver)) return Reason::kBadState;
  if (record.value != rx_cut_off_ + rx_ring_.placed()) return Reason::kBadOffset;
  rx_resume_off_ = in_off_ = record.value;
  rx_path_ = RxPath::kBack;
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_rx_state(const Record& record) {
  if (has(kPeerRxState) || record.lane != remote_.lane) return Reason::kBadState;
  const bool on_it = tx_path_ != TxPath::kTcp;
  // Also where this direction is not on the link: a CUT to it would never be answered.
  if (on_it || Rules::kForeignStateEndsLink) flags_ |= kPeerRxState | kSuspect;
  if (!on_it) return Reason::kNone;
  const std::uint64_t resume = Rules::kCountIsOfTheLane ? cut_off_ + record.value : record.value;
  if (Rules::kCountIsOfTheLane && (record.value < tx_ring_.placed() || record.value > tx_ring_.sent()))
    return Reason::kBadOffset;
  resume_at(resume);
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_fin(const Record& record) {
  if (has(kRxFin)) return record.value == rx_fin_off_ ? Reason::kNone : Reason::kBadOffset;
  if (rx_path_ == RxPath::kLane) return Reason::kBadState;
  if (record.value != in_off_) return Reason::kBadOffset;
  rx_fin_off_ = record.value;
  flags_ |= kRxFin;
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_lane_open(const Record& record) {
  if (has(kOpens) || has(kOfferWaits) || attachment_ == Attachment::kOffered || (owed_ & kOweNo) != 0)
    return Reason::kBadState;
  if (attachment_ == Attachment::kNone) {
    attachment_ = Attachment::kOffered;
    link_ = record.link;
    remote_ = record.address;
    return Reason::kNone;
  }
  flags_ |= kOfferWaits;
  waiting_link_ = record.link;
  waiting_ = record.address;
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_lane_answer(const Record& record) {
  if (attachment_ != Attachment::kOffering || record.link != link_) return Reason::kBadState;
  if (record.type == RecordType::kLaneNo) {
    declined_ = static_cast<Reason>(record.reason);
    detach();
    return Reason::kNone;
  }
  if (!fits(record.address, peer_memory_)) return Reason::kBadRecord;
  remote_ = record.address;
  attachment_ = Attachment::kOpen;
  tx_ring_.open(remote_.ring_log2);
  tx_sequence_ = 0;
  if (link_state_ != LaneLink::kUp) owed_ |= kOweLinkDown;
  if (link_state_ == LaneLink::kFinal) owed_ |= kOweRxState;
  return Reason::kNone;
}

template <typename Rules>
Reason BasicLane<Rules>::on_lane_close(const Record&) {
  flags_ |= kPeerClose;
  leave();
  return Reason::kNone;
}

// --- The end

template <typename Rules>
bool BasicLane<Rules>::finished() const {
  // Before LANE_OK nothing can be said on the lane, and a peer whose TCP has ended says no LANE_OK.
  const bool owes_answer = has(kAckOwed) && attachment_ == Attachment::kOpen;
  if (has(kAborted) || !has(kRxFin) || owes_answer || owed_ != 0) return false;
  return end_acked() || end_sent_over_tcp();
}

template <typename Rules>
Reason BasicLane<Rules>::on_tcp_end() {
  if (has(kAborted)) return Reason::kNone;
  if (!has(kFinQueued) || off_ != end_ || !has(kRxFin)) {
    abort(Reason::kBadState);
    return reason_;
  }
  flags_ |= kFinSent | kFinAcked;
  lane_una_ = end_;
  tx_path_ = TxPath::kTcp;
  owed_ = static_cast<std::uint16_t>(owed_ & ~kOweResume);
  return Reason::kNone;
}

template <typename Rules>
bool BasicLane<Rules>::released() const {
  const bool unread = rx_path_ != RxPath::kTcp && rx_ring_.consumed() != rx_ring_.placed();
  if (unread && !has(kAborted)) return false;
  if (attachment_ == Attachment::kNone || link_state_ == LaneLink::kFinal) return true;
  return is_silent() && (has(kAborted) ? !reset_due() : finished());
}

template <typename Rules>
bool BasicLane<Rules>::is_silent() const {
  if (has(kAckOwed)) return false;
  if (Rules::kBothSayTheirEnd) return has(kTxOver) && has(kRxOver);
  return (has(kTxOver) || !has(kTxCut | kResetSent)) && (has(kRxOver) || (has(kRxFin) && !has(kRxCut)));
}

}  // namespace bypass::fastpath
