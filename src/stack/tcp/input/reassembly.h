// Reassembly: frames that arrived ahead of a hole (RFC 9293 §3.10.7.4), and the SACK blocks that report them (RFC
// 2018), duplicates included (RFC 2883).
//
// Frames are kept in islands: runs without a hole, sorted by sequence number. An island is one entry of a small array,
// and its frames are one list through Packet::queue_next. So when a hole is filled, the whole run is taken at once. For
// each frame the queue needs Packet::seq, ::offset (where the payload begins in the chain) and ::payload_len; trimming
// changes those and moves no byte. The queue does not handle FIN: its caller remembers the FIN's sequence number.
//
// Bytes that came first are kept. The exception is an island that a later frame covers completely: it is dropped for
// that frame, because one frame cannot be in two places.
//
// Limits against a hostile peer: there are at most kMaxIslands islands. A frame costs one scan of at most that many
// entries, plus one move of at most 4 KiB. Each frame that is freed on the way was paid for by its own arrival. A frame
// that would need one more island is refused, as is one above the caller's limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/frame/packet.h"
#include "stack/memory/memory.h"
#include "stack/tcp/seq.h"

namespace bypass::tcp {

class Reassembly {
 public:
  static constexpr std::size_t kMaxIslands = 127;

  struct Limits {
    std::uint32_t bytes = 0;   // payload bytes
    std::uint32_t frames = 0;  // each holds a buffer, however few bytes it carries
  };
  enum class Outcome : std::uint8_t {
    kQueued,
    kDuplicate,  // all its bytes were here already
    kRefused,    // a limit or the islands are used up
    kNoMemory,
  };
  /// The result of insert(). `release` is a list (through queue_next) of frames to give back: the frame itself unless
  /// it was queued, and those that it replaced.
  struct Inserted {
    Outcome outcome = Outcome::kRefused;
    Packet* release = nullptr;
  };
  /// What may be delivered now: `frames` continue without a hole from rcv_nxt on.
  struct Ready {
    Packet* frames = nullptr;
    Packet* last = nullptr;
    std::uint32_t bytes = 0;
    std::uint32_t count = 0;
    Packet* release = nullptr;  // overtaken frames to give back
  };

  [[nodiscard]] bool empty() const { return islands_ == nullptr; }
  [[nodiscard]] std::uint32_t bytes() const { return islands_ == nullptr ? 0 : head().bytes; }
  [[nodiscard]] std::uint32_t frames() const { return islands_ == nullptr ? 0 : head().frames; }
  [[nodiscard]] std::size_t islands() const { return count(); }

  /// Queues a frame with payload that begins after rcv_nxt. The caller trims it to the window first.
  Inserted insert(Memory& memory, Packet* frame, const Limits& limits);
  /// The receiver has everything before `rcv_nxt` (an in-order frame was taken). Returns what follows without a hole;
  /// the caller's rcv_nxt then grows by Ready::bytes. Call it only if the queue is not empty. `reported`: the in-order
  /// frame began with a duplicate, which is noted. Only the first duplicate of a segment is reported (RFC 2883 §4).
  Ready advance(Memory& memory, SeqNum rcv_nxt, bool reported = false);

  /// A segment brought bytes that were taken before (below rcv_nxt): DSACK must report them once.
  void note_duplicate(SeqNum begin, SeqNum end) { duplicate_ = {begin, end}; }
  [[nodiscard]] bool has_sack() const { return islands_ != nullptr || !duplicate_.empty(); }
  /// Fills in the blocks for the next ACK and returns how many. The first is the duplicate, if one is noted (it is then
  /// forgotten, as RFC 2883 §4 reports it once). Then follow islands, last changed first (RFC 2018 §4).
  std::size_t take_sack_blocks(std::span<SackBlock> out);
  /// Called if the SYN negotiated no SACK, or the ACK that should carry the duplicate has no room for it.
  void forget_duplicate() { duplicate_ = {}; }

  /// Replaces each frame by what `exchange(frame)` returns: a Packet* with the same numbers and payload, or the frame
  /// itself.
  template <typename F>
  void exchange_frames(F&& exchange);

  /// Drops everything (the connection is gone, or memory is short). Returns the list of frames to give back.
  Packet* clear(Memory& memory);

  /// For Memory's rebuild: the block owned; null if there is no block.
  [[nodiscard]] const void* block() const { return islands_ == nullptr ? nullptr : islands_ - 1; }
  /// For invariants: number of frames that are not the arena's. Walks all frames.
  [[nodiscard]] std::uint32_t port_frames() const;
  /// For invariants: the rule that does not hold, or null. Walks all frames.
  [[nodiscard]] const char* violated(SeqNum rcv_nxt) const;

 private:
  struct Island {
    SeqNum begin, end;
    Packet* first;
    Packet* last;
    std::uint32_t frames;
    std::uint32_t stamp;  // when it last changed
  };
  static_assert(sizeof(Island) == 32);
  /// The head of the block, in the place of one island.
  struct Head {
    std::uint32_t bytes = 0;
    std::uint32_t frames = 0;
    std::uint32_t stamp = 0;  // the latest
    std::uint16_t count = 0;
    std::uint16_t capacity = 0;
  };
  static_assert(sizeof(Head) <= sizeof(Island));

  struct Place;

  [[nodiscard]] Head& head() { return *reinterpret_cast<Head*>(islands_ - 1); }
  [[nodiscard]] const Head& head() const { return *reinterpret_cast<const Head*>(islands_ - 1); }
  [[nodiscard]] std::size_t count() const { return islands_ == nullptr ? 0 : head().count; }
  [[nodiscard]] std::span<Island> all() const { return {islands_, count()}; }
  [[nodiscard]] std::size_t find(SeqNum begin) const;
  [[nodiscard]] Place locate(const SackBlock& all) const;
  [[nodiscard]] bool make_room(Memory& memory);
  void note_overlap(const SackBlock& all, const Place& p);
  void link(Packet* frame, const Place& p);
  Packet* detach(Island& island, Packet* list);
  Packet* drop_front(Island& island, SeqNum rcv_nxt, Packet* list);
  void erase(std::size_t first, std::size_t last);
  void release_if_empty(Memory& memory);

  Island* islands_ = nullptr;  // after the head of their block; null: there are no islands
  SackBlock duplicate_{};
};
static_assert(sizeof(Reassembly) <= 16);

template <typename F>
void Reassembly::exchange_frames(F&& exchange) {
  for (Island& island : all()) {
    Packet** link = &island.first;
    for (std::uint32_t left = island.frames; left != 0; left--) {
      Packet* next = (*link)->queue_next;
      island.last = *link = exchange(*link);
      island.last->queue_next = next;
      link = &island.last->queue_next;
    }
  }
}

/// Shortens a queued frame by bytes at the front or the end of its payload.
inline void trim_front(Packet& frame, std::uint32_t bytes) {
  frame.seq += bytes;
  frame.offset += bytes;
  frame.payload_len -= bytes;
}
inline void trim_back(Packet& frame, std::uint32_t bytes) {
  frame.payload_len -= bytes;
}

}  // namespace bypass::tcp
