// Sleeps: the test controls the time of a device's thread. A sleep with a limit ends when the test says so, or when
// something happens.
#pragma once

#include <poll.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace bypass::verbs {

class Sleeps {
 public:
  Sleeps();
  Sleeps(const Sleeps&) = delete;
  Sleeps& operator=(const Sleeps&) = delete;
  ~Sleeps();

  /// How many sleeps have begun, and the limit of the last one, in ms.
  [[nodiscard]] std::size_t count();
  [[nodiscard]] int last();
  /// Ends the limit of the present sleep or the next one; returns when that sleep has ended.
  void end();

 private:
  static int poll(pollfd* items, nfds_t count, int limit_ms);

  int (*real_)(pollfd*, nfds_t, int);
  int over_[2] = {-1, -1};  // a pipe: a byte ends a sleep
  std::atomic<int> ended_{0};
  std::mutex mutex_;
  std::vector<int> limits_;
};

}  // namespace bypass::verbs
