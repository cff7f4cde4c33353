// DirectSet: the kernel's side of the few objects that a sleeper waits for, under numbers of their own.
//
// The one that sleeps over the process's watch set (kernel_half.h) is woken by each event of any object: where every
// connection has a thread that waits for it, each of them by every wake-up.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::socket {

struct File;

/// What a sleeper hears of the kernel's side.
struct Hearing {
  bool all = false;         // it sleeps over the process's watch set
  std::uint32_t links = 0;  // or so many connections within the host, which no other sleeper hears
};

class DirectSet {
 public:
  /// Objects; with more of them the watch set is cheaper.
  static constexpr std::size_t kMost = 4;
  /// Each has a kernel half, and may have a channel.
  static constexpr std::size_t kEntriesOfOne = 2, kMostEntries = kEntriesOfOne * kMost;

  /// Before a sleep, with the lock held: each object that is waited for. Should one of its numbers become another one's
  /// before the thread sleeps, signal_idle() wakes it.
  void begin();
  /// Whether there is anything on the kernel's side to hear.
  [[nodiscard]] static bool concerns(const File& file);
  void add(File& file);
  /// All: the watch set is the one entry. There are too many objects, or one of them is not quiet: what is known of it
  /// already would end each sleep.
  [[nodiscard]] Hearing hearing() const { return {.all = !usable_, .links = links_}; }
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
  std::uint32_t links_ = 0;
  bool usable_ = true;
  bool by_channel_ = false;  // the sleep has been ended, and by nothing else
  bool misled_ = false;      // a kernel half was readable: should nothing come of it, it would be again
};

}  // namespace bypass::socket
