// SendRing: a connection's send buffer, one byte ring in the arena (a block of Memory).
//
// Bytes are numbered by 64-bit stream offsets: [begin, end) lie here. begin is the first byte not yet acknowledged, end
// the next to be written. Segments, retransmissions and other users (a fast path) are an offset and a length into the
// ring; nothing else holds the bytes.
//
// An empty ring owns no block: an idle connection costs only this struct. The first write takes 4 KiB or as much as it
// needs; later writes double it. Blocks are reused LIFO, so that requests and answers of many connections use the same
// cached lines.
//
// Two things keep the block in place, full or empty. One is a reservation that is being filled without the lock. The
// other are pins: they are held while a port may read the bytes after send() has returned, or until a queued frame that
// refers to them (Packet::external) is flushed. Acknowledged bytes may still be overwritten under a pin: no receiver
// takes them a second time. A pin only prevents that the block gets another owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/memory/memory.h"
#include "stack/result.h"
#include "stack/tcp/engine.h"

namespace bypass::tcp {

class SendRing {
 public:
  /// The smallest block (except a block of take_least() at low memory). A smaller one would mean a wake-up and a
  /// segment for every few bytes.
  static constexpr std::size_t kFirstBlock = 4096;

  /// The bytes where they lie: two parts if the ring wraps.
  struct Spans {
    std::span<const std::byte> part[2];
    [[nodiscard]] std::size_t size() const { return part[0].size() + part[1].size(); }
  };

  [[nodiscard]] std::uint64_t begin() const { return begin_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end_ - begin_); }
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Bytes that may still be written under `limit` (the engine's or SO_SNDBUF's).
  [[nodiscard]] std::size_t room(std::size_t limit) const { return size() < limit ? limit - size() : 0; }
  /// The part of room(limit) for which there is a block, or memory for one.
  [[nodiscard]] std::size_t room(std::size_t limit, const Memory& memory) const {
    const std::size_t allowed = room(limit), there = capacity_ - size();
    if (allowed <= there || memory.has(capacity_ != 0 ? 2 * std::size_t{capacity_} : kFirstBlock)) return allowed;
    return capacity_ == 0 && !memory.is_short() ? std::min(allowed, kFirstBlock) : there;
  }
  /// Whether an empty ring would get a block.
  [[nodiscard]] static bool may_begin(const Memory& memory) { return memory.has(kFirstBlock) || !memory.is_short(); }

  /// Reserves places for up to `want` bytes after the last one. Grows the block within `limit` if that is needed and
  /// allowed. Returns fewer than `want` if the limit, a pin or the memory prevents more. kWouldBlock: no place, wait
  /// for advance(). kNoMemory: no place, and advance() could free nothing. kInvalid: want is 0. kAlready: a reservation
  /// is open.
  Result<Room> reserve(Memory& memory, std::size_t want, std::size_t limit);
  /// Ends the reservation: its first `bytes` are now data. 0 gives the reservation up.
  void commit(Memory& memory, std::size_t bytes);
  [[nodiscard]] bool reserved() const { return reserved_ != 0; }

  /// The bytes [offset, offset + length), which must lie within [begin, end).
  [[nodiscard]] Spans spans(std::uint64_t offset, std::size_t length) const;

  /// Everything before `una` (begin <= una <= end) is acknowledged.
  void advance(Memory& memory, std::uint64_t una);

  void pin() { pins_++; }
  void unpin(Memory& memory);
  [[nodiscard]] bool pinned() const { return pins_ != 0; }
  [[nodiscard]] std::uint32_t pins() const { return pins_; }

  /// Forgets all bytes (the connection is gone). The block is freed at once, or with the last pin or reservation; the
  /// struct must live until then.
  void clear(Memory& memory);
  [[nodiscard]] bool busy() const { return reserved_ != 0 || pins_ != 0; }

  /// After a death: removes all bytes and the reservation. The block stays for `pins`, which are known to be all.
  void outlive(std::uint32_t pins) {
    begin_ = end_;
    reserved_ = 0;
    pins_ = pins;
  }

  /// Makes the block large enough for `bytes`, if it may move and there is memory. To be called before the ring is
  /// pinned.
  void widen(Memory& memory, std::size_t bytes) {
    if (capacity_ < bytes) grow(memory, bytes);
  }
  /// The offset of block()'s first byte; others follow modulo capacity().
  [[nodiscard]] std::uint64_t origin() const { return origin_; }
  /// For Memory's rebuild: the block owned; null if there is no block.
  [[nodiscard]] const void* block() const { return block_; }

 private:
  [[nodiscard]] std::size_t position(std::uint64_t offset) const {
    return static_cast<std::size_t>(offset - origin_) & (capacity_ - 1);
  }
  void begin_with(void* block, std::size_t bytes);
  void take_first(Memory& memory, std::size_t needed);
  void take_least(Memory& memory, std::size_t needed);
  void grow(Memory& memory, std::size_t needed);
  void release_if_idle(Memory& memory);

  std::byte* block_ = nullptr;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t origin_ = 0;    // the offset of block_[0]
  std::uint32_t capacity_ = 0;  // a power of two, or 0
  std::uint32_t reserved_ = 0;  // bytes handed out by reserve()
  std::uint32_t pins_ = 0;
};
static_assert(sizeof(SendRing) <= 48);

}  // namespace bypass::tcp
