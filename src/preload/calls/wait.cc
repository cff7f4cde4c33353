// poll and select, and their fortified and masked forms, over sets of kernel descriptors and ours.
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "os/os.h"
#include "os/program_memory.h"
#include "preload/numbers.h"
#include "preload/own_descriptors.h"
#include "preload/pumped.h"
#include "preload/symbols.h"
#include "preload/timeouts.h"

namespace bypass::preload {
namespace {

using socket::PollItem;

// Room for a set: on the stack if it is small, otherwise mapped (not malloc, because poll is async-signal-safe).
class Items {
 public:
  explicit Items(std::size_t count) : count_(count) {
    if (count <= kNear) return;
    long made = os::call(SYS_mmap, 0, static_cast<long>(bytes()), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    far_ = made < 0 ? nullptr : reinterpret_cast<PollItem*>(made);
  }
  ~Items() {
    if (far_ != nullptr) os::call(SYS_munmap, reinterpret_cast<long>(far_), static_cast<long>(bytes()));
  }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;

  explicit operator bool() const { return count_ <= kNear || far_ != nullptr; }
  std::span<PollItem> get() { return {far_ != nullptr ? far_ : near_, count_}; }

 private:
  static constexpr std::size_t kNear = 64;
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(PollItem); }

  std::size_t count_;
  PollItem* far_ = nullptr;
  PollItem near_[kNear];
};

// No process has more descriptors (fs.nr_open).
constexpr nfds_t kMostPolled = nfds_t{1} << 31;

[[gnu::always_inline]] inline bool any_tracked(const pollfd* set, nfds_t count) {
  if (fd_table.end() == 0) return false;
  // The kernel refuses a set that is not mapped, and before that more items than RLIMIT_NOFILE.
  if (count > kMostPolled || !socket::is_readable(set, count * sizeof *set)) return false;
  for (nfds_t i = 0; i < count; i++) {
    if (is_tracked(set[i].fd)) return true;
  }
  return false;
}

// The kernel looks each number up again at each look. So it reports a number that another thread has closed or reused
// meanwhile.
bool is_anothers(const PollItem& item) {
  return item.file != nullptr && fd_table.load(item.fd).file() != item.file;
}

// Fills in what the items have now; returns how many have something.
[[gnu::noinline]] int look_again(std::span<PollItem> items) {
  KeepErrno keep;
  int ready = 0;
  for (PollItem& item : items) {
    if (is_anothers(item)) {
      pollfd now{item.fd, item.events, 0};
      item.revents = ::poll(&now, 1, 0) > 0 ? now.revents : short{0};
    }
    ready += item.revents != 0;
  }
  return ready;
}

// Nullopt: none of the set is ours after all, and the kernel must answer.
std::optional<int> poll_items(std::span<PollItem> items, Duration timeout, const sigset_t* mask) {
  UseMany use(items);
  if (!use) return std::nullopt;
  pthread_testcancel();
  const long result = socket::poll(items, timeout, mask);
  for (const PollItem& item : items) (void)exchange_called_number(item.fd);  // before is_anothers() is asked
  return static_cast<int>(use.finish(result));
}

int poll_again(pollfd* set, nfds_t count, Duration timeout, const sigset_t* mask) {
  if (timeout == kForEver) return ::ppoll(set, count, nullptr, mask);
  const timespec left{timeout / std::chrono::seconds(1), (timeout % std::chrono::seconds(1)).count()};
  return ::ppoll(set, count, &left, mask);
}

// The limit is not read for so few items.
constexpr nfds_t kFew = 64;

rlim_t descriptor_limit() {
  rlimit limit{};
  return os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, reinterpret_cast<long>(&limit)) == 0 ? limit.rlim_cur
                                                                                           : RLIM_INFINITY;
}

bool tell(pollfd& entry, const PollItem& item) {
  return socket::copy_to_program(&entry.revents, item.revents);
}

[[gnu::noinline]] std::optional<int> poll_mixed(pollfd* set, nfds_t count, Duration timeout, const sigset_t* mask) {
  if (count > kFew && count > descriptor_limit()) {
    errno = EINVAL;
    return -1;
  }
  Items items(count);
  if (!items) {
    errno = ENOMEM;
    return -1;
  }
  for (nfds_t i = 0; i < count; i++) items.get()[i] = {.fd = set[i].fd, .events = set[i].events};
  const Deadline deadline(timeout);
  std::optional<int> result = poll_items(items.get(), timeout, mask);
  if (!result.has_value()) return result;
  if (*result >= 0 && std::ranges::any_of(items.get(), is_anothers)) {
    const bool in_time = *result > 0;
    result = look_again(items.get());
    // The event belonged to the number's earlier object: the wait continues.
    if (*result == 0 && in_time && timeout != Duration{}) return poll_again(set, count, deadline.left(), mask);
  }
  for (nfds_t i = 0; *result >= 0 && i < count; i++) {
    if (tell(set[i], items.get()[i])) continue;
    errno = EFAULT;
    return -1;
  }
  return result;
}

[[gnu::noinline]] int poll_tracked(pollfd* set, nfds_t count, int timeout) {
  std::optional<int> result = poll_mixed(set, count, from_milliseconds(timeout), nullptr);
  return result.has_value() ? *result : real.poll(set, count, timeout);
}

BYPASS_EXPORT(int, poll, (pollfd * set, nfds_t count, int timeout)) {
  if (!any_tracked(set, count)) [[likely]]
    return real.poll(set, count, timeout);
  return poll_tracked(set, count, timeout);
}
BYPASS_ALIAS(__poll, poll);

BYPASS_EXPORT(int, __poll_chk, (pollfd * set, nfds_t count, int timeout, size_t room)) {
  if (!any_tracked(set, count)) [[likely]]
    return real.__poll_chk(set, count, timeout, room);
  if (room / sizeof(pollfd) < count) return real.__poll_chk(set, count, timeout, room);
  return bypass_poll(set, count, timeout);
}

BYPASS_EXPORT(int, ppoll, (pollfd * set, nfds_t count, const timespec* timeout, const sigset_t* mask)) {
  const timespec* limit = timeout;
  Taken<timespec> taken;
  const bool ours = any_tracked(set, count) && taken.take(limit) && is_valid(limit);
  if (!ours) [[likely]]
    return real.ppoll(set, count, timeout, mask);
  const Mask masked(mask);
  if (!masked) return real.ppoll(set, count, timeout, mask);
  std::optional<int> result = poll_mixed(set, count, from_timespec(limit), masked.get());
  return result.has_value() ? *result : real.ppoll(set, count, timeout, mask);
}

BYPASS_EXPORT(int, __ppoll_chk,
              (pollfd * set, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t room)) {
  if (!any_tracked(set, count)) [[likely]]
    return real.__ppoll_chk(set, count, timeout, mask, room);
  if (room / sizeof(pollfd) < count) return real.__ppoll_chk(set, count, timeout, mask, room);
  return bypass_ppoll(set, count, timeout, mask);
}

// select's three sets as words of 64 descriptors: a program's sets may be larger than FD_SETSIZE.
struct SelectSets {
  int count;
  std::array<fd_set*, 3> sets;  // read, write, exceptional

