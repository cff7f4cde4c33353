// DirectSet: the kernel's side of the few objects that a sleeper waits for, under their own numbers.
//
// A thread that sleeps over the process's watch set (kernel_half.h) is woken by each event of any object. If every
// connection has a thread that waits for it, each wake-up would wake all of them.
// Tests: tests/socket/epoll_test.cc.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::socket {

struct File;

/// Which events of the kernel's side a sleeper hears.
struct Hearing {
  bool all = false;         // all: it sleeps over the process's watch set
  std::uint32_t links = 0;  // or so many connections within the host, which no other sleeper hears
};

class DirectSet {
 public:
  /// The most objects; with more, the watch set costs less.
  static constexpr std::size_t kMost = 4;
  /// Each object has a kernel half, and may have a channel.
  static constexpr std::size_t kEntriesOfOne = 2, kMostEntries = kEntriesOfOne * kMost;

  /// To be called before a sleep, with the lock held, for each object that is waited for. If one of its numbers is
  /// given to another object before the thread sleeps, signal_idle() wakes it.
  void begin();
  /// Whether the file has anything on the kernel's side that can be heard.
  [[nodiscard]] static bool concerns(const File& file);
  void add(File& file);
  /// `all`: the watch set is the only entry. Then there are too many objects, or one of them is not quiet: what is
  /// already known about it would end each sleep.
  [[nodiscard]] Hearing hearing() const { return {.all = !usable_, .links = links_}; }
  [[nodiscard]] std::span<const pollfd> entries() const { return {entries_.data(), count_}; }
  /// To be called after the sleep, with the lock held. `entries` are as the kernel has answered them, if it has.
  void on_slept(std::span<const pollfd> entries);
  /// Without the lock: reads the channels that on_slept() found readable. False: the kernel's side has something else,
  /// or may have.
  bool hear();

 private:
  void use_watch_set();

  std::array<pollfd, kMostEntries> entries_;
  std::array<File*, kMost> files_;
  std::size_t count_ = 0, file_count_ = 0;
  std::uint32_t links_ = 0;
  bool usable_ = true;
  bool by_channel_ = false;  // only channels have ended the sleep
  bool misled_ = false;      // a kernel half was readable; if nothing comes of that, it would be so again
};

}  // namespace bypass::socket
