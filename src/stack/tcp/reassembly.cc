#include "stack/tcp/reassembly.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bypass::tcp {
namespace {

SeqNum begin_of(const Packet& frame) {
  return {frame.seq};
}
SeqNum end_of(const Packet& frame) {
  return SeqNum{frame.seq} + frame.payload_len;
}

}  // namespace

/// Where a frame goes among the islands, as they were before it came.
struct Reassembly::Place {
  std::size_t at;       // the island it appends to (if `grows`), or where a new one stands
  std::size_t covered;  // islands [covered, behind) lie within the frame and give way
  std::size_t behind;   // the island that its end overlaps or touches (if `joins`)
  bool grows, joins;
};

/// The first island that ends at or behind `begin`. Most frames extend the last one, the flight's own.
std::size_t Reassembly::find(SeqNum begin) const {
  if (count_ != 0 && after_or_at(begin, islands_[count_ - 1].begin))
    return before_or_at(begin, islands_[count_ - 1].end) ? count_ - 1U : count_;
  const Island* at = std::lower_bound(islands_, islands_ + count_, begin,
                                      [](const Island& island, SeqNum s) { return before(island.end, s); });
  return static_cast<std::size_t>(at - islands_);
}

Reassembly::Place Reassembly::locate(const SackBlock& all) const {
  Place p{};
  p.at = find(all.begin);
  p.grows = p.at < count_ && before_or_at(islands_[p.at].begin, all.begin);
  p.covered = p.behind = p.at + (p.grows ? 1 : 0);
  while (p.behind < count_ && before_or_at(islands_[p.behind].end, all.end)) p.behind++;
  p.joins = p.behind < count_ && before_or_at(islands_[p.behind].begin, all.end);
  return p;
}

Reassembly::Inserted Reassembly::insert(Memory& memory, Packet* frame, const Limits& limits) {
  frame->queue_next = nullptr;
  const SackBlock all{begin_of(*frame), end_of(*frame)};
  if (all.empty()) return {Outcome::kDuplicate, frame};
  const Place p = locate(all);
  if (p.grows && before_or_at(all.end, islands_[p.at].end)) {
    duplicate_ = all;
    islands_[p.at].stamp = ++stamp_;  // RFC 2883 §4: the block that holds the duplicate comes next
    return {Outcome::kDuplicate, frame};
  }
  const bool new_island = !p.grows && !p.joins && p.covered == p.behind;
  if (frames_ >= limits.frames || all.size() > limits.bytes || bytes_ > limits.bytes - all.size())
    return {Outcome::kRefused, frame};
  if (new_island && !make_room(memory))
    return {capacity_ == kMaxIslands ? Outcome::kRefused : Outcome::kNoMemory, frame};

  note_overlap(all, p);
  Packet* released = nullptr;
  for (std::size_t i = p.covered; i < p.behind; i++) released = detach(islands_[i], released);
  if (p.grows) trim_front(*frame, distance(all.begin, islands_[p.at].end));
  if (p.joins) trim_back(*frame, distance(islands_[p.behind].begin, all.end));
  bytes_ += frame->payload_len;
  frames_++;
  link(frame, p);
  return {Outcome::kQueued, released};
}

/// The first part of the frame that was here before is a duplicate to report (RFC 2883 §4).
void Reassembly::note_overlap(const SackBlock& all, const Place& p) {
  const std::size_t last = p.behind + (p.joins ? 1 : 0);
  for (std::size_t i = p.at; i < last; i++) {
    const SackBlock common{later(all.begin, islands_[i].begin), earlier(all.end, islands_[i].end)};
    if (common.empty()) continue;
    duplicate_ = common;
    return;
  }
}

/// Takes the island's frames out of the count, in front of `list`. The entry is the caller's to erase.
Packet* Reassembly::detach(Island& island, Packet* list) {
  bytes_ -= distance(island.begin, island.end);
  frames_ -= island.frames;
  island.last->queue_next = list;
  return island.first;
}

void Reassembly::link(Packet* frame, const Place& p) {
  Island run{begin_of(*frame), end_of(*frame), frame, frame, 1, ++stamp_};
  std::size_t first = p.covered, last = p.behind;
  if (p.grows) {
    const Island& left = islands_[--first];
    left.last->queue_next = frame;
    run.begin = left.begin;
    run.first = left.first;
    run.frames += left.frames;
  }
  if (p.joins) {
    const Island& right = islands_[last++];
    frame->queue_next = right.first;
    run.end = right.end;
    run.last = right.last;
    run.frames += right.frames;
  }
  if (first == last) {  // insert() made room for one more
    std::memmove(islands_ + first + 1, islands_ + first, (count_ - first) * sizeof(Island));
    count_++;
  } else {
    erase(first + 1, last);
  }
  islands_[first] = run;
}

