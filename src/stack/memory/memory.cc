#include "stack/memory/memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace bypass {
namespace {

// A tag says what begins at a multiple of kMinBlock. 0: nothing begins there; it is the inside of a block.
constexpr std::uint8_t kUsed = 0x40, kFree = 0x80, kMarked = 0x20, kOrderMask = 0x1f;
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) & ~(to - 1);
}

/// Stores before and after this call stay in order, as a process sees them that runs after our death at any
/// instruction. Only the compiler could reorder them: the processor's own stores become visible in program order.
inline void in_this_order() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

Memory* Memory::create(void* base, std::size_t region_bytes, std::size_t budget_bytes) {
  const std::size_t tags = region_bytes / kMinBlock;
  const std::size_t heap = round_up(sizeof(Memory) + tags, kPage);
  if (base == nullptr || reinterpret_cast<std::uintptr_t>(base) % kPage != 0) return nullptr;
  if (region_bytes < heap + kPage) return nullptr;
  auto* memory = new (base) Memory();
  memory->region_ = region_bytes;
  memory->budget_ = budget_bytes;
  memory->heap_ = memory->top_ = heap;
  return memory;
}

std::size_t Memory::offset_of(const void* p) const {
  return static_cast<std::size_t>(static_cast<const std::byte*>(p) - reinterpret_cast<const std::byte*>(this));
}

std::uint8_t& Memory::tag_at(std::size_t offset) {
  return reinterpret_cast<std::uint8_t*>(this + 1)[offset / kMinBlock];
}

const std::uint8_t& Memory::tag_at(std::size_t offset) const {
  return reinterpret_cast<const std::uint8_t*>(this + 1)[offset / kMinBlock];
}

std::size_t Memory::block_size(std::size_t bytes) {
  return bytes <= kMinBlock ? kMinBlock : std::bit_ceil(bytes);
}

std::size_t Memory::size_of(const void* block) const {
  return std::size_t{1} << (tag_at(offset_of(block)) & kOrderMask);
}

bool Memory::contains(const void* p) const {
  const auto address = reinterpret_cast<std::uintptr_t>(p), base = reinterpret_cast<std::uintptr_t>(this);
  return address >= base && address - base < region_;
}

MemoryStats Memory::stats() const {
  return {region_, budget_, used_, top_ - heap_ + round_up(sizeof(Memory) + top_ / kMinBlock, kPage)};
}

void Memory::set_budget(std::size_t budget_bytes) {
  budget_ = budget_bytes;
}

void Memory::push_free(std::size_t offset, unsigned order) {
  auto* block = reinterpret_cast<FreeBlock*>(reinterpret_cast<std::byte*>(this) + offset);
  FreeBlock*& head = free_[order - kMinOrder];
  tag_at(offset) = static_cast<std::uint8_t>(kFree | order);
  block->next = head;
  block->previous = nullptr;
  if (head != nullptr) head->previous = block;
  head = block;
  listed_ |= 1U << order;
}

void Memory::unlink_free(FreeBlock* block, unsigned order) {
  FreeBlock*& head = free_[order - kMinOrder];
  (block->previous != nullptr ? block->previous->next : head) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  if (head == nullptr) listed_ &= ~(1U << order);
}

void* Memory::hand_out(std::size_t offset, unsigned order) {
  tag_at(offset) = static_cast<std::uint8_t>(kUsed | (mode_ == Mode::kRebuild ? kMarked : 0) | order);
  used_ += std::size_t{1} << order;
  in_this_order();
  return reinterpret_cast<std::byte*>(this) + offset;
}

void* Memory::allocate(std::size_t bytes) {
  if (bytes > kMaxBlock) return nullptr;
  const unsigned order = bytes <= kMinBlock ? kMinOrder : static_cast<unsigned>(std::bit_width(bytes - 1));
  if (used_ + (std::size_t{1} << order) > budget_) return nullptr;
  FreeBlock* block = free_[order - kMinOrder];
  if (block == nullptr) [[unlikely]]
    return allocate_slowly(order);
  unlink_free(block, order);
  return hand_out(offset_of(block), order);
}

void Memory::release(void* block) {
  if (block == nullptr) return;
  const std::size_t offset = offset_of(block);
  const std::uint8_t tag = tag_at(offset);
  if ((tag & kUsed) == 0) __builtin_trap();  // released twice, or never ours: the caller's state is corrupt
  const unsigned order = tag & kOrderMask;
  used_ -= std::size_t{1} << order;
  if (mode_ != Mode::kLazy) [[unlikely]]
    return release_slowly(offset, order);
  push_free(offset, order);
}

// Touching new pages costs memory, splitting costs only a little time: so split first.
[[gnu::noinline]] void* Memory::allocate_slowly(unsigned order) {
  if (void* block = split_larger(order)) return block;
  if (void* block = take_untouched(order, std::min(region_, heap_ + budget_))) return block;
  if (mode_ == Mode::kLazy) {
    join_all();
    mode_ = Mode::kEager;
    if (free_[order - kMinOrder] != nullptr) {
      FreeBlock* block = free_[order - kMinOrder];
      unlink_free(block, order);
      return hand_out(offset_of(block), order);
    }
    if (void* block = split_larger(order)) return block;
  }
  return take_untouched(order, region_);  // fragmented: the budget limits what is in use, not where it lies
}

[[gnu::noinline]] void Memory::release_slowly(std::size_t offset, unsigned order) {
  if (mode_ == Mode::kRebuild) {
    const bool marked = (tag_at(offset) & kMarked) != 0;
    if (!marked) used_ += std::size_t{1} << order;  // it was not counted in this rebuild
    tag_at(offset) = 0;                             // finish_rebuild() makes it free
    return;
  }
  join(offset, order);
  if (used_ < budget_ / 2) mode_ = Mode::kLazy;
}

