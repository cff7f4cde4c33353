// SendRing: a connection's send buffer, one byte ring in the arena (a block of Memory).
//
// Bytes are numbered by 64-bit stream offsets: [begin, end) lie here, begin is the first byte not yet
// acknowledged, end the next to be written. Segments, retransmissions and other drains (a fast path) are an
// offset and a length into it; nothing else holds the bytes.
//
// An empty ring owns no block: an idle connection costs this struct. The first write takes 4 KiB or what it
// needs, later ones double it. Blocks come back LIFO, so that requests and answers of many connections go
// through the same warm lines.
//
// Two things keep the block where it is, full or empty: a reservation that is being filled without the lock,
// and pins, held while a port may read the bytes after send() returned or before a queued frame that refers
// to them (Packet::external) is flushed. Bytes that were acknowledged meanwhile may still be overwritten under
// a pin: no receiver takes them a second time. What a pin prevents is that the block becomes somebody else's.
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
  /// The smallest block (but what a ring is given in need, take_least()): less at a time would be a wake-up and a
  /// segment for every few bytes.
  static constexpr std::size_t kFirstBlock = 4096;

  /// Bytes in place: two parts where the ring wraps.
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
  /// Those of them for which there is a block, or memory for one.
  [[nodiscard]] std::size_t room(std::size_t limit, const Memory& memory) const {
    const std::size_t allowed = room(limit), there = capacity_ - size();
    if (allowed <= there || memory.has(capacity_ != 0 ? 2 * std::size_t{capacity_} : kFirstBlock)) return allowed;
    return capacity_ == 0 && !memory.is_short() ? std::min(allowed, kFirstBlock) : there;
  }
  /// Whether one that is empty would get a block.
  [[nodiscard]] static bool may_begin(const Memory& memory) { return memory.has(kFirstBlock) || !memory.is_short(); }

  /// Places for up to `want` bytes, behind the last; grows the block within `limit` if it must and may.
  /// Fewer than `want` when the limit, a pin or the memory stands against it. kWouldBlock: none, wait for
  /// advance(); kNoMemory: none, and nothing here that advance() could free; kInvalid: want is 0;
  /// kAlready: a reservation is open.
  Result<Room> reserve(Memory& memory, std::size_t want, std::size_t limit);
  /// Ends the reservation: its first `bytes` are data now. 0 gives it up.
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

  /// Forgets all bytes (the connection is gone). The block goes at once or with the last pin or
  /// reservation; the struct must live until then.
  void clear(Memory& memory);
  [[nodiscard]] bool busy() const { return reserved_ != 0 || pins_ != 0; }

  /// After a death: no bytes and no reservation, and the block stays for `pins`, which are known to be all.
  void outlive(std::uint32_t pins) {
    begin_ = end_;
    reserved_ = 0;
    pins_ = pins;
  }

  /// Makes the block large enough for `bytes`, if it may move and there is memory; for who pins it next.
  void widen(Memory& memory, std::size_t bytes) {
    if (capacity_ < bytes) grow(memory, bytes);
  }
  /// The offset that lies at block()'s first byte; bytes follow modulo capacity().
  [[nodiscard]] std::uint64_t origin() const { return origin_; }
  /// For Memory's rebuild: the block owned, null if none.
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
  std::uint64_t origin_ = 0;    // the offset that lies at block_[0]
  std::uint32_t capacity_ = 0;  // a power of two, or 0
  std::uint32_t reserved_ = 0;  // bytes handed out by reserve()
  std::uint32_t pins_ = 0;
};
static_assert(sizeof(SendRing) <= 48);

}  // namespace bypass::tcp
