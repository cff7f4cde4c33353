#include "stack/memory/slab.h"

#include <algorithm>

namespace bypass {

std::uint32_t SlabBase::index_of(const void* object) const {
  const Chunk* const chunk = chunk_of(object);
  const auto place = reinterpret_cast<std::uintptr_t>(object) - reinterpret_cast<std::uintptr_t>(chunk);
  return chunk->first + static_cast<std::uint32_t>((place - layout_.objects) / layout_.stride);
}

std::uint32_t SlabBase::find(const void* object) const {
  for (std::uint32_t i = 0; i < chunks_; i++) {
    const auto place = reinterpret_cast<std::uintptr_t>(object) - reinterpret_cast<std::uintptr_t>(table_[i]);
    if (place >= kChunk) continue;
    if (place < layout_.objects || (place - layout_.objects) % layout_.stride != 0) return kNone;
    const auto slot = static_cast<std::uint32_t>((place - layout_.objects) / layout_.stride);
    return slot < layout_.slots ? i * layout_.slots + slot : kNone;
  }
  return kNone;
}

std::uint32_t SlabBase::take() {
  if (free_ == kNone && !grow()) return kNone;
  const std::uint32_t index = free_;
  free_ = slot_at(index).next_free;
  return index;
}

void SlabBase::put(std::uint32_t index) {
  slot_at(index).next_free = free_;
  free_ = index;
}

bool SlabBase::grow_table() {
  const std::size_t bytes = std::max<std::size_t>(kMinBlock, 2 * table_room_ * sizeof(Chunk*));
  auto* larger = static_cast<Chunk**>(memory_.allocate(bytes));
  if (larger == nullptr) return false;
  if (chunks_ != 0) std::memcpy(larger, table_, chunks_ * sizeof(Chunk*));
  Chunk** old = table_;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  table_ = larger;
  table_room_ = static_cast<std::uint32_t>(bytes / sizeof(Chunk*));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  memory_.release(old);
  return true;
}

bool SlabBase::grow() {
  if (chunks_ == table_room_ && !grow_table()) return false;
  auto* chunk = static_cast<Chunk*>(memory_.allocate(kChunk));
  if (chunk == nullptr) return false;
  chunk->first = chunks_ * layout_.slots;
  chunk->reserved = 0;
  for (std::uint32_t i = 0; i < layout_.slots; i++) chunk->slots[i] = {0, kNone};
  table_[chunks_] = chunk;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  chunks_++;
  for (std::uint32_t i = layout_.slots; i-- > 0;) put(chunk->first + i);
  return true;
}

bool SlabBase::rebuild() {
  free_ = kNone;
  live_ = 0;
  if (table_ == nullptr) return true;
  if (!memory_.mark_in_use(table_)) return false;
  // A death between storing the new table and storing its size leaves the size too small. The table then only grows
  // early.
  for (std::uint32_t i = 0; i < chunks_; i++) {
    if (!memory_.mark_in_use(table_[i])) return false;
  }
  for (std::uint32_t index = static_cast<std::uint32_t>(capacity()); index-- > 0;) {
    if ((slot_at(index).generation & 1) != 0) {
      live_++;
    } else {
      put(index);
    }
  }
  return true;
}

}  // namespace bypass
