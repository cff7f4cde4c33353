#include "stack/tcp/input/reassembly.h"

#include <algorithm>
#include <cstring>
#include <new>
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

/// The place of a frame among the islands, as they were before the frame came.
struct Reassembly::Place {
  std::size_t at;       // the island that it extends (if `grows`), or the place of a new one
  std::size_t covered;  // islands [covered, behind) lie within the frame and are dropped
  std::size_t behind;   // the island that its end overlaps or touches (if `joins`)
  bool grows, joins;
};

/// The first island that ends at or after `begin`. Most frames extend the last one.
std::size_t Reassembly::find(SeqNum begin) const {
  const std::span<const Island> islands = all();
  if (!islands.empty() && after_or_at(begin, islands.back().begin))
    return before_or_at(begin, islands.back().end) ? islands.size() - 1 : islands.size();
  const auto at = std::lower_bound(islands.begin(), islands.end(), begin,
                                   [](const Island& island, SeqNum s) { return before(island.end, s); });
  return static_cast<std::size_t>(at - islands.begin());
}

Reassembly::Place Reassembly::locate(const SackBlock& all) const {
  const std::size_t count = this->count();
  Place p{};
  p.at = find(all.begin);
  p.grows = p.at < count && before_or_at(islands_[p.at].begin, all.begin);
  p.covered = p.behind = p.at + (p.grows ? 1 : 0);
  while (p.behind < count && before_or_at(islands_[p.behind].end, all.end)) p.behind++;
  p.joins = p.behind < count && before_or_at(islands_[p.behind].begin, all.end);
  return p;
}

Reassembly::Inserted Reassembly::insert(Memory& memory, Packet* frame, const Limits& limits) {
  frame->queue_next = nullptr;
  const SackBlock all{begin_of(*frame), end_of(*frame)};
  if (all.empty()) return {Outcome::kDuplicate, frame};
  const Place p = locate(all);
  if (p.grows && before_or_at(all.end, islands_[p.at].end)) {
    duplicate_ = all;
    islands_[p.at].stamp = ++head().stamp;  // RFC 2883 §4: the block that holds the duplicate comes next
    return {Outcome::kDuplicate, frame};
  }
  const bool new_island = !p.grows && !p.joins && p.covered == p.behind;
  if (frames() >= limits.frames || all.size() > limits.bytes || bytes() > limits.bytes - all.size())
    return {Outcome::kRefused, frame};
  if (new_island && !make_room(memory)) return {count() == kMaxIslands ? Outcome::kRefused : Outcome::kNoMemory, frame};

  note_overlap(all, p);
  Packet* released = nullptr;
  for (std::size_t i = p.covered; i < p.behind; i++) released = detach(islands_[i], released);
  if (p.grows) trim_front(*frame, distance(all.begin, islands_[p.at].end));
  if (p.joins) trim_back(*frame, distance(islands_[p.behind].begin, all.end));
  head().bytes += frame->payload_len;
  head().frames++;
  link(frame, p);
  return {Outcome::kQueued, released};
}

/// The first part of the frame that was already here is a duplicate to report (RFC 2883 §4).
void Reassembly::note_overlap(const SackBlock& all, const Place& p) {
  const std::size_t last = p.behind + (p.joins ? 1 : 0);
  for (std::size_t i = p.at; i < last; i++) {
    const SackBlock common{later(all.begin, islands_[i].begin), earlier(all.end, islands_[i].end)};
    if (common.empty()) continue;
    duplicate_ = common;
    return;
  }
}

/// Takes the island's frames out of the count and puts them before `list`. The caller erases the entry.
Packet* Reassembly::detach(Island& island, Packet* list) {
  head().bytes -= distance(island.begin, island.end);
  head().frames -= island.frames;
  island.last->queue_next = list;
  return island.first;
}

void Reassembly::link(Packet* frame, const Place& p) {
  Island run{begin_of(*frame), end_of(*frame), frame, frame, 1, ++head().stamp};
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
    std::memmove(islands_ + first + 1, islands_ + first, (count() - first) * sizeof(Island));
    head().count++;
  } else {
    erase(first + 1, last);
  }
  islands_[first] = run;
}