Reassembly::Ready Reassembly::advance(Memory& memory, SeqNum rcv_nxt, bool reported) {
  Ready ready;
  std::size_t gone = 0;
  if (!reported && count_ != 0 && before(islands_[0].begin, rcv_nxt))
    duplicate_ = {islands_[0].begin, earlier(islands_[0].end, rcv_nxt)};
  while (gone < count_ && before_or_at(islands_[gone].end, rcv_nxt))
    ready.release = detach(islands_[gone++], ready.release);
  if (gone < count_ && before(islands_[gone].begin, rcv_nxt))
    ready.release = drop_front(islands_[gone], rcv_nxt, ready.release);
  if (gone < count_ && islands_[gone].begin == rcv_nxt) {
    Island& run = islands_[gone++];
    ready.frames = detach(run, nullptr);
    ready.last = run.last;
    ready.bytes = distance(run.begin, run.end);
    ready.count = run.frames;
  }
  erase(0, gone);
  release_if_empty(memory);
  return ready;
}

/// Frames below rcv_nxt go in front of `list`, the one that straddles it loses its front.
Packet* Reassembly::drop_front(Island& island, SeqNum rcv_nxt, Packet* list) {
  while (before_or_at(end_of(*island.first), rcv_nxt)) {
    Packet* frame = island.first;
    island.first = frame->queue_next;
    island.frames--;
    frames_--;
    frame->queue_next = list;
    list = frame;
  }
  Packet& head = *island.first;
  if (before(begin_of(head), rcv_nxt)) trim_front(head, distance(begin_of(head), rcv_nxt));
  bytes_ -= distance(island.begin, rcv_nxt);
  island.begin = rcv_nxt;
  return list;
}

std::size_t Reassembly::take_sack_blocks(std::span<SackBlock> out) {
  std::size_t filled = 0;
  if (!duplicate_.empty() && !out.empty()) out[filled++] = duplicate_;
  duplicate_ = {};
  // Stamps differ from each other; ages are counted back from the latest, so that they may wrap.
  std::uint32_t youngest = 0;
  while (filled < out.size()) {
    const Island* next = nullptr;
    for (const Island* i = islands_; i != islands_ + count_; i++) {
      if (stamp_ - i->stamp < youngest) continue;
      if (next == nullptr || stamp_ - i->stamp < stamp_ - next->stamp) next = i;
    }
    if (next == nullptr) break;
    out[filled++] = {next->begin, next->end};
    youngest = stamp_ - next->stamp + 1;
  }
  return filled;
}

Packet* Reassembly::clear(Memory& memory) {
  Packet* released = nullptr;
  for (std::size_t i = 0; i < count_; i++) released = detach(islands_[i], released);
  count_ = 0;
  duplicate_ = {};
  release_if_empty(memory);
  return released;
}

bool Reassembly::make_room(Memory& memory) {
  if (count_ < capacity_) return true;
  if (capacity_ == kMaxIslands) return false;
  const std::size_t bytes = std::max(kMinBlock, 2 * capacity_ * sizeof(Island));
  auto* larger = static_cast<Island*>(memory.allocate(bytes));
  if (larger == nullptr) return false;
  if (count_ != 0) std::memcpy(static_cast<void*>(larger), islands_, count_ * sizeof(Island));
  Island* smaller = std::exchange(islands_, larger);
  capacity_ = static_cast<std::uint16_t>(bytes / sizeof(Island));
  if (smaller != nullptr) memory.release(smaller);
  return true;
}

/// Forgets the entries [first, last); their frames are elsewhere by now.
void Reassembly::erase(std::size_t first, std::size_t last) {
  if (first == last) return;
  std::memmove(islands_ + first, islands_ + last, (count_ - last) * sizeof(Island));
  count_ = static_cast<std::uint16_t>(count_ - (last - first));
}

void Reassembly::release_if_empty(Memory& memory) {
  if (count_ != 0 || islands_ == nullptr) return;
  capacity_ = 0;
  memory.release(std::exchange(islands_, nullptr));
}

std::uint32_t Reassembly::port_frames() const {
  std::uint32_t count = 0;
  for (const Island* i = islands_; i != islands_ + count_; i++) {
    for (const Packet* frame = i->first; frame != i->last->queue_next; frame = frame->queue_next)
      count += (frame->flags & kInArena) == 0 ? 1 : 0;
  }
  return count;
}

const char* Reassembly::violated(SeqNum rcv_nxt) const {
  std::uint32_t bytes = 0, frames = 0;
  SeqNum previous = rcv_nxt;
  for (const Island* i = islands_; i != islands_ + count_; i++) {
    if (!after(i->begin, previous)) return "islands touch, overlap or lie below rcv_nxt";
    SeqNum at = i->begin;
    std::uint32_t in_island = 0;
    for (const Packet* frame = i->first;; frame = frame->queue_next) {
      if (frame == nullptr) return "an island ends before its last frame";
      if (begin_of(*frame) != at || frame->payload_len == 0) return "an island has a hole";
      at = end_of(*frame);
      bytes += frame->payload_len;
      in_island++;
      if (frame == i->last) break;
    }
    if (at != i->end) return "an island's end is not its last frame's";
    if (in_island != i->frames) return "an island's frames do not add up";
    frames += in_island;
    previous = i->end;
  }
  if (bytes != bytes_) return "bytes do not add up";
  return frames == frames_ ? nullptr : "frames do not add up";
}

}  // namespace bypass::tcp
