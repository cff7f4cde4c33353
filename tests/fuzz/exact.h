// Bytes in a block of just their size: AddressSanitizer sees a byte that is read beyond them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

namespace bypass::fuzz {

class Exact {
 public:
  explicit Exact(std::span<const std::byte> bytes)
      : block_(std::make_unique<std::byte[]>(bytes.size())), size_(bytes.size()) {
    std::ranges::copy(bytes, block_.get());
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {block_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> block_;
  std::size_t size_;
};

}  // namespace bypass::fuzz