Reassembly::Ready Reassembly::advance(Memory& memory, SeqNum rcv_nxt, bool reported) {
  Ready ready;
  std::size_t gone = 0;
  const std::size_t count = this->count();
  if (!reported && count != 0 && before(islands_[0].begin, rcv_nxt))
    duplicate_ = {islands_[0].begin, earlier(islands_[0].end, rcv_nxt)};
  while (gone < count && before_or_at(islands_[gone].end, rcv_nxt))
    ready.release = detach(islands_[gone++], ready.release);
  if (gone < count && before(islands_[gone].begin, rcv_nxt))
    ready.release = drop_front(islands_[gone], rcv_nxt, ready.release);
  if (gone < count && islands_[gone].begin == rcv_nxt) {
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

/// Puts frames below rcv_nxt before `list`. The frame that crosses rcv_nxt loses its front.
Packet* Reassembly::drop_front(Island& island, SeqNum rcv_nxt, Packet* list) {
  while (before_or_at(end_of(*island.first), rcv_nxt)) {
    Packet* frame = island.first;
    island.first = frame->queue_next;
    island.frames--;
    head().frames--;
    frame->queue_next = list;
    list = frame;
  }
  Packet& first = *island.first;
  if (before(begin_of(first), rcv_nxt)) trim_front(first, distance(begin_of(first), rcv_nxt));
  head().bytes -= distance(island.begin, rcv_nxt);
  island.begin = rcv_nxt;
  return list;
}

std::size_t Reassembly::take_sack_blocks(std::span<SackBlock> out) {
  std::size_t filled = 0;
  if (!duplicate_.empty() && !out.empty()) out[filled++] = duplicate_;
  duplicate_ = {};
  // All stamps differ. Ages are counted back from the latest stamp, so that stamps may wrap.
  std::uint32_t youngest = 0;
  while (filled < out.size()) {
    const Island* next = nullptr;
    for (const Island& island : all()) {
      const std::uint32_t age = head().stamp - island.stamp;
      if (age < youngest) continue;
      if (next == nullptr || age < head().stamp - next->stamp) next = &island;
    }
    if (next == nullptr) break;
    out[filled++] = {next->begin, next->end};
    youngest = head().stamp - next->stamp + 1;
  }
  return filled;
}

Packet* Reassembly::clear(Memory& memory) {
  Packet* released = nullptr;
  for (Island& island : all()) released = detach(island, released);
  erase(0, count());
  duplicate_ = {};
  release_if_empty(memory);
  return released;
}

bool Reassembly::make_room(Memory& memory) {
  const Head before = islands_ == nullptr ? Head{} : head();
  if (before.count < before.capacity) return true;
  if (before.capacity == kMaxIslands) return false;
  const std::size_t bytes = before.capacity == 0 ? kMinBlock : 2 * (std::size_t{before.capacity} + 1) * sizeof(Island);
  auto* larger = static_cast<Island*>(memory.allocate(bytes));
  if (larger == nullptr) return false;
  Head* const head = new (larger) Head(before);
  head->capacity = static_cast<std::uint16_t>(bytes / sizeof(Island) - 1);
  if (before.count != 0) std::memcpy(static_cast<void*>(larger + 1), islands_, before.count * sizeof(Island));
  Island* smaller = std::exchange(islands_, larger + 1);
  if (smaller != nullptr) memory.release(smaller - 1);
  return true;
}

/// Removes the entries [first, last); their frames were moved before.
void Reassembly::erase(std::size_t first, std::size_t last) {
  if (first == last) return;
  std::memmove(islands_ + first, islands_ + last, (count() - last) * sizeof(Island));
  head().count = static_cast<std::uint16_t>(count() - (last - first));
}

void Reassembly::release_if_empty(Memory& memory) {
  if (islands_ == nullptr || head().count != 0) return;
  memory.release(std::exchange(islands_, nullptr) - 1);
}

std::uint32_t Reassembly::port_frames() const {
  std::uint32_t count = 0;
  for (const Island& island : all()) {
    for (const Packet* frame = island.first; frame != island.last->queue_next; frame = frame->queue_next)
      count += (frame->flags & kInArena) == 0 ? 1 : 0;
  }
  return count;
}

const char* Reassembly::violated(SeqNum rcv_nxt) const {
  std::uint32_t bytes = 0, frames = 0;
  SeqNum previous = rcv_nxt;
  if (islands_ == nullptr) return nullptr;
  for (const Island& island : all()) {
    if (!after(island.begin, previous)) return "islands touch, overlap or lie below rcv_nxt";
    SeqNum at = island.begin;
    std::uint32_t in_island = 0;
    for (const Packet* frame = island.first;; frame = frame->queue_next) {
      if (frame == nullptr) return "an island ends before its last frame";
      if (begin_of(*frame) != at || frame->payload_len == 0) return "an island has a hole";
      at = end_of(*frame);
      bytes += frame->payload_len;
      in_island++;
      if (frame == island.last) break;
    }
    if (at != island.end) return "an island's end is not its last frame's";
    if (in_island != island.frames) return "an island's frames do not add up";
    frames += in_island;
    previous = island.end;
  }
  if (bytes != head().bytes) return "bytes do not add up";
  return frames == head().frames ? nullptr : "frames do not add up";
}

}  // namespace bypass::tcp
