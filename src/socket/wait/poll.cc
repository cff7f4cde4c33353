// poll(2) and select(2) over our objects and the kernel's descriptors. docs/waiting.md describes the wait.
// Tests: tests/socket/epoll_test.cc, tests/preload/programs/sets.c.
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/datagram/datagram.h"
#include "socket/family/receivers.h"
#include "socket/socket.h"
#include "socket/wait/direct_set.h"
#include "socket/wait/epoll.h"
#include "socket/wait/readiness.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

bool is_kernel(const PollItem& item) {
  return item.file == nullptr;
}

// Items that only the kernel can answer lose their file for this call. This is decided once, whatever other threads do.
bool leave_to_kernel(const File& file) {
  if (decided_for_kernel(file)) return true;
  if (kind(file) != FileKind::kDatagram) return false;
  const Socket& socket = socket_of(file);
  return socket.path == Path::kUndecided && socket.details->peer_is_kernel;
}

/// The kernel's items as one array, with room before and after them for what the sleeper adds.
class KernelSet {
 public:
  static constexpr std::size_t kSpare = Shard::kMostWaitDescriptors + 2;

  explicit KernelSet(std::span<PollItem> items) : items_(items) {
    std::size_t count = 0;
    for (const PollItem& item : items) count += is_kernel(item) && item.fd >= 0;
    const std::size_t all = kSpare + count + DirectSet::kMostEntries;
    if (all > few_.size() && !map(all * sizeof(pollfd))) return;
    for (PollItem& item : items)
      if (is_kernel(item) && item.fd >= 0) entries_[kSpare + count_++] = {item.fd, item.events, 0};
  }
  ~KernelSet() {
    if (mapped_ != 0) os::call(SYS_munmap, os::address(entries_), static_cast<long>(mapped_));
  }
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;

  [[nodiscard]] bool valid() const { return entries_ != nullptr; }
  [[nodiscard]] std::size_t count() const { return count_; }
  /// ppoll() over the kernel's items only; the answers are copied to the program's items.
  long ask(const timespec* timeout, const sigset_t* mask) {
    const int n = kernel->ppoll(entries_ + kSpare, count_, timeout, mask);
    if (n < 0) return kernel_failure();
    std::size_t at = kSpare;
    for (PollItem& item : items_)
      if (is_kernel(item)) item.revents = item.fd >= 0 ? entries_[at++].revents : short{0};
    return n;
  }
  std::span<pollfd> between(std::size_t spare, std::span<const pollfd> behind) {
    std::copy(behind.begin(), behind.end(), entries_ + kSpare + count_);
    return {entries_ + kSpare - spare, spare + count_ + behind.size()};
  }

 private:
  // It does not use malloc, because poll() is async-signal-safe.
  bool map(std::size_t bytes) {
    const long made =
        os::call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool failed = made < 0;
    entries_ = failed ? nullptr : reinterpret_cast<pollfd*>(made);
    mapped_ = failed ? 0 : bytes;
    return !failed;
  }

  std::span<PollItem> items_;
  std::array<pollfd, kSpare + 16> few_;
  pollfd* entries_ = few_.data();
  std::size_t mapped_ = 0;
  std::size_t count_ = 0;
};

class PollCondition final : public Condition {
 public:
  PollCondition(std::span<PollItem> items, KernelSet& kernel_set) : items_(items), kernel_set_(kernel_set) {
    for (const PollItem& item : items) {
      if (is_kernel(item)) continue;
      files_++;
      duals_ = duals_ || DirectSet::concerns(*item.file);
      wire_ = wire_ || wants_wire(*item.file);  // read before the first attempt
    }
  }

  long attempt(Guard&) override {
    long ready = 0;
    versions_ = 0;
    wire_ = false;
    for (PollItem& item : items_) {
      if (is_kernel(item)) continue;
      versions_ += item.file->readiness.version.load(std::memory_order_relaxed);
      wire_ = wire_ || wants_wire(*item.file);
      hear_new_half(item);
      note_use(item);
      item.revents = item.file->alive ? bits_of(item) : short{POLLNVAL};
      ready += item.revents != 0;
    }
    noted_ = true;
    return ready == 0 ? kAgain : ready + kernel_ready_;
  }
  [[nodiscard]] bool changed() const override {
    std::uint64_t now = 0;
    for (const PollItem& item : items_)
      if (!is_kernel(item)) now += item.file->readiness.version.load(std::memory_order_acquire);
    return now != versions_;
  }
  bool link(Waiter& waiter) override {
    if (files_ > 1 && !reserve_links(waiter, files_ - 1)) return false;
    direct_.begin();
    for (const PollItem& item : items_) {
      if (is_kernel(item)) continue;
      direct_.add(*item.file);
      if (!link_waiter(waiter, *item.file, wanted(item), false)) return false;
    }
    return true;
  }

  [[nodiscard]] bool polls_first() const override { return true; }
  [[nodiscard]] bool needs_wire() const override { return wire_; }
  [[nodiscard]] bool has_kernel() const override { return kernel_set_.count() != 0 || duals_; }
  [[nodiscard]] bool has_duals() const { return duals_; }
  /// How many of the kernel's items were ready when last asked.
  [[nodiscard]] long kernel_ready() const { return kernel_ready_; }
  long look_at_kernel(Instant now, bool always) override {
    if (duals_ && !direct_.hear()) look_at_kernel_halves(now, always);
    if (kernel_set_.count() == 0 || (!always && now - looked_ < shard().budgets().kernel_poll)) return kAgain;
    looked_ = now;
    const timespec no_time{};
    const long n = kernel_set_.ask(&no_time, nullptr);
    kernel_ready_ = n > 0 ? n : 0;
    return n == 0 ? kAgain : n;
  }
  [[nodiscard]] Hearing hearing() const override { return direct_.hearing(); }
  std::span<pollfd> sleep_set(std::size_t spare) override { return kernel_set_.between(spare, direct_.entries()); }
  bool on_slept(std::span<const pollfd> kernels, Instant now) override {
    if (!kernels.empty()) direct_.on_slept(kernels.subspan(kernel_set_.count()));
    return Condition::on_slept(kernels, now);
  }

