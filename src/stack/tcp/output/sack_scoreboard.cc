#include "stack/tcp/output/sack_scoreboard.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bypass::tcp {

void Scoreboard::start(SeqNum snd_una, bool sack) {
  una_ = nxt_ = snd_una;
  sack_ = sack;
}

/// The first range that ends at or behind `s`.
std::size_t Scoreboard::find(SeqNum s) const {
  const SackBlock* at = std::lower_bound(ranges_, ranges_ + count_, s,
                                         [](const SackBlock& range, SeqNum n) { return before(range.end, n); });
  return static_cast<std::size_t>(at - ranges_);
}

// --- What an ACK says

Scoreboard::Update Scoreboard::on_ack_in_loss(Memory& memory, SeqNum una, SeqNum nxt, std::span<const SackBlock> blocks,
                                              bool duplicate) {
  Update update;
  const std::uint32_t advanced = after(una, una_) ? distance(una_, una) : 0;
  una_ += advanced;
  nxt_ = nxt;
  update.delivered = advanced - drop_acknowledged();
  // Without SACK each duplicate ACK has stood for a segment (tcp_remove_reno_sacks() of Linux).
  if (!sack_ && advanced != 0) {
    const std::uint32_t told = std::min(advanced, std::uint32_t{duplicate_acks_} * mss_);
    update.delivered = std::max(advanced - told, std::min<std::uint32_t>(advanced, mss_));
  }
  if (sack_) take_blocks(memory, blocks, update);
  update.delivered += update.newly_sacked;
  update.reneged = reneged_ = count_ != 0 && before_or_at(ranges_[0].begin, una_);
  const bool outstanding = una_ != nxt_;  // RFC 5681 §2 (a): otherwise it is a window update or a keep-alive
  count_duplicate(advanced, sack_ ? update.newly_sacked != 0 : duplicate && advanced == 0 && outstanding);
  move_on(advanced != 0);
  recount();
  release_if_empty(memory);
  return update;
}

/// Removes what lies below una_ now. Returns how many of the passed bytes were SACKed before.
std::uint32_t Scoreboard::drop_acknowledged() {
  std::uint32_t bytes = 0;
  std::size_t gone = 0;
  for (; gone < count_ && before_or_at(ranges_[gone].end, una_); gone++) bytes += ranges_[gone].size();
  erase(0, gone);
  if (count_ != 0 && before(ranges_[0].begin, una_)) {
    bytes += distance(ranges_[0].begin, una_);
    ranges_[0].begin = una_;
  }
  return bytes;
}

/// A receiver that holds SND.UNA would have acknowledged it: so such a block is old or wrong. Numbers are compared by
/// their distance from SND.UNA, because three numbers 2^31 apart would each be before the next.
bool Scoreboard::is_outstanding(const SackBlock& block) const {
  const std::uint32_t begin = distance(una_, block.begin), end = distance(una_, block.end);
  return begin != 0 && begin < end && end <= distance(una_, nxt_);
}

void Scoreboard::take_blocks(Memory& memory, std::span<const SackBlock> blocks, Update& update) {
  for (std::size_t i = 0; i < blocks.size(); i++) {
    const SackBlock& block = blocks[i];
    if (!before(block.begin, block.end)) continue;
    // RFC 2883 §4: a first block below the ACK, or within the second block, is a duplicate.
    const bool within_next =
        blocks.size() > 1 && after_or_at(block.begin, blocks[1].begin) && before_or_at(block.end, blocks[1].end);
    if (i == 0 && (before_or_at(block.end, una_) || within_next)) {
      update.duplicate_reported = true;
      update.duplicate = block;
      continue;
    }
    if (is_outstanding(block)) update.newly_sacked += merge(memory, block);
  }
}

/// Merges a block. Returns how many bytes no range held before.
std::uint32_t Scoreboard::merge(Memory& memory, const SackBlock& block) {
  const std::size_t first = find(block.begin);
  std::size_t last = first;
  std::uint32_t known = 0;
  for (; last < count_ && before_or_at(ranges_[last].begin, block.end); last++) known += ranges_[last].size();
  if (first == last) {
    if (!make_room(memory)) return 0;
    std::memmove(ranges_ + first + 1, ranges_ + first, (count_ - first) * sizeof(SackBlock));
    ranges_[first] = block;
    count_++;
    return block.size();
  }
  const SackBlock all{earlier(block.begin, ranges_[first].begin), later(block.end, ranges_[last - 1].end)};
  erase(first + 1, last);
  ranges_[first] = all;
  return all.size() - known;
}

