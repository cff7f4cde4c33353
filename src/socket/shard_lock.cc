#include "socket/shard_lock.h"

#include <algorithm>

#include "os/os.h"
#include "os/own/cancellation.h"

namespace bypass::socket {
namespace {

constexpr int kSpins = 64;  // some microseconds: a holder that runs has finished by then
constexpr std::int64_t kFirstSleep = 1'000'000, kLongestSleep = 64'000'000;  // ns, between looks at the owner
constexpr std::uint32_t kTriesBeforeALook = 4096;

}  // namespace

thread_local constinit ShardLock::Identity ShardLock::identity;

// A process that was forked without our hooks finds its identity cleared, and takes a slot of its own here.
[[gnu::noinline]] std::uint64_t ShardLock::make_identity() {
  if (family_.executing()) return 0;
  if (family_.slot() == kNoSlot && !family_.on_fork_child()) return 0;
  const std::uint64_t slot = family_.slot() + 1, incarnation = family_.incarnation() & 0xffff;
  identity.word = std::uint64_t{os::gettid()} << 32 | slot << 16 | incarnation;
  identity.generation = family_.generation();
  return identity.word;
}

[[gnu::noinline]] bool ShardLock::recover() {
  state_.recoveries.fetch_add(1, std::memory_order_relaxed);
  state_.deferred.recover();
  if (handlers_.recover != nullptr) handlers_.recover(handlers_.self, changing());
  state_.changing.store(nullptr, std::memory_order_relaxed);
  return true;
}

// A thread that only ever tries must also find out that the owner is dead.
[[gnu::noinline]] ShardLock::Taken ShardLock::try_take_slowly(std::uint64_t own, std::uint64_t found) {
  if (own == 0) return family_.executing() ? Taken::kBusy : Taken::kNone;
  if ((found & ~kWaiters) == own) return Taken::kOwn;
  if (stuck_word_.load(std::memory_order_relaxed) != found) {
    stuck_word_.store(found, std::memory_order_relaxed);
    stuck_.store(0, std::memory_order_relaxed);
    return Taken::kBusy;
  }
  if (stuck_.fetch_add(1, std::memory_order_relaxed) < kTriesBeforeALook) return Taken::kBusy;
  stuck_.store(0, std::memory_order_relaxed);
  return owner_is_dead(found) ? take_over(own, found) : Taken::kBusy;
}

ShardLock::Taken ShardLock::take_over(std::uint64_t own, std::uint64_t found) {
  const std::uint64_t word = own | (found & kWaiters);
  return state_.word.compare_exchange_strong(found, word, std::memory_order_acquire) ? Taken::kRecovered : Taken::kBusy;
}

ShardLock::Taken ShardLock::take() {
  for (int i = 0; i < kSpins; i++) {
    const Taken taken = try_take();
    if (taken != Taken::kBusy) return taken;
    __builtin_ia32_pause();
  }
  std::int64_t sleep = kFirstSleep;
  for (;;) {
    const std::uint64_t own = own_word();
    std::uint64_t word = state_.word.load(std::memory_order_relaxed);
    if (own == 0 && !family_.executing()) return Taken::kNone;
    if (own != 0 && (word & ~kWaiters) == own) return Taken::kOwn;
    if (word == 0 && own != 0) {
      // With the flag: another thread may still sleep.
      if (state_.word.compare_exchange_strong(word, own | kWaiters, std::memory_order_acquire)) return Taken::kYes;
      continue;
    }
    if ((word & kWaiters) == 0 && word != 0) {
      if (!state_.word.compare_exchange_strong(word, word | kWaiters, std::memory_order_relaxed)) continue;
      word |= kWaiters;
    }
    if (os::futex_wait(futex(), static_cast<std::uint32_t>(word), sleep) != -ETIMEDOUT) continue;
    sleep = std::min(2 * sleep, kLongestSleep);
    if (own == 0 || word == 0 || !owner_is_dead(word)) continue;
    if (take_over(own, word) == Taken::kRecovered) return Taken::kRecovered;
  }
}

bool ShardLock::owner_is_dead(std::uint64_t word) const {
  const auto slot = static_cast<std::uint32_t>(word >> 16 & 0x7ff) - 1;
  const auto tid = static_cast<std::uint32_t>(word >> 32);
  if (slot >= kMaxProcesses) return true;
  const ProcessSlot& owner = family_.table().slots[slot];
  const std::uint32_t incarnation = owner.incarnation.load(std::memory_order_acquire);
  if ((incarnation & 0xffff) != (word & 0xffff)) return true;
  if (owner.executing.load(std::memory_order_acquire)) return slot != family_.slot();
  return !family_.alive(slot, incarnation) || !family_.thread_alive(slot, tid);
}

[[gnu::noinline]] void ShardLock::run_deferred() {
  const CancellationOff off;
  while (state_.deferred.any() && try_lock()) {
    Deferred work;
    while (state_.deferred.take(work)) {
      if (handlers_.run != nullptr) handlers_.run(handlers_.self, work);
    }
    let_go();
  }
}

[[gnu::noinline]] void ShardLock::wake_one() {
  os::futex_wake(futex(), 1);
}

bool ShardLock::defer(const Deferred& work) {
  if (own_word() == 0 || !state_.deferred.push(family_.slot(), work)) return false;
  if (try_lock()) unlock();
  return true;
}

bool ShardLock::hold_for_exec() {
  if (!lock()) return false;
  family_.set_executing(true);
  return true;
}

bool ShardLock::hold_for_copy() {
  if (!lock()) return false;
  family_.keep_threads_out(true);
  return true;
}

// Another process may have taken the lock meanwhile, as from a dead owner: then we must not release it.
void ShardLock::give_up_exec() {
  family_.set_executing(false);
  const std::uint64_t own = own_word();
  std::uint64_t word = state_.word.load(std::memory_order_relaxed);
  while ((word & ~kWaiters) == own) {
    if (!state_.word.compare_exchange_strong(word, 0)) continue;
    if ((word & kWaiters) != 0) wake_one();
    return;
  }
}

}  // namespace bypass::socket
