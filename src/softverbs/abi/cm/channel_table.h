// ChannelTable: which descriptors of the program are channels of ours. Asked by every write() and close() of a program,
// so an answer costs one load.
//
// A program may close a number behind our back (dup2, close_range), and get it again for a file of its own. So a number
// that is known is compared with the channel's own file before anything is done.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace bypass::softverbs {

class ChannelTable {
 public:
  static constexpr std::size_t kMost = 65'536;

  /// `own`: another number of the same file. False: the number is too high.
  static bool add(int fd, int own);
  static void remove(int fd);
  /// May be false for a number that has gone to another file meanwhile; then it is forgotten.
  [[nodiscard]] static bool has(int fd) {
    const auto number = static_cast<std::size_t>(static_cast<unsigned>(fd));
    return number < kMost && inodes_[number].load(std::memory_order_relaxed) != 0 && is_still_there(fd);
  }

 private:
  static bool is_still_there(int fd);
  static inline std::array<std::atomic<std::uint64_t>, kMost> inodes_{};
};

}  // namespace bypass::softverbs
