// epoll_wait(2): events of our objects and of the kernel's, taken in turns. docs/waiting.md describes the wait.
// Tests: tests/socket/epoll_test.cc.
#include <algorithm>
#include <utility>

#include "os/errno_map.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/kernel_sleep.h"
#include "socket/wait/readiness.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

class EpollCondition final : public Condition {
 public:
  EpollCondition(Epoll& set, int number, std::span<epoll_event> out) : set_(set), number_(number), out_(out) {}

  long attempt(Guard&) override {
    version_ = set_.readiness.version.load(std::memory_order_relaxed);
    if (set_.ready_head == nullptr) return kAgain;
    const std::size_t n = harvest(set_, out_);
    return n == 0 ? kAgain : static_cast<long>(n);
  }
  [[nodiscard]] bool changed() const override {
    return set_.readiness.version.load(std::memory_order_acquire) != version_;
  }
  bool link(Waiter& waiter) override { return link_waiter(waiter, set_, kIn, true); }

  [[nodiscard]] bool needs_wire() const override { return set_.bypass_items.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] bool polls_first() const override { return true; }
  /// Always true: only the kernel knows what is in its set.
  [[nodiscard]] bool has_kernel() const override { return true; }
  long look_at_kernel(Instant now, bool always) override {
    long n = kAgain;
    const bool quiet = std::exchange(quiet_, false);
    const bool due = (always && is_known_filled()) || look_is_due(now);
    if (due && !quiet) n = take_kernel(now, out_);
    if (n == kAgain && has_duals()) look_at_kernel_halves(now, always);
    return n;
  }
  void hear_kernel(std::span<const pollfd> kernels, Instant now) override {
    for (const pollfd& each : kernels)
      if (each.fd == kernel_halves_descriptor() && each.revents != 0) look_at_kernel_halves(now, true);
  }
  bool on_slept(std::span<const pollfd> kernels, Instant now) override {
    quiet_ = !kernels.empty() && kernels[0].fd == number_ && kernels[0].revents == 0;
    if (quiet_) note_look(now);
    return Condition::on_slept(kernels, now);
  }
  [[nodiscard]] Hearing hearing() const override { return {.all = has_duals()}; }
  std::span<pollfd> sleep_set(std::size_t spare) override {
    if (!is_called_in_vain_) few_[spare++] = {number_, POLLIN, 0};
    if (has_duals()) few_[spare++] = {kernel_halves_descriptor(), POLLIN, 0};
    return {few_, spare};
  }
  [[nodiscard]] Duration longest_sleep() const override {
    return is_called_in_vain_ ? Duration(std::chrono::milliseconds(1)) : Duration{-1};
  }

  [[nodiscard]] bool has_duals() const { return set_.dual_items.load(std::memory_order_relaxed) != 0; }

  /// Takes the kernel's part: kAgain if it has nothing.
  long take_kernel(Instant now, std::span<epoll_event> out) {
    note_look(now);
    const int told = kernel->epoll_pwait(number_, out.data(), static_cast<int>(out.size()), 0, nullptr);
    const int n = drop_calls(set_, number_, out.data(), told);
    is_called_in_vain_ = n < told && is_calling(set_);
    if (n > 0 && !is_known_filled()) set_.kernel_items.store(true, std::memory_order_relaxed);
    return n == 0 ? kAgain : kernel_result(n);
  }
  [[nodiscard]] bool look_is_due(Instant now, Duration later = {}) const {
    const std::int64_t ns = now.time_since_epoch().count();
    const Duration set = shard().budgets().kernel_poll;
    const Duration apart = is_known_filled() ? set : std::max(set, kUnfilled);
    return ns - set_.kernel_looked.load(std::memory_order_relaxed) >= (apart + later).count();
  }

 private:
  /// The interval of looks at a kernel's set that nobody was seen to fill; a sleep hears such events at once.
  static constexpr Duration kUnfilled = std::chrono::milliseconds(1);

  [[nodiscard]] bool is_known_filled() const { return set_.kernel_items.load(std::memory_order_relaxed); }
  void note_look(Instant now) { set_.kernel_looked.store(now.time_since_epoch().count(), std::memory_order_relaxed); }

  Epoll& set_;
  int number_;
  std::span<epoll_event> out_;
  std::uint32_t version_ = 0;
  bool quiet_ = false;              // the kernel's items in the set have just had nothing
  bool is_called_in_vain_ = false;  // another process's descriptor is in the kernel's set: kernel_sleep.h
};

std::size_t take_ours(Epoll& set, const EpollCondition& condition, std::span<epoll_event> out) {
  Guard guard(shard());
  if (condition.needs_wire()) shard().poll_locked();
  dispatch_events(shard().stack());
  return harvest(set, out);
}

// The side whose turn it is may fill all the room; the other side gets the rest. So bypass items that are always ready
// cannot keep out the kernel's, nor the other way round.
long take_turns(Epoll& set, EpollCondition& condition, std::span<epoll_event> out, bool blocks) {
  const Instant now = shard().clock().now();
  if (condition.has_duals()) look_at_kernel_halves(now, false);
  // A wait that sleeps looks then. A wait that does not sleep has found something, and the kernel has its turn a little
  // later.
  constexpr Duration kThen = std::chrono::microseconds(200);
  const Duration later = blocks && sleeps_at_once() ? kThen : Duration{};
  if (!condition.look_is_due(now, later)) return kAgain;
  if (set.ours_first.exchange(false, std::memory_order_relaxed)) {
    const std::size_t ours = take_ours(set, condition, out);
    if (ours == out.size()) return static_cast<long>(ours);
    const long more = condition.take_kernel(now, out.subspan(ours));
    if (ours == 0) return more;
    return static_cast<long>(ours) + std::max(more, 0L);
  }
  const long got = condition.take_kernel(now, out);
  if (got < 0) return got;
  const auto taken = static_cast<std::size_t>(got);
  if (taken == out.size()) {
    set.ours_first.store(true, std::memory_order_relaxed);
    return got;
  }
  return got + static_cast<long>(take_ours(set, condition, out.subspan(taken)));
}

}  // namespace

long epoll_wait(File& file, int epoll_fd, epoll_event* events, int count, Duration timeout, const sigset_t* mask) {
  constexpr int kMost = INT32_MAX / static_cast<int>(sizeof(epoll_event));
  if (count <= 0 || count > kMost) return failure(Error::kInvalid);
  if (events == nullptr) return failure(Refusal::kBadPointer);
  auto& set = static_cast<Epoll&>(file);
  const std::span<epoll_event> out(events, static_cast<std::size_t>(count));
  EpollCondition condition(set, epoll_fd, out);
  Patience patience;
  patience.block = timeout != Duration{};
  patience.deadline = patience.block ? deadline_after(timeout) : kNever;
  patience.restart = false;  // signal(7): never restarted
  patience.mask = mask;
  long r = take_turns(set, condition, out, patience.block);
  if (r != kAgain) return r;
  r = wait(condition, patience);
  return r == kAgain || r == kTimedOutWait ? 0 : r;
}

}  // namespace bypass::socket
