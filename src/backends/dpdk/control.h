// Control: the backend's one thread of its own. EAL starts on it and every device is opened, watched and
// closed on it, so that the threads of the program never wait for a peer inside a driver.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/backend.h"
#include "stack/time.h"

namespace bypass::dpdk {

/// Something that wants to be looked after.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Called on the control thread after every poke and at its own due time; returns the next one.
  virtual Instant step(Instant now) = 0;
};

class Control {
 public:
  /// Starts the thread unless it runs. Returns 0 or an errno.
  int start();
  /// Runs `work` on the thread and waits for it.
  void call(const std::function<void()>& work);
  /// Has every Watched looked at soon. From any thread, async-signal-safe.
  void poke();

  // --- On the control thread only
  void watch(Watched* each);
  void forget(Watched* each);

 private:
  struct Entry {
    Watched* watched;
    Instant due;
  };
  static void run(void* self);
  void loop();
  void run_calls();
  void sleep_until_due();

  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<const std::function<void()>*> calls_;
  std::uint64_t finished_ = 0, submitted_ = 0;
  std::vector<Entry> entries_;
  int wake_fd_ = -1;
  bool running_ = false;
  std::uint64_t thread_ = 0;
};

/// CLOCK_MONOTONIC.
Instant monotonic_now();

}  // namespace bypass::dpdk
