// DirectSet: the kernel's side of the few objects that a sleeper waits for, under numbers of their own.
//
// Whoever sleeps over the process's watch set (kernel_half.h) is woken by each event of any object: where every
// connection has a thread that waits for it, each of them by every wake-up.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <span>

namespace bypass::socket {

struct File;

class DirectSet {
 public:
  /// Objects; with more of them the watch set is cheaper.
  static constexpr std::size_t kMost = 4;
  /// Each has a kernel half, and may have a channel.
  static constexpr std::size_t kMostEntries = 2 * kMost;

  /// Before a sleep, with the lock held: each object that is waited for. Should one of its numbers become another one's
  /// before the thread sleeps, signal_idle() wakes it.
  void begin();
  /// Whether there is anything on the kernel's side to hear.
  [[nodiscard]] static bool concerns(const File& file);
  void add(File& file);
  /// False: the watch set is the one entry. There are too many objects, or one of them is not quiet: what is known of
  /// it already would end each sleep.
  [[nodiscard]] bool is_usable() const { return usable_; }
  [[nodiscard]] std::span<const pollfd> entries() const { return {entries_.data(), count_}; }
  /// After it, with the lock held: the entries as the kernel has answered them, if it has.
  void on_slept(std::span<const pollfd> entries);
  /// Without the lock: what the channels have said that on_slept() found readable. False: the kernel's side has
  /// something else, or may have.
  bool hear();

 private:
  void use_watch_set();

  std::array<pollfd, kMostEntries> entries_;
  std::array<File*, kMost> files_;
  std::size_t count_ = 0, file_count_ = 0;
  bool usable_ = true;
  bool told_ = false;    // by a channel, and by nothing else
  bool misled_ = false;  // a kernel half was readable: should nothing come of it, it will be again
};

}  // namespace bypass::socket
