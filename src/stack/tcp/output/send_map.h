// SendMap: what a connection's send positions hold when they are not one-to-one with the send ring. It is a list of
// chunks; each has some bytes of its own (a record's header), followed by a range of the ring.
//
//   positions  begin                                                      end
//              | own 8 | ring [0, 500) | own 24 | own 8 | ring [500, 900) |
//
// Ranges of the ring never go back to bytes that an earlier chunk had. They may leave out bytes that went another way.
// Segments, retransmissions and probes read through pieces() wherever they begin; nothing else holds the bytes.
//
// It lies in the arena: two blocks of Memory that grow with what is not acknowledged, within limits. They are freed
// when nothing is unacknowledged. Own bytes are copied in; the ring's stay where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/memory/memory.h"
#include "stack/tcp/output/send_ring.h"

namespace bypass::tcp {

class SendMap {
 public:
  static constexpr std::uint32_t kMostChunks = 2048;
  static constexpr std::uint32_t kMostOwn = 64U << 10;  // bytes
  /// pieces() needs at most so many places for one chunk.
  static constexpr std::size_t kPiecesOfOne = 4;

  [[nodiscard]] std::uint64_t begin() const { return count_ == 0 ? end_ : chunk(0).position; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }

  /// Makes room for `own` bytes and a range after them; appending then cannot fail. False: a limit or missing memory
  /// prevents it until more is acknowledged.
  [[nodiscard]] bool prepare(Memory& memory, std::uint32_t own);
  /// To be called after prepare(): appends bytes of the chunk's own.
  void append(std::span<const std::byte> own);
  /// To be called after prepare(): appends the ring's bytes [source, source + bytes).
  void append_ring(std::uint64_t source, std::uint64_t bytes);

  /// The bytes [position, position + length) in order, as many as fit into `out`; `covered` says how many bytes these
  /// are.
  std::size_t pieces(const SendRing& ring, std::uint64_t position, std::size_t length,
                     std::span<std::span<const std::byte>> out, std::size_t& covered) const;
  /// How many bytes from `position` on form one run: own bytes, followed by one range of the ring.
  [[nodiscard]] std::uint64_t run(std::uint64_t position) const;
  /// How many of such a run's first `length` bytes are own bytes.
  [[nodiscard]] std::size_t own_bytes(std::uint64_t position, std::size_t length) const;
  /// Whether any byte of [position, position + length) is in the ring.
  [[nodiscard]] bool has_ring_bytes(std::uint64_t position, std::uint64_t length) const;

  /// Everything below `una` is acknowledged.
  void advance(Memory& memory, std::uint64_t una);
  /// The ring offset after the last acknowledged byte of the ring; 0 if none was acknowledged.
  [[nodiscard]] std::uint64_t acknowledged() const { return acknowledged_; }

  /// Frees the blocks if prepare() was called and nothing was appended.
  void release_if_empty(Memory& memory) {
    if (count_ == 0) release(memory);
  }
  /// Forgets everything (the connection is gone).
  void clear(Memory& memory);
  /// For Memory's rebuild: the blocks owned; null if there is none.
  [[nodiscard]] const void* chunks_block() const { return chunks_; }
  [[nodiscard]] const void* own_block() const { return own_; }
  /// For invariants: the rule that does not hold, or null.
  [[nodiscard]] const char* violated(const SendRing& ring) const;

 private:
  struct Chunk {
    std::uint64_t position;  // position of the chunk's first byte
    std::uint64_t source;    // ring offset of the chunk's range
    std::uint32_t own_at;    // place of the chunk's own bytes, counted like own_begin_
    std::uint32_t own_length;
  };

  [[nodiscard]] const Chunk& chunk(std::uint32_t i) const { return chunks_[(head_ + i) & (capacity_ - 1)]; }
  [[nodiscard]] Chunk& chunk(std::uint32_t i) { return chunks_[(head_ + i) & (capacity_ - 1)]; }
  [[nodiscard]] std::uint64_t end_of(std::uint32_t i) const { return i + 1 == count_ ? end_ : chunk(i + 1).position; }
  [[nodiscard]] std::uint64_t ring_bytes(std::uint32_t i) const {
    return end_of(i) - chunk(i).position - chunk(i).own_length;
  }
  [[nodiscard]] std::uint32_t find(std::uint64_t position) const;
  [[nodiscard]] std::size_t own_pieces(std::uint32_t at, std::size_t length, std::span<const std::byte>* out) const;
  [[nodiscard]] bool grow_chunks(Memory& memory);
  [[nodiscard]] bool grow_own(Memory& memory, std::uint32_t needed);
  void copy_own(std::uint32_t at, std::span<const std::byte> bytes);
  void release(Memory& memory);

  Chunk* chunks_ = nullptr;
  std::byte* own_ = nullptr;
  std::uint64_t end_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint32_t head_ = 0, count_ = 0, capacity_ = 0;
  std::uint32_t own_begin_ = 0, own_end_ = 0, own_capacity_ = 0;  // the first two modulo 2^32
};

}  // namespace bypass::tcp
