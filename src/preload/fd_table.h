// FdTable: descriptor number → object, one word each. Looking up a kernel descriptor is one load and a predicted
// branch. A number that was never seen, is out of range or negative is a kernel descriptor.
//
// Private to a process, copied by fork. It grows by mapped chunks (so it may grow in a signal handler) and never
// shrinks. It is never sized by RLIMIT_NOFILE, which may be 2^30. The calls that make and end numbers write its words,
// from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "socket/api.h"

namespace bypass::preload {

using socket::File;

/// A File* with its kind in the lowest bit, so that read() need not ask an epoll set. Empty: a kernel descriptor.
class Entry {
 public:
  constexpr Entry() = default;
  constexpr explicit Entry(std::uintptr_t word) : word_(word) {}
  explicit Entry(File* file)
      : word_(reinterpret_cast<std::uintptr_t>(file) | (socket::kind(*file) == socket::FileKind::kEpoll ? kEpoll : 0)) {
  }
  [[nodiscard]] bool empty() const { return word_ == 0; }
  [[nodiscard]] bool is_epoll() const { return (word_ & kEpoll) != 0; }
  [[nodiscard]] bool is_socket() const { return word_ != 0 && !is_epoll(); }
  [[nodiscard]] File* file() const { return reinterpret_cast<File*>(word_ & ~kEpoll); }
  [[nodiscard]] std::uintptr_t word() const { return word_; }
  bool operator==(const Entry&) const = default;

 private:
  static constexpr std::uintptr_t kEpoll = 1;
  std::uintptr_t word_ = 0;
};

class FdTable {
 public:
  [[nodiscard]] Entry load(int fd) const {
    auto number = static_cast<unsigned>(fd);
    if (number < kNear) [[likely]]
      return Entry(near_[number].load(std::memory_order_acquire));
    const Word* place = far_word(number);
    return place == nullptr ? Entry{} : Entry(place->load(std::memory_order_acquire));
  }
  /// Puts `entry` there and returns what was there. If the kernel refuses memory, the object is not stored, and
  /// `placed` is false.
  Entry exchange(int fd, Entry entry, bool* placed = nullptr);
  /// True if `expected` was there and was taken out.
  bool clear(int fd, Entry expected);
  /// One more than the highest number that ever had an object.
  [[nodiscard]] int end() const { return end_.load(std::memory_order_acquire); }
  /// Forgets everything, for a process in which the library's part has ended.
  void forget();

 private:
  static constexpr unsigned kNear = 4096;
  static constexpr unsigned kChunkBits = 16;
  static constexpr unsigned kChunk = 1U << kChunkBits;
  static constexpr unsigned kNumbers = 1U << 31;
  using Word = std::atomic<std::uintptr_t>;

  [[nodiscard]] Word* far_word(unsigned number) const {
    if (number >= kNumbers) return nullptr;
    Word* chunk = chunks_[number >> kChunkBits].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + number % kChunk;
  }
  [[nodiscard]] Word* word(unsigned number) const {
    return number < kNear ? const_cast<Word*>(&near_[number]) : far_word(number);
  }
  Word* make_word(unsigned number);

  Word near_[kNear]{};
  std::atomic<Word*> chunks_[kNumbers >> kChunkBits]{};
  std::atomic<int> end_{0};
};

extern FdTable fd_table;

/// The first question of a transfer call: may this number be one of ours?
inline bool is_tracked(int fd) {
  return !fd_table.load(fd).empty();
}

}  // namespace bypass::preload