/// RFC 6675 §5: a cumulative ACK restarts the count, even if it counts itself. Without SACK the count stands for
/// segments that left the network, of which a partial ACK covers some (RFC 6582 §3.2).
void Scoreboard::count_duplicate(std::uint32_t advanced, bool duplicate) {
  if (advanced != 0) {
    const bool partial = !sack_ && phase_ == Phase::kRecovery && mss_ != 0;
    const std::uint32_t covered = partial ? (advanced - 1) / mss_ : duplicate_acks_;
    duplicate_acks_ = static_cast<std::uint16_t>(duplicate_acks_ - std::min<std::uint32_t>(covered, duplicate_acks_));
  }
  if (duplicate && duplicate_acks_ != 0xffff) duplicate_acks_++;
}

void Scoreboard::move_on(bool advanced) {
  if (guarded_ && after(una_, recovery_point_)) guarded_ = false;
  if (phase_ == Phase::kOpen) return;
  if (after_or_at(una_, recovery_point_)) {
    guarded_ = !sack_ && una_ == recovery_point_;
    phase_ = Phase::kOpen;
    duplicate_acks_ = 0;
    return;
  }
  high_rxt_ = later(high_rxt_, una_);
  forced_edge_ = later(forced_edge_, una_);
  // RFC 6582 §3.2 step 3: a partial ACK says that the next segment is lost, too.
  if (advanced && !sack_ && phase_ == Phase::kRecovery) forced_edge_ = earlier(una_ + mss_, nxt_);
}

// --- What it means

/// RFC 6675 §4's IsLost() for all bytes at once: the lower end of the first range, from the top, with
/// kDupThresh ranges or more than (kDupThresh - 1) * SMSS bytes at or above it.
SeqNum Scoreboard::edge_by_sack() const {
  std::uint32_t bytes = 0;
  for (std::size_t i = count_; i-- != 0;) {
    bytes += ranges_[i].size();
    if (count_ - i >= kDupThresh || bytes > (kDupThresh - 1) * mss_) return ranges_[i].begin;
  }
  return una_;
}

std::uint32_t Scoreboard::unsacked(SeqNum begin, SeqNum end) const {
  if (!before(begin, end)) return 0;
  std::uint32_t bytes = distance(begin, end);
  for (const SackBlock* range = ranges_; range != ranges_ + count_; range++) {
    const SeqNum from = later(range->begin, begin), to = earlier(range->end, end);
    if (before(from, to)) bytes -= distance(from, to);
  }
  return bytes;
}

/// SetPipe(): what is not lost, and what was sent again.
void Scoreboard::recount() {
  sacked_bytes_ = distance(una_, nxt_) - unsacked(una_, nxt_);
  lost_edge_ = edge_by_sack();
  if (phase_ == Phase::kOpen) {
    pipe_ = unsacked(lost_edge_, nxt_);
  } else {
    lost_edge_ = later(lost_edge_, forced_edge_);
    pipe_ = unsacked(lost_edge_, nxt_) + unsacked(una_, high_rxt_);
  }
  if (!sack_ && phase_ != Phase::kTimeout) pipe_ -= std::min(pipe_, std::uint32_t{duplicate_acks_} * mss_);
}

bool Scoreboard::should_recover() const {
  if (phase_ != Phase::kOpen || guarded_ || una_ == nxt_) return false;
  return duplicate_acks_ >= kDupThresh || (count_ != 0 && after(lost_edge_, una_));
}

void Scoreboard::enter_recovery(SeqNum nxt) {
  phase_ = Phase::kRecovery;
  nxt_ = recovery_point_ = nxt;
  high_rxt_ = una_;
  // RFC 6675 §5 step 4.3: the first segment is sent again in any case, and no rescue comes before it is
  // acknowledged.
  forced_edge_ = rescue_point_ = earlier(una_ + mss_, nxt_);
  recount();
}

void Scoreboard::on_timeout(Memory& memory, SeqNum nxt) {
  if (reneged_) count_ = 0;
  reneged_ = guarded_ = false;
  release_if_empty(memory);
  phase_ = Phase::kTimeout;
  nxt_ = recovery_point_ = forced_edge_ = nxt;
  high_rxt_ = una_;
  duplicate_acks_ = 0;
  recount();
}

void Scoreboard::undo() {
  phase_ = Phase::kOpen;
  duplicate_acks_ = 0;
  recount();
}

bool Scoreboard::is_sacked(SeqNum s) const {
  const std::size_t i = find(s + 1);
  return i < count_ && before_or_at(ranges_[i].begin, s);
}

bool Scoreboard::is_lost(SeqNum s) const {
  if (clean() || before(s, una_) || !before(s, nxt_)) return false;
  return before(s, lost_edge_) && !is_sacked(s);
}

std::uint32_t Scoreboard::lost_bytes() const {
  if (clean()) return 0;
  return unsacked(phase_ == Phase::kOpen ? una_ : high_rxt_, lost_edge_);
}

// --- What to send

