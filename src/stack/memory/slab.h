// Slab<T>: objects of one type in the arena: connections, listeners, endpoints.
//
// Chunks of 64 KiB come from Memory and are never given back. Slots are reused LIFO and keep their address. So a
// pointer is valid as long as its object lives, and a SlotId tells whether it still does. A slot's generation is odd
// while an object lives in it. This number is the truth that survives a death inside the lock; the free list is an
// index, which rebuild() makes again.
//
// The slab's owner lies in the arena, too, and frees the objects before itself: a Slab has no destructor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "stack/memory/memory.h"

namespace bypass {

/// What a chunk is, whatever T is: places are computed from `Layout`, which the type fixes.
class SlabBase {
 public:
  static constexpr std::size_t kChunk = std::size_t{64} << 10;

  /// Number of living objects.
  [[nodiscard]] std::size_t size() const { return live_; }
  /// Number of slots; it grows by a chunk when all are in use.
  [[nodiscard]] std::size_t capacity() const { return chunks_ * layout_.slots; }

  /// After a death: marks the slab's own blocks in Memory, and makes the free list again. To be called between Memory's
  /// begin_rebuild() and finish_rebuild(), before any other use of the slab. False: the slab is corrupt.
  [[nodiscard]] bool rebuild();

 protected:
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Layout {
    std::uint32_t slots;    // slots in a chunk
    std::uint32_t objects;  // offset of the first object in a chunk
    std::uint32_t stride;
  };
  struct Slot {
    std::uint32_t generation;  // odd: an object lives here
    std::uint32_t next_free;
  };
  struct Chunk {
    std::uint32_t first;  // index of its first slot
    std::uint32_t reserved;
    Slot slots[1];  // the real size is layout_.slots
  };

  SlabBase(Memory& memory, const Layout& layout) : memory_(memory), layout_(layout) {}

  [[nodiscard]] Chunk& chunk_at(std::uint32_t index) const { return *table_[index / layout_.slots]; }
  [[nodiscard]] Slot& slot_at(std::uint32_t index) const { return chunk_at(index).slots[index % layout_.slots]; }
  [[nodiscard]] void* object_at(std::uint32_t index) const {
    return reinterpret_cast<std::byte*>(&chunk_at(index)) + layout_.objects +
           std::size_t{index % layout_.slots} * layout_.stride;
  }
  /// The chunk that an object of ours lies in: blocks are aligned to their size as counted from Memory's base.
  [[nodiscard]] const Chunk* chunk_of(const void* object) const {
    const auto base = reinterpret_cast<std::uintptr_t>(&memory_);
    const auto place = reinterpret_cast<std::uintptr_t>(object) - base;
    return reinterpret_cast<const Chunk*>(base + (place & ~(kChunk - 1)));
  }
  /// The index of the slot that an object of ours lies in.
  [[nodiscard]] std::uint32_t index_of(const void* object) const;
  /// The same for any pointer; kNone if no slot begins there.
  [[nodiscard]] std::uint32_t find(const void* object) const;

  /// Takes a free slot off the list; kNone without memory.
  std::uint32_t take();
  void put(std::uint32_t index);

  Memory& memory_;
  Layout layout_;
  Chunk** table_ = nullptr;  // a block of Memory
  std::uint32_t table_room_ = 0;
  std::uint32_t chunks_ = 0;
  std::uint32_t free_ = kNone;
  std::uint32_t live_ = 0;

 private:
  bool grow();
  bool grow_table();
};

template <typename T>
class Slab : public SlabBase {
 public:
  explicit Slab(Memory& memory) : SlabBase(memory, layout()) {}
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  /// A new object; null without memory.
  template <typename... Arguments>
  [[nodiscard]] T* allocate(Arguments&&... arguments) {
    const std::uint32_t index = take();
    if (index == kNone) return nullptr;
    T* object = new (object_at(index)) T(std::forward<Arguments>(arguments)...);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // a slot says "lives" only when the object is whole
    slot_at(index).generation++;
    live_++;
    return object;
  }
  void free(T* object) {
    const std::uint32_t index = index_of(object);
    Slot& slot = slot_at(index);
    if ((slot.generation & 1) == 0) __builtin_trap();  // freed twice
    slot.generation++;
    live_--;
    object->~T();
    put(index);
  }

  /// Null if the object is gone.
  [[nodiscard]] T* get(SlotId id) const {
    if (id.index >= capacity() || (id.generation & 1) == 0) return nullptr;
    return slot_at(id.index).generation == id.generation ? static_cast<T*>(object_at(id.index)) : nullptr;
  }
  [[nodiscard]] SlotId id_of(const T* object) const {
    // This runs once for each call, so it divides by constants; index_of() divides by values that it reads.
    constexpr Layout kLayout = layout();
    const Chunk& chunk = *chunk_of(object);
    const auto place = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(object) -
                                                  reinterpret_cast<std::uintptr_t>(&chunk)) -
                       kLayout.objects;
    const std::uint32_t slot = place / kLayout.stride;
    return {chunk.first + slot, chunk.slots[slot].generation};
  }
  /// Whether a pointer of unknown origin is a living object of this slab.
  [[nodiscard]] bool lives(const void* object) const {
    const std::uint32_t index = find(object);
    return index != kNone && (slot_at(index).generation & 1) != 0;
  }

  /// Calls f(T&) for each living object, in the order of their slots; f may free that object and make others.
  template <typename F>
  void for_each(F&& f) const {
    for (std::uint32_t index = 0; index < capacity(); index++) {
      if ((slot_at(index).generation & 1) != 0) f(*static_cast<T*>(object_at(index)));
    }
  }
  /// Whether f(const T&) is true for some living object. Stops at the first such object.
  template <typename F>
  [[nodiscard]] bool any_of(F&& f) const {
    for (std::uint32_t index = 0; index < capacity(); index++) {
      if ((slot_at(index).generation & 1) != 0 && f(*static_cast<const T*>(object_at(index)))) return true;
    }
    return false;
  }

 private:
  static constexpr std::uint32_t head_bytes(std::uint32_t slots) {
    const std::size_t bytes = sizeof(Chunk) + (slots - 1) * sizeof(Slot);
    return static_cast<std::uint32_t>((bytes + alignof(T) - 1) / alignof(T) * alignof(T));
  }
  static constexpr Layout layout() {
    static_assert(sizeof(T) <= kChunk / 8, "large objects are blocks of their own");
    static_assert(alignof(T) <= 4096);
    auto slots = static_cast<std::uint32_t>((kChunk - sizeof(Chunk)) / (sizeof(T) + sizeof(Slot)));
    while (head_bytes(slots) + slots * sizeof(T) > kChunk) slots--;
    return {slots, head_bytes(slots), sizeof(T)};
  }
};

}  // namespace bypass