 private:
  static std::uint32_t wanted(const PollItem& item) { return static_cast<std::uint16_t>(item.events) | kAlways; }
  static short bits_of(PollItem& item) { return static_cast<short>(poll_bits(*item.file) & wanted(item)); }
  // Handles a set that no thread of this process has watched yet, and a datagram socket that hears the kernel again.
  void hear_new_half(const PollItem& item) {
    if (kind(*item.file) == FileKind::kEpoll && item.file->alive && !has_kernel_half(*item.file))
      watch_kernel_half(*item.file, item.fd);
    duals_ = duals_ || DirectSet::concerns(*item.file);
  }
  void note_use(const PollItem& item) const {
    const FileKind what = kind(*item.file);
    const bool concerns = what == FileKind::kListener || what == FileKind::kDatagram;
    if (!noted_ && concerns && item.file->alive) note_poller(socket_of(*item.file));
  }
  static bool wants_wire(const File& file) {
    if (kind(file) == FileKind::kEpoll)
      return static_cast<const Epoll&>(file).bypass_items.load(std::memory_order_relaxed) != 0;
    return calls_of(file).is_looked_at(socket_of(file));
  }

  std::span<PollItem> items_;
  KernelSet& kernel_set_;
  std::uint64_t versions_ = 0;
  std::size_t files_ = 0;
  bool duals_ = false, wire_ = false, noted_ = false;
  DirectSet direct_;
  long kernel_ready_ = 0;
  Instant looked_{};
};

/// When any thread of the process last looked at kernel descriptors from poll(). It is global, because sets exist only
/// during a call.
std::atomic<std::int64_t> last_look{0};

bool look_is_due() {
  const std::int64_t now = shard().clock().now().time_since_epoch().count();
  if (now - last_look.load(std::memory_order_relaxed) < shard().budgets().kernel_poll.count()) return false;
  last_look.store(now, std::memory_order_relaxed);
  return true;
}

// Datagram sockets and epoll sets have a kernel half that must be heard.
void watch_halves(std::span<PollItem> items) {
  Guard guard(shard());
  for (const PollItem& item : items) {
    if (is_kernel(item) || !item.file->alive) continue;
    if (kind(*item.file) == FileKind::kDatagram && !connected_to_bypass(socket_of(*item.file)))
      watch_kernel_half(*item.file, item.fd);
    if (calls_of(*item.file).in_kernel) watch_kernel_half(*item.file, item.fd);
    if (kind(*item.file) != FileKind::kEpoll) continue;
    static_cast<Epoll&>(*item.file).number = item.fd;
    watch_kernel_half(*item.file, item.fd);
  }
}

bool may_have_half(const File& file) {
  const FileKind what = kind(file);
  if (what == FileKind::kStream) return calls_of(file).in_kernel;
  return what == FileKind::kDatagram || what == FileKind::kEpoll;
}

long poll_kernel_only(KernelSet& set, Duration timeout, const sigset_t* mask) {
  const bool bounded = timeout >= Duration{};
  const timespec limit{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  return set.ask(bounded ? &limit : nullptr, mask);
}

}  // namespace

long poll(std::span<PollItem> items, Duration timeout, const sigset_t* mask) {
  bool ours = false, halves = false;
  for (PollItem& item : items) {
    item.revents = 0;
    if (item.file != nullptr && leave_to_kernel(*item.file)) item.file = nullptr;
    ours = ours || item.file != nullptr;
    halves = halves || (item.file != nullptr && may_have_half(*item.file));
  }
  KernelSet kernel_set(items);
  if (!kernel_set.valid()) return failure(Error::kNoMemory);
  if (!ours) return poll_kernel_only(kernel_set, timeout, mask);
  if (halves) watch_halves(items);
  PollCondition condition(items, kernel_set);
  Patience patience;
  patience.block = timeout != Duration{};
  patience.deadline = patience.block ? deadline_after(timeout) : kNever;
  patience.restart = false;  // signal(7): never restarted
  patience.mask = mask;
  // Sockets that are always ready must not keep out those with a kernel half, nor descriptors of the kernel.
  if (condition.has_duals()) look_at_kernel_halves(shard().clock().now(), false);
  long from_kernel = 0;
  if (kernel_set.count() != 0 && look_is_due()) {
    from_kernel = condition.look_at_kernel(shard().clock().now(), true);
    if (from_kernel < 0 && from_kernel != kAgain) return from_kernel;
    if (from_kernel > 0) patience.block = false;  // also takes what the wire has, and then returns
  }
  const unsigned handlers_seen = thread_signals.seen;
  long r = wait(condition, patience);
  // Another thread may have taken meanwhile what the kernel had.
  if (r == kAgain && from_kernel > 0 && condition.kernel_ready() == 0 && timeout != Duration{}) {
    if (thread_signals.seen != handlers_seen) return kInterrupted;
    patience.block = true;
    r = wait(condition, patience);
  }
  if (r != kAgain && r != kTimedOutWait) return r;
  return condition.kernel_ready();
}

}  // namespace bypass::socket
