// RcWorker: a device's thread for calls that wait. Tasks are handed over without a lock: any number of them may be
// under way up to kMost, in no particular order.
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
  /// On the worker's thread.
  virtual void run() = 0;
  /// What run() has done is there to be seen.
  [[nodiscard]] bool done() const { return !busy_.load(std::memory_order_acquire); }

 private:
  friend class RcWorker;
  std::atomic<bool> busy_{false};  // the worker's; its release of it meets done()
};

class RcWorker {
 public:
  static constexpr std::size_t kMost = 64;

  /// Rings `wakeup` after every task.
  explicit RcWorker(const packet::Wakeup& wakeup) : wakeup_(wakeup) {}
  RcWorker(const RcWorker&) = delete;
  RcWorker& operator=(const RcWorker&) = delete;
  ~RcWorker() { stop(); }

  /// 0 or an errno. Without it, submit() runs the task at once: tests have no threads.
  int start();
  /// After what was handed over.
  void stop();
  /// False: there are too many.
  bool submit(RcTask& task);
  /// Tasks have a thread of their own, and may wait.
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
