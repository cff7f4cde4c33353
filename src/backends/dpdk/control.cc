#include "backends/dpdk/control.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {

using std::chrono::milliseconds;

Instant monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec}};
}

int Control::start() {
  const std::lock_guard lock(mutex_);
  if (running_) return 0;
  if (wake_fd_ < 0) wake_fd_ = raise_descriptor(libc.eventfd(0, EPOLL_CLOEXEC | O_NONBLOCK));
  if (wake_fd_ < 0) return errno;
  const int error = host->run_thread("bypass-ports", run, this, &thread_);
  running_ = error == 0;
  return error;
}

void Control::call(const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  calls_.push_back(&work);
  const std::uint64_t mine = ++submitted_;
  poke();
  done_.wait(lock, [&] { return finished_ >= mine; });
}

void Control::poke() {
  const std::uint64_t one = 1;
  if (libc.write(wake_fd_, &one, sizeof one) < 0) return;
}

void Control::watch(Watched* each) {
  entries_.push_back({each, Instant{}});
}

void Control::forget(Watched* each) {
  std::erase_if(entries_, [each](const Entry& entry) { return entry.watched == each; });
}

void Control::run(void* self) {
  static_cast<Control*>(self)->loop();
}

void Control::loop() {
  for (;;) {
    sleep_until_due();
    run_calls();
    for (Entry& entry : entries_) entry.due = entry.watched->step(monotonic_now());
  }
}

void Control::run_calls() {
  std::vector<const std::function<void()>*> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const auto* work : calls) {
    (*work)();
    const std::lock_guard lock(mutex_);
    finished_++;
    done_.notify_all();
  }
}

void Control::sleep_until_due() {
  Instant due = kNever;
  for (const Entry& entry : entries_) due = std::min(due, entry.due);
  int timeout_ms = -1;
  if (due != kNever) {
    const auto left = std::chrono::ceil<milliseconds>(due - monotonic_now());
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }
  pollfd p{wake_fd_, POLLIN, 0};
  if (poll_descriptors({&p, 1}, timeout_ms) <= 0) return;
  std::uint64_t pokes;
  if (libc.read(wake_fd_, &pokes, sizeof pokes) < 0) return;
}

}  // namespace bypass::dpdk
