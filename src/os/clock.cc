#include "os/clock.h"

#include <time.h>

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace bypass::socket {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

bool counter_is_invariant() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
#else
  return false;
#endif
}

std::int64_t scaled(std::uint64_t ticks, std::uint64_t scale) {
  return static_cast<std::int64_t>((static_cast<unsigned __int128>(ticks) * scale) >> 32);
}

template <typename T>
T relaxed(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
template <typename T>
void set_relaxed(T& word, T value) {
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
}

struct Pair {
  std::uint64_t ticks;
  std::int64_t nanoseconds;
};

/// Reads both clocks at one moment: takes the reading with the shortest delay of several.
template <typename Ticks>
Pair read_pair(Ticks ticks) {
  Pair best{};
  std::uint64_t shortest = ~std::uint64_t{0};
  for (int i = 0; i < 5; i++) {
    const std::uint64_t before = ticks();
    const std::int64_t now = monotonic();
    const std::uint64_t after = ticks();
    if (after - before >= shortest) continue;
    shortest = after - before;
    best = {before + (after - before) / 2, now};
  }
  return best;
}

}  // namespace

std::uint64_t Clock::ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

Clock::Clock() {
  invariant_ = counter_is_invariant();
  const Pair first = read_pair(ticks);
  first_ticks_ = first.ticks;
  first_nanoseconds_ = first.nanoseconds;
  if (!invariant_) return;
  // 20 µs give the rate to about one in a thousand; correct() improves it.
  while (monotonic() < first.nanoseconds + 20'000) {
  }
  const Pair second = read_pair(ticks);
  const std::uint64_t elapsed = second.ticks - first.ticks;
  if (elapsed == 0) {
    invariant_ = false;
    return;
  }
  const auto ns = static_cast<std::uint64_t>(second.nanoseconds - first.nanoseconds);
  base_ = {second.ticks, second.nanoseconds, (ns << 32) / elapsed};
}

Instant Clock::now() const {
  if (!__atomic_load_n(&invariant_, __ATOMIC_RELAXED)) return Instant(Duration(monotonic()));
  for (;;) {
    // Acquire pairs with correct()'s release of the even number: base_ is whole when both reads agree.
    const std::uint32_t before = __atomic_load_n(&sequence_, __ATOMIC_ACQUIRE);
    const Base base{relaxed(base_.ticks), relaxed(base_.nanoseconds), relaxed(base_.scale)};
    const std::uint64_t t = ticks();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if ((before & 1) != 0 || __atomic_load_n(&sequence_, __ATOMIC_RELAXED) != before) continue;
    // Another core's counter may be a few ticks behind the one that wrote the base.
    if (static_cast<std::int64_t>(t - base.ticks) < 0) return Instant(Duration(base.nanoseconds));
    return Instant(Duration(base.nanoseconds + scaled(t - base.ticks, base.scale)));
  }
}

void Clock::correct() {
  if (!__atomic_load_n(&invariant_, __ATOMIC_RELAXED)) return;
  std::uint32_t sequence = __atomic_load_n(&sequence_, __ATOMIC_RELAXED);
  if ((sequence & 1) != 0 ||
      !__atomic_compare_exchange_n(&sequence_, &sequence, sequence + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;  // another thread does this now
  __atomic_thread_fence(__ATOMIC_RELEASE);
  const Pair pair = read_pair(ticks);
  const std::uint64_t elapsed = pair.ticks - first_ticks_;
  const auto since = static_cast<std::uint64_t>(pair.nanoseconds - first_nanoseconds_);
  const Base old = base_;
  const std::int64_t shown = old.nanoseconds + scaled(pair.ticks - old.ticks, old.scale);
  const std::int64_t error = pair.nanoseconds - shown;
  const auto rate =
      static_cast<std::uint64_t>((static_cast<unsigned __int128>(since) << 32) / (elapsed == 0 ? 1 : elapsed));
  // The reading continues from its current value and makes up the error within the next 100 ms, by at most a tenth of
  // its rate: time never jumps and never stands still.
  constexpr std::int64_t kSlew = kSecond / 10;
  const std::int64_t bounded = error > kSlew / 10 ? kSlew / 10 : error < -kSlew / 10 ? -kSlew / 10 : error;
  const auto slewed =
      static_cast<std::int64_t>(rate) + static_cast<std::int64_t>(static_cast<__int128>(rate) * bounded / kSlew);
  // The error is a second: the counter stopped (a suspended virtual machine). From now on CLOCK_MONOTONIC itself is
  // read.
  if (error > kSecond || error < -kSecond) __atomic_store_n(&invariant_, false, __ATOMIC_RELAXED);
  set_relaxed(base_.ticks, pair.ticks);
  set_relaxed(base_.nanoseconds, shown);
  set_relaxed(base_.scale, static_cast<std::uint64_t>(slewed));
  __atomic_store_n(&sequence_, sequence + 2, __ATOMIC_RELEASE);
}

}  // namespace bypass::socket
