#include "socket/wait/kernel_half.h"

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "os/chunk_table.h"
#include "os/os.h"
#include "socket/family/kin.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

/// After activity on the kernel's side, looks are not limited for this long.
constexpr Duration kActive = std::chrono::milliseconds(50);
constexpr std::uint32_t kEpollKind = 1U << 31;
constexpr std::uint32_t kChannelKind = 1U << 30;  // the channel of a local connection, not its socket

std::atomic<int> watch_set{-1};  // the process's; never closed
std::atomic<std::int64_t> looked{0};
std::atomic<std::uint64_t> looked_at_tick{0};
std::atomic<bool> watch_set_readable{false};
std::atomic<std::int64_t> active_until{0};

[[gnu::always_inline]] inline SlotId id_of(File& file) {
  return file.kind == FileKind::kEpoll ? objects->epolls.id_of(static_cast<Epoll*>(&file))
                                       : objects->sockets.id_of(static_cast<Socket*>(&file));
}

constinit std::array<ChunkTable<KernelHalf>, 2> halves{};  // by slot: sockets, epoll sets; with the shard's lock held

// Slot and generation, so that an edge of an object that has ended since has no effect.
std::uint64_t name_of(File& file) {
  const SlotId id = id_of(file);
  return std::uint64_t{id.generation} << 32 | id.index | (file.kind == FileKind::kEpoll ? kEpollKind : 0U);
}

File* find(std::uint64_t name) {
  const auto low = static_cast<std::uint32_t>(name);
  const SlotId id{low & ~(kEpollKind | kChannelKind), static_cast<std::uint32_t>(name >> 32)};
  if ((low & kEpollKind) != 0) return objects->epolls.get(id);
  return objects->sockets.get(id);
}

int the_watch_set() {
  int fd = watch_set.load(std::memory_order_acquire);
  if (fd >= 0) return fd;
  fd = kernel->epoll_create1(EPOLL_CLOEXEC);
  fd = policy.own_descriptor(fd);
  watch_set.store(fd, std::memory_order_release);
  return fd;
}

bool tell_kernel(int operation, File& file, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = name_of(file);
  const int set = the_watch_set();
  return set >= 0 && kernel->epoll_ctl(set, operation, fd, &event) == 0;
}

std::uint32_t watched_events(const File& file) {
  return file.kind == FileKind::kStream ? EPOLLIN | EPOLLRDHUP | EPOLLPRI : EPOLLIN | EPOLLRDHUP;
}

void hear(const epoll_event& event) {
  File* file = find(event.data.u64);
  if (file == nullptr) return;
  if ((event.data.u64 & kChannelKind) != 0) return local_on_channel(socket_of(*file));
  KernelHalf* half = kernel_half(*file);
  if (half == nullptr || !half->watched) return;
  std::uint32_t bits = 0;
  if ((event.events & EPOLLIN) != 0) half->in = true, half->unsure = false, bits |= kIn;
  if ((event.events & EPOLLOUT) != 0) half->out = true, bits |= kOut;
  if ((event.events & EPOLLERR) != 0) half->error = true, bits |= kError | kIn;
  if ((event.events & EPOLLHUP) != 0) half->hung_up = true, bits |= kIn;
  const bool is_urgent = file->kind == FileKind::kStream && (event.events & EPOLLPRI) != 0;
  // A read passes an urgent byte, and there may be nothing after it: so the thread must look again.
  if (is_urgent && !half->in) half->in = half->unsure = true;
  if (is_urgent) bits |= kIn;
  if (file->kind == FileKind::kStream) local_on_kernel(socket_of(*file));
  const bool ends = (event.events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
  if (file->kind == FileKind::kStream) bits = ends ? kEverything : bits | (event.events & EPOLLPRI);
  if (bits != 0) signal(*file, bits);
}

// The kernel reports an edge once, so it is taken with the lock held. Otherwise a thread that took it, and waits for
// the lock, would keep it from those that have the lock and need what came first. True: there were edges.
bool take_edges(int set) {
  std::array<epoll_event, 32> events;
  bool any = false;
  for (;;) {
    const long n = os::epoll_now(set, events.data(), static_cast<int>(events.size()));
    for (long i = 0; i < n; i++) hear(events[static_cast<std::size_t>(i)]);
    any = any || n > 0;
    if (n != static_cast<long>(events.size())) return any;
  }
}

}  // namespace

KernelHalf* kernel_half(File& file) {
  const bool epoll = file.kind == FileKind::kEpoll;
  if (!epoll && socket_of(file).details == nullptr) return nullptr;
  const SlotId id = id_of(file);
  KernelHalf* const half = halves[epoll ? 1 : 0].at(id.index);
  if (half != nullptr && half->generation != id.generation) {
    if (half->owned) close_own(half->number);
    *half = KernelHalf{};
    half->generation = id.generation;
  }
  return half;
}

const KernelHalf& kernel_half_state(const File& file) {
  static const KernelHalf none;
  const KernelHalf* half = kernel_half(file);
  return half == nullptr ? none : *half;
}

std::uint32_t kernel_half_bits(const File& file) {
  auto* half = const_cast<KernelHalf*>(kernel_half(file));
  if (half == nullptr) return 0;
  // Another process of the family takes what lies there, and this process's watch set is not told that.
  const bool is_guess = half->in && (half->unsure || is_shared(file));
  std::uint32_t ends = 0;
  if (half->taking != 0 || half->error || half->had_error || half->hung_up || is_guess) {
    const short now = os::poll_now(half->number, POLLIN | POLLRDHUP);
    ends = static_cast<std::uint32_t>(now) & (POLLRDHUP | POLLHUP);
    half->in = (now & (POLLIN | POLLHUP)) != 0;
    half->error = (now & POLLERR) != 0;
    half->had_error = false;
    half->unsure = half->taking != 0;
  }
  return (half->in ? kIn : 0U) | (half->error ? kError : 0U) | ends;
}

