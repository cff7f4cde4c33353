// Memory: the allocator of the arena.
//
// The arena is one shared mapping at one address in every process of a family (src/runtime maps it; a unit
// test hands in any page-aligned buffer). Memory lies at its start. Whatever it hands out is touched only by the
// holder of the shard's lock, so it has no lock of its own.
//
// Blocks are powers of two, aligned to their size as counted from the base. One byte of metadata for each
// kMinBlock says what begins there, so a block has no header. Free blocks wait on a LIFO list a size; larger ones
// are split when a list is empty, untouched address space is taken after that, and buddies are joined only when
// the budget has been touched (joining and splitting a hot block over and over would cost more than it saves).
//
// A process may die inside the lock. The metadata of blocks in use is the truth, together with the owners who
// say that they hold them; the free lists are an index that begin_rebuild() … finish_rebuild() make anew. Owners
// therefore write a block's address down after allocate() and forget it before release().
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
  /// Places a Memory at `base` (page-aligned). `budget` bounds allocate(); slabs count against it. Null when the
  /// region is too small to hold anything.
  static Memory* create(void* base, std::size_t region_bytes, std::size_t budget_bytes);

  /// A block of at least `bytes` (rounded up to a power of two, aligned to min(size, 4096)). Contents are
  /// undefined. Null when the budget or the region is used up. LIFO, so that hot blocks come back hot.
  [[nodiscard]] void* allocate(std::size_t bytes);
  void release(void* block);

  /// For bytes in bulk (send rings, links), whose owners can do with less or wait: leaves alone what keep_back() says,
  /// so that who has a connection finds what else it takes (a set's entry, a scoreboard, a record).
  [[nodiscard]] void* allocate_bulk(std::size_t bytes) { return has(block_size(bytes)) ? allocate(bytes) : nullptr; }
  /// Whether allocate_bulk() would find a block of that size (a power of two), as far as the budget goes.
  [[nodiscard]] bool has(std::size_t bytes) const { return bytes <= kMaxBlock && bytes <= room(); }
  /// What is left for it of the budget.
  [[nodiscard]] std::size_t room() const { return used_ + kept_back_ < budget_ ? budget_ - kept_back_ - used_ : 0; }
  void keep_back(std::size_t bytes) { kept_back_ = bytes; }
  /// Whether a block of that size is in the first half of it.
  [[nodiscard]] bool has_kept(std::size_t bytes) const { return is_in_first_half(block_size(bytes)); }
  /// That half is used up, too: it is for no bytes that are to be sent any more, and for no new connection.
  [[nodiscard]] bool is_short() const { return !is_in_first_half(kLastBlock); }
  [[nodiscard]] bool refuses_connections() const { return kept_back_ != 0 && is_short(); }

  /// The usable size of a block: the power of two.
  [[nodiscard]] static std::size_t block_size(std::size_t bytes);
  [[nodiscard]] std::size_t size_of(const void* block) const;

  [[nodiscard]] MemoryStats stats() const;
  [[nodiscard]] bool contains(const void* p) const;
  /// Where blocks lie: those made so far, and where the last one can lie at most.
  [[nodiscard]] std::span<const std::byte> blocks() const {
    return {reinterpret_cast<const std::byte*>(this) + heap_, top_ - heap_};
  }
  [[nodiscard]] std::size_t most_block_bytes() const { return region_ - heap_; }
  /// Its own tables, as far as they say something, for who copies it: what they say is about blocks().
  [[nodiscard]] std::span<const std::byte> tables() const {
    return {reinterpret_cast<const std::byte*>(this), sizeof(Memory) + top_ / kMinBlock};
  }
  /// Lowered below what is in use, it only stops growth.
  void set_budget(std::size_t budget_bytes);

  /// After a death inside the lock: forget all free lists; mark_in_use() for every block that a live owner
  /// holds; everything else is free again at finish_rebuild(). mark_in_use returns false for a pointer that
  /// is no block's start or is marked twice (the owner is then corrupt, and is to be given up). In between,
  /// allocate() and release() work; a block that is released need not have been marked.
  void begin_rebuild();
  [[nodiscard]] bool mark_in_use(const void* block);
  void finish_rebuild();

 private:
  static constexpr std::size_t kLastBlock = 4096;  // who finds that memory is not short finds so much
  static constexpr unsigned kMinOrder = 8, kMaxOrder = 26;
  static constexpr unsigned kOrders = kMaxOrder - kMinOrder + 1;

  /// Lies in the free block itself.
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
  std::size_t top_ = 0;       // behind the last block ever made; beyond it nothing has been touched
  std::uint32_t listed_ = 0;  // bit n: list n is not empty
  Mode mode_ = Mode::kLazy;
  FreeBlock* free_[kOrders] = {};
};

/// Names an object across time: a late event that carries an old generation finds "gone".
struct SlotId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // odd while the slot is in use
  bool operator==(const SlotId&) const = default;
};

/// Objects of one type in blocks of Memory (slab.h).
template <typename T>
class Slab;

}  // namespace bypass
