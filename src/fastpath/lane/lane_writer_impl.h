// The definitions of lane_writer.h's template.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/gather_test.cc.
#pragma once

#include <algorithm>

#include "fastpath/lane/lane_writer.h"

namespace bypass::fastpath {

template <typename Rules>
std::uint64_t LaneWriter<Rules>::una() const {
  const bool all_acked = tcp_una_ >= tcp_end_;
  if (!all_acked && tcp_una_ < cut_off_) return tcp_una_;
  if (!all_acked || path_ == TxPath::kTcp) return std::max(tcp_una_, lane_una_);
  return Rules::kKeepsUntilPlaced ? cut_off_ + ring_.placed() : off_;
}

// --- Over TCP

template <typename Rules>
bool LaneWriter<Rules>::next_data(Record& out, std::uint64_t most) {
  out.link = 0;
  if (path_ != TxPath::kTcp) return false;
  if (urgent_waits() && !has(kUrgentSent)) {
    out.type = RecordType::kUrgent, out.value = urgent_off_;
    set(kUrgentSent);
    return true;
  }
  const std::uint64_t bytes = std::min(most, std::uint64_t{kMaxData});
  if (bytes != 0) {
    out.type = RecordType::kData, out.value = off_, out.length = static_cast<std::uint32_t>(bytes);
    off_ += bytes;
    tcp_sent_ += bytes;
    tcp_end_ = off_;
    return true;
  }
  if (!fin_due()) return false;
  out.type = RecordType::kFin, out.value = end_;
  set(kFinSent);
  return true;
}

template <typename Rules>
Reason LaneWriter<Rules>::on_tcp_credit(std::uint64_t taken) {
  if (taken > tcp_sent_) return Reason::kBadCredit;
  tcp_credit_ = std::max(tcp_credit_, taken);
  return Reason::kNone;
}

template <typename Rules>
void LaneWriter<Rules>::resume_at(std::uint64_t offset) {
  off_ = offset;
  lane_una_ = offset;
  path_ = TxPath::kTcp;
  epoch_++;
  if (Rules::kFinIsRepeated) clear(kFinSent);
  if (urgent_off_ > offset) clear(kUrgentSent);
}

// --- Messages

template <typename Rules>
bool LaneWriter<Rules>::waits_for_credit() const {
  if (path_ != TxPath::kLane) return false;
  if (off_ < end_) return ring_.room() == 0 || (!is_corked() && is_gathering());
  return has(kBufferBlocked) && !has(kFinSent) && ring_.placed() != ring_.sent();
}

template <typename Rules>
Write LaneWriter<Rules>::notify(Op op, const LaneAddress& to) {
  Write write;
  write.notify = true;
  write.immediate = to_immediate({op, sequence_, to.lane});
  sequence_ = (sequence_ + 1) & kSequenceMask;
  return write;
}

template <typename Rules>
Write LaneWriter<Rules>::data_message(const LaneTurn& turn, const LaneAddress& to) {
  std::uint64_t bytes = std::min({end_ - off_, ring_.room(), ring_.before_wrap(), turn.most});
  if (urgent_waits()) bytes = std::min(bytes, urgent_off_ - off_);
  if (is_corked() && bytes == end_ - off_ && bytes > cork_ && !has(kFinQueued)) bytes -= bytes % cork_;
  return bytes_message(turn.source, bytes, to);
}

template <typename Rules>
Write LaneWriter<Rules>::bytes_message(const ByteSource& source, std::uint64_t bytes, const LaneAddress& to) {
  const std::uint64_t place = to.ring + ring_.position();
  const std::uint64_t from = off_;
  off_ += bytes;
  ring_.advance(bytes);
  Op op = Op::kData;
  if (off_ == urgent_off_) {
    op = Op::kUrgent;
    set(kUrgentSent);
  } else if ((off_ < end_ && blocked()) || will_gather()) {
    op = Op::kDataBlocked;
    set(kBlockedTold);
  }
  Write write = notify(op, to);
  write.to = place;
  source.spans(from, bytes, write.from);
  return write;
}

}  // namespace bypass::fastpath
