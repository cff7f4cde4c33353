// ChunkTable: what a process keeps beside the arena's objects, indexed by their slots. It grows by chunks that are
// never given back. The chunks are mapped, not allocated, because a call in a signal handler may find a new object.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "os/os.h"

namespace bypass::socket {

template <typename T>
class ChunkTable {
 public:
  /// The entry, which is made if needed. Null: no memory, or the index is beyond the four millionth slot.
  T* at(std::uint32_t index) {
    const std::size_t chunk = index / kChunk;
    if (chunk >= chunks_.size() || (chunks_[chunk] == nullptr && !make(chunk))) return nullptr;
    return &chunks_[chunk][index % kChunk];
  }
  /// The entry if it exists.
  [[nodiscard]] T* find(std::uint32_t index) const {
    const std::size_t chunk = index / kChunk;
    return chunk >= chunks_.size() || chunks_[chunk] == nullptr ? nullptr : &chunks_[chunk][index % kChunk];
  }
  template <typename Each>
  void for_each(Each&& each) {
    for (T* chunk : chunks_) {
      for (std::size_t i = 0; chunk != nullptr && i < kChunk; i++) each(chunk[i]);
    }
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  bool make(std::size_t chunk) {
    const long made =
        os::call(SYS_mmap, 0, kChunk * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made < 0 && made > -4096) return false;
    chunks_[chunk] = reinterpret_cast<T*>(made);
    for (std::size_t i = 0; i < kChunk; i++) new (chunks_[chunk] + i) T{};
    return true;
  }
  std::array<T*, 4096> chunks_{};
};

}  // namespace bypass::socket
