// Use: keeps an object alive while a call is inside it, although another thread (or a signal handler on top
// of the call) closes its number. As with the kernel, the object then ends when the last call has left it.
//
// The calls only store and look again; the order between their store and their second look is made by the
// closer, with membarrier(2), and only in a process where a second thread has ever used a socket of ours.
// A call that is left by a jump out of a signal handler leaves its mark behind; marks carry their stack
// address, so that the thread's next call (or its own close) knows them as stale.
#pragma once

#include <errno.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "preload/fd_table.h"

namespace bypass::preload {

inline long finish_call(long result, int saved_errno) {
  errno = result >= 0 ? saved_errno : static_cast<int>(-result);
  return result >= 0 ? result : -1;
}

class Use {
 public:
  enum Kinds : unsigned { kSocket = 1, kEpoll = 2, kAny = 3 };
  /// Empty when the number is the kernel's, of another kind, or the thread goes straight.
  explicit Use(int fd, Kinds kinds = kSocket);
  /// A second number of the same call.
  Use(int fd, Kinds kinds, const Use& enclosing);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  explicit operator bool() const { return !entry_.empty(); }
  File& operator*() const { return *entry_.file(); }
  [[nodiscard]] Entry entry() const { return entry_; }
  /// The result as libc has it: a negative errno becomes -1 and errno; a success leaves errno as it was.
  [[nodiscard]] long finish(long result) const { return finish_call(result, saved_errno_); }

 private:
  void enter(int fd, Kinds kinds, std::uintptr_t stale_below);

  Entry entry_;
  int place_ = -1;
  int saved_errno_ = 0;
};

/// The same for a whole poll set: looks every number up and fills in `file`.
class UseMany {
 public:
  explicit UseMany(std::span<socket::PollItem> items);
  ~UseMany();
  UseMany(const UseMany&) = delete;
  UseMany& operator=(const UseMany&) = delete;
  /// Whether any of them is ours.
  explicit operator bool() const { return any_; }
  [[nodiscard]] long finish(long result) const { return finish_call(result, saved_errno_); }

 private:
  bool any_ = false;
  int saved_errno_ = 0;
};

/// An entry that has been taken out of the table: releases its object, now or when the last call has left it.
/// `fd` is still open.
void release_entry(Entry entry, int fd);

/// Registers with membarrier. Once a process, before the first object, and again in a forked child, where
/// only the calling thread's marks stay.
void prepare_uses();
void forget_uses_after_fork();

}  // namespace bypass::preload