void doubt_kernel_half(KernelHalf& half) {
  half.unsure = true;
}

void take_back_news(KernelHalf& half) {
  half.had_error = half.had_error || half.error;
  half.in = half.error = false;
}

bool can_watch_kernel_halves() {
  return the_watch_set() >= 0;
}

void watch_kernel_half(File& file, int fd) {
  KernelHalf* half = kernel_half(file);
  if (half == nullptr || half->watched || !tell_kernel(EPOLL_CTL_ADD, file, fd, watched_events(file))) return;
  half->watched = true;
  half->number = fd;
  note_kernel_activity();
  if (file.dual) return;
  file.dual = true;
  count_dual(file, 1);
}

void forget_kernel_half(File& file) {
  KernelHalf* half = kernel_half(file);
  if (half == nullptr || !half->watched) return;
  epoll_event unused{};
  kernel->epoll_ctl(the_watch_set(), EPOLL_CTL_DEL, half->number, &unused);
  if (half->owned) close_own(half->number);
  const std::uint16_t taking = half->taking;
  const std::uint32_t generation = half->generation;
  *half = KernelHalf{};
  half->taking = taking;
  half->generation = generation;
  signal_idle(file);  // a thread may sleep over its number
}

void unwatch_kernel_half(File& file) {
  forget_kernel_half(file);
  if (!file.dual) return;
  file.dual = false;
  count_dual(file, -1);
}

void forget_kernel_halves() {
  watch_set.store(-1, std::memory_order_relaxed);
  for (ChunkTable<KernelHalf>& table : halves) table.for_each([](KernelHalf& half) { half = KernelHalf{}; });
}

void number_goes(File& file, int fd) {
  KernelHalf* half = kernel_half(file);
  if (half == nullptr || !half->watched || half->owned || half->number != fd) return;
  int own = kernel->dup(fd);
  own = policy.own_descriptor(own);
  // Without a duplicate, the kernel's side is no longer heard. That is better than hearing the number's next owner.
  if (own < 0) return unwatch_kernel_half(file);
  epoll_event unused{};
  kernel->epoll_ctl(the_watch_set(), EPOLL_CTL_DEL, fd, &unused);
  half->number = own;
  half->owned = true;
  tell_kernel(EPOLL_CTL_ADD, file, own, watched_events(file) | (half->out ? 0U : EPOLLOUT));
  signal_idle(file);  // a thread may sleep over its number
}

bool watch_channel(File& file, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;  // readable until it has been read
  event.data.u64 = name_of(file) | kChannelKind;
  const int set = the_watch_set();
  return set >= 0 && (kernel->epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST);
}

void unwatch_channel(int fd) {
  epoll_event unused{};
  kernel->epoll_ctl(the_watch_set(), EPOLL_CTL_DEL, fd, &unused);
}

void note_set_number(File& set, int number) {
  KernelHalf* const half = kernel_half(set);
  if (half != nullptr) half->set_number = number;
}

void want_kernel_out(File& file) {
  KernelHalf* half = kernel_half(file);
  // If no one would report room, the program tries again.
  if (half == nullptr || !half->watched) return;
  if (!tell_kernel(EPOLL_CTL_MOD, file, half->number, watched_events(file) | EPOLLOUT)) return;
  // a thread that sleeps over its number does not wait for room yet
  if (std::exchange(half->out, false)) signal_idle(file);
}

void look_at_kernel_halves(Instant now, bool always) {
  const int set = watch_set.load(std::memory_order_acquire);
  if (set < 0) return;
  const std::int64_t ns = now.time_since_epoch().count();
  if (!always && ns - looked.load(std::memory_order_relaxed) < shard().budgets().kernel_poll.count() &&
      ns >= active_until.load(std::memory_order_relaxed))
    return;
  looked.store(ns, std::memory_order_relaxed);
  looked_at_tick.store(Clock::ticks(), std::memory_order_relaxed);
  watch_set_readable.store(false, std::memory_order_relaxed);
  Guard guard(shard(), std::try_to_lock);
  if (guard.held()) {
    if (!take_edges(set)) guard.leave_untouched();
    return;
  }
  // Most looks find nothing, and for these no thread waits for the lock.
  if (!os::readable(set)) return;
  guard.resume();
  (void)take_edges(set);
}

void hear_kernel_halves() {
  const int set = watch_set.load(std::memory_order_acquire);
  if (set >= 0) (void)take_edges(set);
}

bool is_kernel_look_due(std::uint64_t ticks) {
  constexpr std::uint64_t kTicks = std::uint64_t{1} << 17;
  return ticks - looked_at_tick.load(std::memory_order_relaxed) > kTicks;
}

void note_kernel_activity() {
  active_until.store((shard().clock().now() + kActive).time_since_epoch().count(), std::memory_order_relaxed);
}

void note_watch_set_readable() {
  watch_set_readable.store(true, std::memory_order_relaxed);
}

bool is_watch_set_readable() {
  return watch_set_readable.load(std::memory_order_relaxed);
}

void close_own(int fd) {
  policy.disown_descriptor(fd);
  os::close(fd);
}

int kernel_halves_descriptor() {
  return watch_set.load(std::memory_order_acquire);
}

}  // namespace bypass::socket