/// The first bytes in [from, limit) that are not SACKed; empty if all are.
SackBlock Scoreboard::hole(SeqNum from, SeqNum limit) const {
  std::size_t i = find(from + 1);
  if (i < count_ && before_or_at(ranges_[i].begin, from)) from = ranges_[i++].end;
  if (!before(from, limit)) return {};
  return {from, i < count_ ? earlier(ranges_[i].begin, limit) : limit};
}

Scoreboard::Segment Scoreboard::next_segment(std::uint32_t max_bytes, std::uint32_t mss, bool new_data) const {
  const Segment fresh{new_data ? Rule::kNewData : Rule::kNothing, nxt_, 0};
  if (phase_ == Phase::kOpen) return fresh;
  if (const SackBlock lost = hole(high_rxt_, lost_edge_); !lost.empty())
    return {Rule::kLost, lost.begin, std::min(lost.size(), max_bytes)};
  if (new_data || !sack_ || phase_ == Phase::kTimeout) return fresh;
  const SeqNum highest = count_ == 0 ? una_ : ranges_[count_ - 1].begin;
  if (const SackBlock gap = hole(high_rxt_, highest); !gap.empty())
    return {Rule::kHole, gap.begin, std::min(gap.size(), max_bytes)};
  return rescue(std::min(mss, max_bytes));
}

/// Rule (4): one segment with the highest byte that is not SACKed.
Scoreboard::Segment Scoreboard::rescue(std::uint32_t bytes) const {
  if (!after(una_, rescue_point_)) return {};
  std::size_t above = count_;
  SeqNum end = nxt_;
  if (above != 0 && ranges_[above - 1].end == end) end = ranges_[--above].begin;
  const SeqNum begin = above == 0 ? una_ : ranges_[above - 1].end;
  const std::uint32_t length = std::min(distance(begin, end), bytes);
  return {length == 0 ? Rule::kNothing : Rule::kRescue, end - length, length};
}

void Scoreboard::on_retransmitted(const Segment& segment) {
  if (segment.rule == Rule::kRescue) {
    rescue_point_ = recovery_point_;  // HighRxt stays (RFC 6675 §4 rule 4)
    return;
  }
  high_rxt_ = later(high_rxt_, segment.begin + segment.length);
  pipe_ += segment.length;
}

void Scoreboard::on_sent(SeqNum begin, std::uint32_t length) {
  nxt_ = later(nxt_, begin + length);
  pipe_ += length;
}

// --- The block

bool Scoreboard::make_room(Memory& memory) {
  if (count_ < capacity_) return true;
  if (capacity_ == kMaxRanges) return false;
  const std::size_t bytes = std::max(kMinBlock, 2 * capacity_ * sizeof(SackBlock));
  auto* larger = static_cast<SackBlock*>(memory.allocate(bytes));
  if (larger == nullptr) return false;
  if (count_ != 0) std::memcpy(static_cast<void*>(larger), ranges_, count_ * sizeof(SackBlock));
  SackBlock* smaller = std::exchange(ranges_, larger);
  capacity_ = static_cast<std::uint16_t>(bytes / sizeof(SackBlock));
  if (smaller != nullptr) memory.release(smaller);
  return true;
}

void Scoreboard::erase(std::size_t first, std::size_t last) {
  if (first == last) return;
  std::memmove(static_cast<void*>(ranges_ + first), ranges_ + last, (count_ - last) * sizeof(SackBlock));
  count_ = static_cast<std::uint16_t>(count_ - (last - first));
}

void Scoreboard::release_if_empty(Memory& memory) {
  if (count_ != 0 || ranges_ == nullptr) return;
  capacity_ = 0;
  memory.release(std::exchange(ranges_, nullptr));
}

void Scoreboard::clear(Memory& memory) {
  count_ = 0;
  release_if_empty(memory);
  phase_ = Phase::kOpen;
  duplicate_acks_ = 0;
  sacked_bytes_ = pipe_ = 0;
  reneged_ = guarded_ = false;
}

const char* Scoreboard::violated() const {
  SeqNum previous = una_;
  for (std::size_t i = 0; i < count_; i++) {
    const bool at_una = i == 0 && reneged_;
    if (!after(ranges_[i].begin, previous) && !at_una) return "ranges touch, overlap or lie below SND.UNA";
    if (!before(ranges_[i].begin, ranges_[i].end)) return "a range is empty";
    previous = ranges_[i].end;
  }
  if (after(previous, nxt_)) return "a range ends behind SND.NXT";
  if (count_ == 0 && sacked_bytes_ != 0) return "SACKed bytes without a range";
  if (phase_ == Phase::kOpen && pipe_ > distance(una_, nxt_)) return "the pipe holds more than is outstanding";
  if (phase_ != Phase::kOpen && (before(high_rxt_, una_) || after(high_rxt_, nxt_))) return "HighRxt is outside";
  return nullptr;
}

}  // namespace bypass::tcp
