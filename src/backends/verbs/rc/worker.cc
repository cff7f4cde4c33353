#include "backends/verbs/rc/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "backends/packet/libc.h"
#include "os/poll_by_parts.h"

namespace bypass::verbs {

using packet::host;
using packet::libc;

int RcWorker::start() {
  call_ = packet::Descriptor(libc.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!call_.is_open()) return errno;
  const int error = host->run_thread("bypass-rc", &RcWorker::body, this, &thread_);
  runs_ = error == 0;
  return error;
}

void RcWorker::stop() {
  if (!runs_) return;
  stopping_.store(true, std::memory_order_release);
  call();
  host->join_thread(thread_);
  runs_ = false;
}

void RcWorker::call() const {
  const std::uint64_t one = 1;
  (void)!libc.write(call_.get(), &one, sizeof one);
}

bool RcWorker::submit(RcTask& task) {
  task.busy_.store(true, std::memory_order_relaxed);
  if (!runs_) {
    task.run();
    task.busy_.store(false, std::memory_order_relaxed);
    wakeup_.ring();
    return true;
  }
  for (std::atomic<RcTask*>& slot : tasks_) {
    RcTask* empty = nullptr;
    // Release: the worker's exchange sees the task as it is here.
    if (!slot.compare_exchange_strong(empty, &task, std::memory_order_release, std::memory_order_relaxed)) continue;
    call();
    return true;
  }
  task.busy_.store(false, std::memory_order_relaxed);
  return false;
}

bool RcWorker::run_all() {
  bool any = false;
  for (std::atomic<RcTask*>& slot : tasks_) {
    RcTask* const task = slot.exchange(nullptr, std::memory_order_acquire);
    if (task == nullptr) continue;
    any = true;
    task->run();
    task->busy_.store(false, std::memory_order_release);  // from here on the task may be gone
    wakeup_.ring();
  }
  return any;
}

void RcWorker::body(void* self) {
  RcWorker& worker = *static_cast<RcWorker*>(self);
  for (;;) {
    // In this order, so that a task that was handed over before stop() is still run.
    const bool last = worker.stopping_.load(std::memory_order_acquire);
    if (worker.run_all()) continue;
    if (last) return;
    pollfd waiting{worker.call_.get(), POLLIN, 0};
    if (libc.poll(&waiting, 1, -1) < 0 && errno != EINTR) (void)socket::poll_by_parts({&waiting, 1}, nullptr);
    std::uint64_t calls = 0;
    (void)!libc.read(worker.call_.get(), &calls, sizeof calls);
  }
}

}  // namespace bypass::verbs
