// What the program believes is installed for each of our signals. Handlers read it, sigaction writes it. Private to the
// crash handler.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "os/own/let_others_run.h"

namespace bypass::runtime::crash {

inline constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

constexpr int index_of(int signal) {
  for (std::size_t i = 0; i < kSignals.size(); i++)
    if (kSignals[i] == signal) return static_cast<int>(i);
  return -1;
}

/// A struct sigaction that a signal handler may read while another thread writes: the words lie under a
/// sequence number, odd while it is written. Writers come one at a time, with all signals blocked.
class Entry {
 public:
  void store(const struct sigaction& action) {
    std::uint64_t words[kWords] = {};
    std::memcpy(words, &action, sizeof action);
    const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed);
    sequence_.store(sequence + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kWords; i++) words_[i].store(words[i], std::memory_order_release);
    sequence_.store(sequence + 2, std::memory_order_release);
  }

  [[nodiscard]] struct sigaction load() const {
    std::uint64_t words[kWords];
    std::uint32_t before = 0;
    for (;;) {
      before = sequence_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; i++) words[i] = words_[i].load(std::memory_order_acquire);
      if ((before & 1) == 0 && sequence_.load(std::memory_order_relaxed) == before) break;
      socket::let_others_run();  // another thread writes
    }
    struct sigaction action;
    std::memcpy(&action, words, sizeof action);
    return action;
  }

 private:
  static constexpr std::size_t kWords = (sizeof(struct sigaction) + 7) / 8;
  std::atomic<std::uint32_t> sequence_{0};
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace bypass::runtime::crash
