// Use: keeps an object alive while a call uses it, even if another thread (or a handler that interrupts the call)
// closes its number. As in the kernel, the object ends when the last call has left it.
//
// A call only stores a mark and looks again. The closer establishes the order between the two, with membarrier(2), and
// only in a process where a second thread has ever used a socket of ours. A call that is left by a jump from a signal
// handler leaves its mark behind. Marks contain their stack address, so the thread's next call (or its own close)
// recognises them as stale.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "preload/fd_table.h"
#include "preload/straight.h"
#include "socket/file.h"

namespace bypass::preload {

inline long finish_call(long result, int saved_errno) {
  errno = result >= 0 ? saved_errno : static_cast<int>(-result);
  return result >= 0 ? result : -1;
}

/// One thread's marks. Only that thread writes them; closers read them.
struct Marks {
  static constexpr int kDepth = 4;  // a call, and the calls of handlers that interrupt it
  std::atomic<bool> taken;
  int depth;
  std::atomic<std::uintptr_t> word[kDepth];
  std::uintptr_t frame[kDepth];
  std::atomic<const socket::PollItem*> many;
  std::atomic<std::size_t> many_count;
  std::uintptr_t many_frame;
  std::atomic<int> readers;  // closers that read `many` now
};
extern thread_local constinit Marks* my_marks;  // null: the thread has no marks yet
extern std::atomic<bool> fence_each_call;       // membarrier(2) is not available
extern std::atomic<int> deferred_count;         // objects that wait until the last call has left them
void release_deferred();

/// The number is to name a socket of the kernel's: pumped.h.
[[nodiscard]] inline bool is_pumped(Entry entry) {
  return entry.file()->pumped.load(std::memory_order_acquire);
}

class Use {
 public:
  enum Kinds : unsigned { kSocket = 1, kEpoll = 2, kAny = 3 };
  /// Empty if the number is the kernel's, has another kind, or the thread goes straight to the kernel.
  explicit Use(int fd, Kinds kinds = kSocket) {
    if (!enter_plainly(fd, kinds)) [[unlikely]]
      enter(fd, kinds, reinterpret_cast<std::uintptr_t>(this));
  }
  /// For a second number of the same call.
  Use(int fd, Kinds kinds, const Use& /*enclosing*/) { enter(fd, kinds, 0); }
  ~Use() {
    if (place_ < 0) return;
    Marks& marks = *my_marks;
    marks.word[place_].store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    marks.depth = place_;
    if (deferred_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
      release_deferred();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  explicit operator bool() const { return !entry_.empty(); }
  File& operator*() const { return *entry_.file(); }
  [[nodiscard]] Entry entry() const { return entry_; }
  /// The result in libc's form: a negative errno becomes -1 and errno; a success leaves errno unchanged.
  [[nodiscard]] long finish(long result) const { return finish_call(result, saved_errno_); }

 private:
  void enter(int fd, Kinds kinds, std::uintptr_t stale_below);
  /// The part of enter() for the usual case: no other call of this thread is under way, and none has left traces.
  bool enter_plainly(int fd, Kinds kinds) {
    Marks* const marks = my_marks;
    if (marks == nullptr || goes_straight() || marks->depth != 0 || marks->many_frame != 0) return false;
    if (socket::thread_signals.handlers != 0 || fence_each_call.load(std::memory_order_relaxed)) return false;
    marks->frame[0] = reinterpret_cast<std::uintptr_t>(this);
    saved_errno_ = errno;
    marks->depth = 1;
    place_ = 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    marks->frame[0] = reinterpret_cast<std::uintptr_t>(this);  // a call of an interrupting handler has had this place
    const Entry seen = fd_table.load(fd);
    if (seen.empty()) return true;
    marks->word[0].store(seen.word(), std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (fd_table.load(fd) != seen || is_pumped(seen)) [[unlikely]] {
      marks->word[0].store(0, std::memory_order_relaxed);
      marks->depth = 0;
      place_ = -1;
      return false;
    }
    if ((kinds & (seen.is_epoll() ? kEpoll : kSocket)) != 0) entry_ = seen;
    return true;
  }

  Entry entry_;
  int place_ = -1;
  int saved_errno_ = 0;
};

/// The same for a poll set: looks every number up and fills in `file`.
class UseMany {
 public:
  explicit UseMany(std::span<socket::PollItem> items);
  ~UseMany();
  UseMany(const UseMany&) = delete;
  UseMany& operator=(const UseMany&) = delete;
  /// Whether any of the items is ours.
  explicit operator bool() const { return any_; }
  [[nodiscard]] long finish(long result) const { return finish_call(result, saved_errno_); }

 private:
  bool any_ = false;
  int saved_errno_ = 0;
};

/// `entry` was taken out of the table: releases its object, now or when the last call has left it. `fd` is still open.
void release_entry(Entry entry, int fd);

/// Registers with membarrier. To be called once in a process, before the first object, and again in a forked child,
/// where only the calling thread's marks stay.
void prepare_uses();
void forget_uses_after_fork();

}  // namespace bypass::preload
