// FrameMemory: the memory for a port's frames. It is shared memory without a file, so that forked children can read it.
// It may lie on huge pages: a device that reads and writes it by itself then translates fewer addresses.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "backends/backend.h"

namespace bypass::packet {

class FrameMemory {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  FrameMemory() = default;
  FrameMemory(const FrameMemory&) = delete;
  FrameMemory& operator=(const FrameMemory&) = delete;

  /// False: `problem` says why. Small pages take memory when they are first written, huge pages at once.
  bool map(std::size_t bytes, Hugepages pages, std::string& problem);
  void unmap();
  /// All of it, in whole pages: part of a huge page cannot be kept from children (madvise(2), MADV_DONTFORK).
  [[nodiscard]] std::span<std::byte> all() const { return memory_; }
  [[nodiscard]] bool is_huge() const { return huge_; }

 private:
  bool map_huge(std::size_t bytes);

  std::span<std::byte> memory_;
  bool huge_ = false;
};

}  // namespace bypass::packet