  static constexpr std::array<short, 3> kAsk = {POLLIN, POLLOUT, POLLPRI};
  // fs/select.c: POLLIN_SET, POLLOUT_SET, POLLEX_SET
  static constexpr std::array<short, 3> kAnswer = {POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR,
                                                   POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR, POLLPRI};

  static unsigned long* words(fd_set* set) { return reinterpret_cast<unsigned long*>(set); }
  [[nodiscard]] int word_count() const { return static_cast<int>((static_cast<unsigned>(count) + 63) / 64); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(word_count()) * sizeof(long); }
  [[nodiscard]] bool readable() const {
    return std::ranges::all_of(sets, [&](fd_set* set) { return set == nullptr || socket::is_readable(set, bytes()); });
  }
  [[nodiscard]] bool writable() const {
    return std::ranges::all_of(sets, [&](fd_set* set) { return set == nullptr || socket::is_writable(set, bytes()); });
  }
  /// The kernel looks only as far as the process's table of descriptors is large (core_sys_select in fs/select.c).
  /// Programs that pass the limit as the count rely on that. Our descriptors make the table larger than the program's
  /// sets.
  void shorten() {
    if (count <= FD_SETSIZE || !has_started()) return;
    const bool is_highest = os::call(SYS_fcntl, count - 1, F_GETFD) >= 0 && !is_own_descriptor(count - 1);
    if (!is_highest) count = std::min(count, end_of_programs_table());
  }
  [[nodiscard]] unsigned long asked(int word) const {
    unsigned long bits = 0;
    for (fd_set* set : sets) bits |= set != nullptr ? words(set)[word] : 0;
    int rest = count - word * 64;
    return rest < 64 ? bits & ((1UL << rest) - 1) : bits;
  }
  [[nodiscard]] short events(int fd) const {
    short events = 0;
    for (int i = 0; i < 3; i++) {
      if (sets[i] != nullptr && (words(sets[i])[fd / 64] >> (fd % 64) & 1) != 0) events |= kAsk[i];
    }
    return events;
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (int word = 0; word < word_count(); word++) {
      for (unsigned long bits = asked(word); bits != 0; bits &= bits - 1) visit(word * 64 + __builtin_ctzl(bits));
    }
  }
  void clear() const {
    for (fd_set* set : sets) {
      if (set != nullptr) memset(set, 0, bytes());
    }
  }
  // In how many of the three sets the descriptor is ready.
  int answer(const PollItem& item) const {
    int ready = 0;
    for (int i = 0; i < 3; i++) {
      if ((item.events & kAsk[i]) == 0 || (item.revents & kAnswer[i]) == 0) continue;
      words(sets[i])[item.fd / 64] |= 1UL << (item.fd % 64);
      ready++;
    }
    return ready;
  }
};

bool any_tracked(const SelectSets& sets) {
  if (sets.count < 0 || fd_table.end() == 0) return false;
  if (!sets.readable()) return false;  // the kernel refuses the set
  bool found = false;
  sets.each([&](int fd) { found |= is_tracked(fd); });
  return found;
}

int select_answer(const SelectSets& sets, std::span<const PollItem> items) {
  for (const PollItem& item : items) {
    if ((item.revents & POLLNVAL) != 0) return -EBADF;
  }
  if (!sets.writable()) return -EFAULT;
  sets.clear();
  int ready = 0;
  for (const PollItem& item : items) ready += sets.answer(item);
  return ready;
}

[[gnu::noinline]] std::optional<int> select_mixed(const SelectSets& sets, Duration timeout, const sigset_t* mask) {
  std::size_t count = 0;
  sets.each([&](int) { count++; });
  Items items(count);
  if (!items) {
    errno = ENOMEM;
    return -1;
  }
  std::size_t next = 0;
  sets.each([&](int fd) { items.get()[next++] = {.fd = fd, .events = sets.events(fd)}; });
  UseMany use(items.get());
  if (!use) return std::nullopt;
  pthread_testcancel();
  const Deadline deadline(timeout);
  long result = socket::poll(items.get(), timeout, mask);
  bool moved = false;
  for (const PollItem& item : items.get()) moved = exchange_called_number(item.fd) || moved;
  if (moved) return select_mixed(sets, deadline.left(), mask);
  return static_cast<int>(use.finish(result < 0 ? result : select_answer(sets, items.get())));
}

BYPASS_EXPORT(int, select, (int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout)) {
  SelectSets sets{count, {read, write, except}};
  const timeval* limit = timeout;
  Taken<timeval> taken;
  sets.shorten();
  const bool ours = any_tracked(sets) && taken.take(limit) && is_valid(limit);
  if (!ours) [[likely]]
    return real.select(sets.count, read, write, except, timeout);
  const Remaining remaining(timeout, limit);
  std::optional<int> result = select_mixed(sets, from_timeval(limit), nullptr);
  if (!result.has_value()) return real.select(sets.count, read, write, except, timeout);
  remaining.write_back(from_timeval(limit));
  return *result;
}
BYPASS_ALIAS(__select, select);

BYPASS_EXPORT(int, pselect,
              (int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout, const sigset_t* mask)) {
  SelectSets sets{count, {read, write, except}};
  const timespec* limit = timeout;
  Taken<timespec> taken;
  sets.shorten();
  const bool ours = any_tracked(sets) && taken.take(limit) && is_valid(limit);
  if (!ours) [[likely]]
    return real.pselect(sets.count, read, write, except, timeout, mask);
  const Mask masked(mask);
  if (!masked) return real.pselect(sets.count, read, write, except, timeout, mask);
  std::optional<int> result = select_mixed(sets, from_timespec(limit), masked.get());
  return result.has_value() ? *result : real.pselect(sets.count, read, write, except, timeout, mask);
}

}  // namespace
}  // namespace bypass::preload