void* Memory::split_larger(unsigned order) {
  const std::uint32_t larger = listed_ & ~((2U << order) - 1);
  if (larger == 0) return nullptr;
  auto from = static_cast<unsigned>(std::countr_zero(larger));
  FreeBlock* block = free_[from - kMinOrder];
  unlink_free(block, from);
  const std::size_t offset = offset_of(block);
  while (from-- > order) push_free(offset + (std::size_t{1} << from), from);
  return hand_out(offset, order);
}

void* Memory::take_untouched(unsigned order, std::size_t limit) {
  const std::size_t size = std::size_t{1} << order;
  const std::size_t offset = round_up(top_, size);
  if (offset + size > limit) return nullptr;
  const std::size_t gap = top_;
  // The tags are cleared only now, page by page: those of the whole region would be megabytes.
  std::memset(&tag_at(gap), 0, (offset + size - gap) / kMinBlock);
  in_this_order();
  top_ = offset + size;  // set first: a rebuild would lose a block beyond the top
  in_this_order();
  free_range(gap, offset);
  return hand_out(offset, order);
}

/// Cuts [offset, end) into the largest aligned blocks, and lists them.
void Memory::free_range(std::size_t offset, std::size_t end) {
  while (offset < end) {
    const unsigned aligned = std::min<unsigned>(static_cast<unsigned>(std::countr_zero(offset)), kMaxOrder);
    const unsigned fits = std::min<unsigned>(static_cast<unsigned>(std::bit_width(end - offset)) - 1, aligned);
    push_free(offset, fits);
    offset += std::size_t{1} << fits;
  }
}

/// Takes the block's buddy off its list if it is free and complete. Both tags are then 0.
bool Memory::take_buddy(std::size_t offset, unsigned order) {
  const std::size_t size = std::size_t{1} << order;
  const std::size_t buddy = offset ^ size;
  if (buddy < heap_ || buddy + size > top_ || tag_at(buddy) != (kFree | order)) return false;
  unlink_free(reinterpret_cast<FreeBlock*>(reinterpret_cast<std::byte*>(this) + buddy), order);
  tag_at(offset) = tag_at(buddy) = 0;
  return true;
}

/// Lists a free block after joining it with its buddy, as often as possible.
void Memory::join(std::size_t offset, unsigned order) {
  while (order < kMaxOrder && take_buddy(offset, order)) {
    offset &= ~(std::size_t{1} << order);
    order++;
  }
  push_free(offset, order);
}

void Memory::join_all() {
  for (unsigned order = kMinOrder; order < kMaxOrder; order++) {
    FreeBlock* kept = nullptr;
    while (FreeBlock* block = free_[order - kMinOrder]) {
      unlink_free(block, order);
      const std::size_t offset = offset_of(block);
      if (take_buddy(offset, order)) {
        push_free(offset & ~(std::size_t{1} << order), order + 1);
      } else {
        block->next = kept;
        kept = block;
      }
    }
    while (kept != nullptr) {
      FreeBlock* next = kept->next;
      push_free(offset_of(kept), order);
      kept = next;
    }
  }
}

void Memory::forget_lists() {
  listed_ = 0;
  std::fill(std::begin(free_), std::end(free_), nullptr);
}

void Memory::begin_rebuild() {
  mode_ = Mode::kRebuild;
  used_ = 0;
  forget_lists();
  // These include the marks of an earlier rebuild whose process died.
  for (std::size_t at = next_marked(heap_); at < top_; at = next_marked(at + kMinBlock)) {
    tag_at(at) = static_cast<std::uint8_t>(tag_at(at) & ~kMarked);
  }
}

bool Memory::mark_in_use(const void* block) {
  if (!contains(block)) return false;
  const std::size_t offset = offset_of(block);
  if (offset < heap_ || offset >= top_ || offset % kMinBlock != 0) return false;
  std::uint8_t& tag = tag_at(offset);
  const unsigned order = tag & kOrderMask;
  if ((tag & (kUsed | kMarked)) != kUsed || order < kMinOrder || order > kMaxOrder) return false;
  const std::size_t size = std::size_t{1} << order;
  if (offset % size != 0 || offset + size > top_) return false;
  tag = static_cast<std::uint8_t>(tag | kMarked);
  used_ += size;
  return true;
}

void Memory::finish_rebuild() {
  forget_lists();
  for (std::size_t at = heap_; at < top_;) {
    const std::size_t block = next_marked(at);
    std::memset(&tag_at(at), 0, (block - at) / kMinBlock);
    free_range(at, block);
    at = block;
    if (block >= top_) break;
    const std::uint8_t order = tag_at(block) & kOrderMask;
    tag_at(block) = static_cast<std::uint8_t>(kUsed | order);
    at = block + (std::size_t{1} << order);
  }
  mode_ = Mode::kLazy;
}

/// The first marked block from `offset` on; top_ if there is no such block.
std::size_t Memory::next_marked(std::size_t offset) const {
  constexpr std::uint64_t kMarks = 0x0101010101010101 * kMarked;
  while (offset < top_) {
    std::uint64_t eight = 0;
    const std::size_t step = 8 * kMinBlock;
    if (offset + step <= top_) {
      std::memcpy(&eight, &tag_at(offset), 8);
      if ((eight & kMarks) == 0) {
        offset += step;
        continue;
      }
    }
    if ((tag_at(offset) & kMarked) != 0) return offset;
    offset += kMinBlock;
  }
  return top_;
}

}  // namespace bypass
