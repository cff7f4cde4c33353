#include <algorithm>
#include <utility>

#include "socket/epoll.h"
#include "socket/errno_map.h"
#include "socket/readiness.h"
#include "socket/socket.h"
#include "socket/wait.h"

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
  [[nodiscard]] bool has_kernel() const override { return has_kernel_items() || has_duals(); }
  long look_at_kernel(Instant now, bool always) override {
    long n = kAgain;
    const bool quiet = std::exchange(quiet_, false);
    if (has_kernel_items() && !quiet && (always || look_is_due(now))) n = take_kernel(now, out_);
    if (n == kAgain && has_duals()) look_at_kernel_halves(now, always);
    return n;
  }
  bool on_slept(std::span<const pollfd> kernels, Instant now) override {
    quiet_ = !kernels.empty() && kernels[0].fd == number_ && kernels[0].revents == 0;
    if (quiet_) note_look(now);
    return Condition::on_slept(kernels, now);
  }
  [[nodiscard]] Hearing hearing() const override { return {.all = has_duals()}; }
  std::span<pollfd> sleep_set(std::size_t spare) override {
    if (has_kernel_items()) few_[spare++] = {number_, POLLIN, 0};
    if (has_duals()) few_[spare++] = {kernel_halves_descriptor(), POLLIN, 0};
    return {few_, spare};
  }

  [[nodiscard]] bool has_kernel_items() const { return set_.kernel_items.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_duals() const { return set_.dual_items.load(std::memory_order_relaxed) != 0; }

  /// The kernel's share: kAgain when it has nothing.
  long take_kernel(Instant now, std::span<epoll_event> out) {
    note_look(now);
    const int n = kernel->epoll_pwait(number_, out.data(), static_cast<int>(out.size()), 0, nullptr);
    return n == 0 ? kAgain : kernel_result(n);
  }
  [[nodiscard]] bool look_is_due(Instant now, Duration later = {}) const {
    const std::int64_t ns = now.time_since_epoch().count();
    return ns - set_.kernel_looked.load(std::memory_order_relaxed) >= (environment.kernel_poll + later).count();
  }

 private:
  void note_look(Instant now) { set_.kernel_looked.store(now.time_since_epoch().count(), std::memory_order_relaxed); }

  Epoll& set_;
  int number_;
  std::span<epoll_event> out_;
  std::uint32_t version_ = 0;
  bool quiet_ = false;  // the set's kernel items have just had nothing
};

// Bypass items that are always ready must not starve the kernel's, nor the other way round: when the kernel's
// turn has come, it gets up to half of the room first.
long take_turns(Epoll& set, EpollCondition& condition, std::span<epoll_event> out, bool blocks) {
  const Instant now = shard().clock().now();
  if (condition.has_duals()) look_at_kernel_halves(now, false);
  // A wait that sleeps looks then; one that does not has found something, and the kernel's has its turn a little later.
  constexpr Duration kThen = std::chrono::microseconds(200);
  const Duration later = blocks && sleeps_at_once() ? kThen : Duration{};
  if (!condition.has_kernel_items() || !condition.look_is_due(now, later)) return kAgain;
  const long got = condition.take_kernel(now, out.first((out.size() + 1) / 2));
  if (got < 0) return got;
  Guard guard(shard());
  if (condition.needs_wire()) shard().poll_locked();
  dispatch_events(shard().stack());
  return got + static_cast<long>(harvest(set, out.subspan(static_cast<std::size_t>(got))));
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
  if (condition.has_kernel()) {
    const long r = take_turns(set, condition, out, patience.block);
    if (r != kAgain) return r;
  }
  const long r = wait(condition, patience);
  return r == kAgain || r == kTimedOutWait ? 0 : r;
}

}  // namespace bypass::socket
