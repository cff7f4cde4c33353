// IoCursor: a place in an iovec array, for copies that continue where the last one ended.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "os/program_memory.h"

namespace bypass::socket {

/// The most bytes that one call moves (MAX_RW_COUNT, read(2)).
inline constexpr std::size_t kMostOfACall = 0x7ffff000;

inline std::size_t total_bytes(std::span<const iovec> data) {
  std::size_t sum = 0;
  for (const iovec& v : data) sum += std::min(v.iov_len, kMostOfACall - sum);
  return sum;
}

class IoCursor {
 public:
  explicit IoCursor(std::span<const iovec> data) : data_(data) {}

  /// Copies bytes into the program's buffers; the caller passes no more than fit. False: a buffer is not mapped, and
  /// the cursor's place is no longer valid. The same holds for read().
  [[nodiscard]] bool write(const std::byte* from, std::size_t bytes) {
    return each(bytes, [&](std::byte* place, std::size_t n) {
      const bool copied = copy_program_bytes(place, from, n);
      from += n;
      return copied;
    });
  }
  /// Copies bytes out of the program's buffers.
  [[nodiscard]] bool read(std::byte* to, std::size_t bytes) {
    return each(bytes, [&](const std::byte* place, std::size_t n) {
      const bool copied = copy_program_bytes(to, place, n);
      to += n;
      return copied;
    });
  }
  void skip(std::size_t bytes) {
    (void)each(bytes, [](const std::byte*, std::size_t) { return true; });
  }

 private:
  template <typename Each>
  bool each(std::size_t bytes, Each&& visit) {
    while (bytes != 0 && index_ < data_.size()) {
      const iovec& v = data_[index_];
      const std::size_t n = std::min(bytes, v.iov_len - offset_);
      if (n != 0 && !visit(static_cast<std::byte*>(v.iov_base) + offset_, n)) return false;
      bytes -= n;
      offset_ += n;
      if (offset_ != v.iov_len) continue;
      index_++;
      offset_ = 0;
    }
    return true;
  }

  std::span<const iovec> data_;
  std::size_t index_ = 0, offset_ = 0;
};

}  // namespace bypass::socket
