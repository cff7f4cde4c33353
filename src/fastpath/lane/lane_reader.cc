#include "fastpath/lane/lane_reader.h"

#include <algorithm>

namespace bypass::fastpath {

bool LaneReader::is_full(std::uint64_t window) const {
  if (path_ == RxPath::kLane) return ring_.is_full();
  return tcp_ready_ + (tcp_taken_ - tcp_told_) >= window && !tcp_credit_due(window);
}

// --- Records

Reason LaneReader::on_data(std::uint64_t bytes, std::uint64_t window) {
  if (path_ == RxPath::kLane || has(kFin)) return Reason::kBadState;
  in_off_ += bytes;
  tcp_ready_ += bytes;
  return tcp_ready_ > window ? Reason::kRingOverrun : Reason::kNone;
}

Reason LaneReader::on_cut(const Record& record, std::uint16_t lane) {
  if (path_ != RxPath::kTcp || has(kCut | kFin)) return Reason::kBadState;
  if (record.epoch != static_cast<std::uint8_t>(epoch_ + 1)) return Reason::kBadEpoch;
  if (record.value != in_off_ || record.lane != lane) return Reason::kBadOffset;
  epoch_++;
  path_ = RxPath::kLane;
  cut_off_ = record.value;
  set(kCut);
  place_urgent();
  place_fin();
  return Reason::kNone;
}

Reason LaneReader::on_resume(const Record& record, bool of_link, bool is_final) {
  if (record.epoch != static_cast<std::uint8_t>(epoch_ + 1)) return Reason::kBadEpoch;
  epoch_++;
  // FIN came over the lane and was read, and our answer was lost: the direction is over.
  if (path_ == RxPath::kTcp && has(kFin)) return record.value == fin_off_ ? Reason::kNone : Reason::kBadOffset;
  if (path_ != RxPath::kLane || !of_link) return Reason::kBadState;
  // The peer may say where a count ends only if that count can change no more.
  if (!is_final && !has(kOver)) return Reason::kBadState;
  if (record.value != cut_off_ + ring_.placed()) return Reason::kBadOffset;
  resume_off_ = in_off_ = record.value;
  path_ = RxPath::kBack;
  return Reason::kNone;
}

Reason LaneReader::on_fin(const Record& record) {
  if (has(kFin)) return record.value == fin_off_ ? Reason::kNone : Reason::kBadOffset;
  if (path_ == RxPath::kLane) return Reason::kBadState;
  if (record.value != in_off_) return Reason::kBadOffset;
  fin_off_ = record.value;
  set(kFin);
  return Reason::kNone;
}

void LaneReader::on_urgent(std::uint64_t offset) {
  urgent_off_ = std::max(urgent_off_, offset);
}

// --- Messages

void LaneReader::open(std::uint8_t ring_log2) {
  ring_.open(ring_log2);
  sequence_ = 0;
}

void LaneReader::on_urgent_message() {
  urgent_count_ = ring_.placed();
  set(kLaneUrgent);
  place_urgent();
}

void LaneReader::on_fin_message() {
  set(kLaneFin);
  place_fin();
}

void LaneReader::end_of_ring(bool answers) {
  set(kOver);
  if (answers) set(kAckOwed);
  clear(kCreditWritten | kPeerBlocked | kTellNow);
}

void LaneReader::place_fin() {
  if (!has(kLaneFin) || !has(kCut)) return;
  fin_off_ = cut_off_ + ring_.placed();
  set(kFin);
}

void LaneReader::place_urgent() {
  if (!has(kLaneUrgent) || !has(kCut)) return;
  urgent_off_ = std::max(urgent_off_, cut_off_ + urgent_count_);
  clear(kLaneUrgent);
}

}  // namespace bypass::fastpath
