// FrameMemory: where a port's frames lie. It is shared memory without a file, which forked children read. It may lie on
// huge pages: a device that reads and writes it by itself translates fewer addresses then.
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

  /// False: `problem` says why. Small pages take no memory before they are written, huge ones at once.
  bool map(std::size_t bytes, Hugepages pages, std::string& problem);
  void unmap();
  /// Whole pages: a part of a huge one cannot be kept from children alone (madvise(2), MADV_DONTFORK).
  [[nodiscard]] std::span<std::byte> all() const { return memory_; }
  [[nodiscard]] bool is_huge() const { return huge_; }

 private:
  bool map_huge(std::size_t bytes);

  std::span<std::byte> memory_;
  bool huge_ = false;
};

}  // namespace bypass::packet
