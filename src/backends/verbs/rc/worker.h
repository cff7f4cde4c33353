// RcWorker: a device's thread for calls that wait. Tasks are handed over without a lock. Up to kMost may be under way,
// in no particular order.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "backends/packet/descriptor.h"
#include "backends/packet/wakeup.h"

namespace bypass::verbs {

class RcTask {
 public:
  RcTask() = default;
  RcTask(const RcTask&) = delete;
  RcTask& operator=(const RcTask&) = delete;
  virtual ~RcTask() = default;

 protected:
  /// Runs on the worker's thread.
  virtual void run() = 0;
  /// Whether run() is done. Then the caller sees everything that it has written.
  [[nodiscard]] bool done() const { return !busy_.load(std::memory_order_acquire); }

 private:
  friend class RcWorker;
  std::atomic<bool> busy_{false};  // the worker clears it with a release, which meets done()'s acquire
};

class RcWorker {
 public:
  static constexpr std::size_t kMost = 64;

  /// Rings `wakeup` after every task.
  explicit RcWorker(const packet::Wakeup& wakeup) : wakeup_(wakeup) {}
  RcWorker(const RcWorker&) = delete;
  RcWorker& operator=(const RcWorker&) = delete;
  ~RcWorker() { stop(); }

  /// 0 or an errno. Without start(), submit() runs the task at once: tests have no threads.
  int start();
  /// Stops the thread after it has run what was handed over.
  void stop();
  /// False: there are too many tasks.
  bool submit(RcTask& task);
  /// Whether tasks have a thread of their own, and so may wait.
  [[nodiscard]] bool runs() const { return runs_; }

 private:
  static void body(void* self);
  bool run_all();
  void call() const;

  const packet::Wakeup& wakeup_;
  std::array<std::atomic<RcTask*>, kMost> tasks_{};
  std::atomic<bool> stopping_{false};
  packet::Descriptor call_;
  std::uint64_t thread_ = 0;
  bool runs_ = false;
};

}  // namespace bypass::verbs
