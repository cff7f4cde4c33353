// Memory: the allocator of the arena.
//
// The arena is one shared mapping, at one address in every process of a family (src/runtime maps it; a unit test passes
// any page-aligned buffer). Memory lies at its start. Only the holder of the shard's lock touches what Memory hands
// out, so Memory has no lock of its own.
//
// Blocks are powers of two, aligned to their size as counted from the base. One byte of metadata for each kMinBlock
// says what begins there, so a block has no header. Free blocks wait in a LIFO list for each size. When a list is
// empty, a larger block is split; after that, untouched address space is used. Buddies are joined only after the budget
// has been reached, because joining and splitting a hot block over and over would cost more than it saves.
//
// A process may die inside the lock. The metadata of blocks in use is the truth, together with the owners that say
// which blocks they hold. The free lists are an index that begin_rebuild() … finish_rebuild() make again. So an owner
// stores a block's address right after allocate(), and clears it before release().
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

namespace bypass {

/// Powers of two from 256 bytes; the largest is one contiguous send ring, or a link's memory.
inline constexpr std::size_t kMinBlock = 256;
inline constexpr std::size_t kMaxBlock = std::size_t{1} << 26;

struct MemoryStats {
  std::size_t region_bytes = 0;   // address space of the arena
  std::size_t budget_bytes = 0;   // what may be in use
  std::size_t used_bytes = 0;     // handed out now
  std::size_t touched_bytes = 0;  // high-water mark of the region: pages that may be resident
};

class Memory {
 public:
  /// Places a Memory at `base` (page-aligned). `budget_bytes` limits allocate(), slabs included. Null if the region is
  /// too small to hold anything.
  static Memory* create(void* base, std::size_t region_bytes, std::size_t budget_bytes);

  /// A block of at least `bytes` (rounded up to a power of two, aligned to min(size, 4096)). Contents are undefined.
  /// Null if the budget or the region is used up. LIFO, so that blocks are reused while they are in the cache.
  [[nodiscard]] void* allocate(std::size_t bytes);
  void release(void* block);

  /// Allocates for bulk bytes (send rings, links), whose owners can use less or wait. It leaves alone what keep_back()
  /// reserves, so that a connection still gets what else it needs (an entry in a set, a scoreboard, a record).
  [[nodiscard]] void* allocate_bulk(std::size_t bytes) { return has(block_size(bytes)) ? allocate(bytes) : nullptr; }
  /// Whether allocate_bulk() would find a block of that size (a power of two), as far as the budget goes.
  [[nodiscard]] bool has(std::size_t bytes) const { return bytes <= kMaxBlock && bytes <= room(); }
  /// How much of the budget is left for allocate_bulk().
  [[nodiscard]] std::size_t room() const { return used_ + kept_back_ < budget_ ? budget_ - kept_back_ - used_ : 0; }
  void keep_back(std::size_t bytes) { kept_back_ = bytes; }
  /// Whether a block of that size still lies in the first half of the reserve.
  [[nodiscard]] bool has_kept(std::size_t bytes) const { return is_in_first_half(block_size(bytes)); }
  /// True if that half is used up, too. The rest is not for bytes to be sent, and not for new connections.
  [[nodiscard]] bool is_short() const { return !is_in_first_half(kLastBlock); }
  [[nodiscard]] bool refuses_connections() const { return kept_back_ != 0 && is_short(); }

  /// The usable size of a block: the power of two.
  [[nodiscard]] static std::size_t block_size(std::size_t bytes);
  [[nodiscard]] std::size_t size_of(const void* block) const;

  [[nodiscard]] MemoryStats stats() const;
  [[nodiscard]] bool contains(const void* p) const;
  /// The range in which blocks lie: those made so far, and the last possible one.
  [[nodiscard]] std::span<const std::byte> blocks() const {
    return {reinterpret_cast<const std::byte*>(this) + heap_, top_ - heap_};
  }
  [[nodiscard]] std::size_t most_block_bytes() const { return region_ - heap_; }
  /// The used part of Memory's own tables, for a caller that copies them: they describe blocks().
  [[nodiscard]] std::span<const std::byte> tables() const {
    return {reinterpret_cast<const std::byte*>(this), sizeof(Memory) + top_ / kMinBlock};
  }
  /// Sets the budget. If it is below what is in use, it only stops growth.
  void set_budget(std::size_t budget_bytes);

  /// After a death inside the lock: forgets all free lists. The caller then calls mark_in_use() for every block that a
  /// live owner holds; everything else is free after finish_rebuild(). mark_in_use() returns false for a pointer that
  /// is no block's start, or is marked twice: its owner is corrupt and must be given up. In between, allocate() and
  /// release() work; a released block need not have been marked.
  void begin_rebuild();
  [[nodiscard]] bool mark_in_use(const void* block);
  void finish_rebuild();

 private:
  static constexpr std::size_t kLastBlock = 4096;  // if memory is not short, at least so much is left
  static constexpr unsigned kMinOrder = 8, kMaxOrder = 26;
  static constexpr unsigned kOrders = kMaxOrder - kMinOrder + 1;

  /// The list entry, which lies in the free block itself.
  struct FreeBlock {
    FreeBlock* next;
    FreeBlock* previous;
  };
  /// kLazy: released blocks go to their list as they are. kEager: buddies are joined at once, because the budget
  /// has been touched and the lists held nothing fitting. kRebuild: between begin_rebuild and finish_rebuild.
  enum class Mode : std::uint8_t { kLazy, kEager, kRebuild };

  Memory() = default;
  [[nodiscard]] bool is_in_first_half(std::size_t block) const { return used_ + kept_back_ / 2 + block <= budget_; }
  [[nodiscard]] std::size_t offset_of(const void* p) const;
  [[nodiscard]] std::uint8_t& tag_at(std::size_t offset);
  [[nodiscard]] const std::uint8_t& tag_at(std::size_t offset) const;
  void push_free(std::size_t offset, unsigned order);
  void unlink_free(FreeBlock* block, unsigned order);
  void* hand_out(std::size_t offset, unsigned order);
  void* allocate_slowly(unsigned order);
  void release_slowly(std::size_t offset, unsigned order);
  void* split_larger(unsigned order);
  void* take_untouched(unsigned order, std::size_t limit);
  void free_range(std::size_t offset, std::size_t end);
  bool take_buddy(std::size_t offset, unsigned order);
  void forget_lists();
  void join_all();
  void join(std::size_t offset, unsigned order);
  [[nodiscard]] std::size_t next_marked(std::size_t offset) const;

  std::size_t region_ = 0, budget_ = 0, used_ = 0, kept_back_ = 0;
  std::size_t heap_ = 0;      // offset of the first block
  std::size_t top_ = 0;       // after the last block ever made; nothing beyond it has been touched
  std::uint32_t listed_ = 0;  // bit n: list n is not empty
  Mode mode_ = Mode::kLazy;
  FreeBlock* free_[kOrders] = {};
};

/// Names an object over time: an event that comes late with an old generation finds that the object is gone.
struct SlotId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // odd while the slot is in use
  bool operator==(const SlotId&) const = default;
};

/// Objects of one type in blocks of Memory (slab.h).
template <typename T>
class Slab;

}  // namespace bypass
