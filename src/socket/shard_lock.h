// ShardLock: the one lock of a shard, shared by all processes of a family, robust against their death.
//
// One word in the arena names the owner: its process's slot and incarnation, and its thread. Without contention, taking
// the lock is one compare-and-swap, releasing it one exchange, and there is no system call. A thread that finds it
// taken spins briefly, then sleeps on the word's futex. Now and then it checks whether the owner is alive. An owner is
// dead if it was killed (a zombie included), or if its thread ended in another thread's exec. Then the thread takes the
// lock over and has the shard rebuilt. The state's `changing` names the object that the dead owner was changing.
//
// A signal handler that interrupted the holder gets kOwn: it never waits for itself. It leaves its work with defer(),
// as any thread may that has no reason to wait. The holder runs the work when it unlocks.
//
// LockState lies in the arena; ShardLock is a process's own half.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "socket/deferred.h"
#include "socket/family/family.h"

namespace bypass::socket {

/// All zero (fresh memory of the arena) is a free lock.
struct alignas(64) LockState {
  std::atomic<std::uint64_t> word;
  std::atomic<const void*> changing;  // set by the holder; null: a death would spoil nothing
  std::atomic<std::uint64_t> recoveries;
  DeferredList deferred;
};

class ShardLock {
 public:
  enum class Taken : std::uint8_t {
    kBusy,       // another thread has it
    kOwn,        // this thread has it: the caller is a handler that interrupted it
    kYes,        // taken
    kRecovered,  // taken from a dead owner: rebuild what the lock protects before anything else
    kNone,       // this process has no slot in the family: it must not enter
  };

  struct Handlers {
    void* self = nullptr;
    /// Rebuilds the shard after a death inside; `changing` is what the dead owner was changing, or null.
    void (*recover)(void* self, const void* changing) = nullptr;
    /// Does one piece of deferred work, with the lock held.
    void (*run)(void* self, const Deferred& work) = nullptr;
  };

  ShardLock(LockState& state, Family& family) : state_(state), family_(family) {}
  ShardLock(const ShardLock&) = delete;
  ShardLock& operator=(const ShardLock&) = delete;
  void set_handlers(const Handlers& handlers) { handlers_ = handlers; }

  /// True: taken (and recovered where necessary).
  bool try_lock() { return enter(try_take()); }
  /// True: it was free, and is taken. It is never taken from a dead owner, so nothing is rebuilt here.
  [[nodiscard]] bool try_lock_if_free() {
    const std::uint64_t own = own_word();
    std::uint64_t expected = 0;
    return own != 0 && state_.word.compare_exchange_strong(expected, own, std::memory_order_acquire);
  }
  /// Waits for the lock. False only if the wait would never end: kOwn, kNone.
  bool lock() {
    const Taken first = try_take();
    return enter(first == Taken::kBusy ? take() : first);
  }
  /// Releases the lock, wakes one sleeper if there are any, and does deferred work (or leaves it to the next holder,
  /// which does the same). Returns whether there was any.
  bool unlock() {
    let_go();
    if (!state_.deferred.any()) [[likely]]
      return false;
    run_deferred();
    return true;
  }

  /// Has work done under the lock: at once if it is free, otherwise by its holder. Async-signal-safe, never waits.
  /// False: there is no place left (the caller may wait for the lock if it can).
  [[nodiscard]] bool defer(const Deferred& work);

  /// The object that a death would spoil from now on; unlock() clears it.
  void set_changing(const void* object) { state_.changing.store(object, std::memory_order_relaxed); }
  [[nodiscard]] const void* changing() const { return state_.changing.load(std::memory_order_relaxed); }
  [[nodiscard]] Family& family() { return family_; }
  /// Whether this thread holds it.
  [[nodiscard]] bool mine() { return (state_.word.load(std::memory_order_relaxed) & ~kWaiters) == own_word(); }
  [[nodiscard]] std::uint64_t recoveries() const { return state_.recoveries.load(std::memory_order_relaxed); }

  // Without the handlers: the caller itself acts on kRecovered.
  [[nodiscard]] Taken try_take() {
    const std::uint64_t own = own_word();
    std::uint64_t expected = 0;
    if (own != 0 && state_.word.compare_exchange_strong(expected, own, std::memory_order_acquire)) [[likely]]
      return Taken::kYes;
    return try_take_slowly(own, expected);
  }
  [[nodiscard]] Taken take();

  /// To be called before exec, which ends all other threads wherever they are. Waits until none of them is inside, and
  /// keeps them out. Other processes may still take the lock. If the exec fails, call give_up_exec().
  bool hold_for_exec();
  void give_up_exec();
  /// To be called before the arena is copied for this process. The same, but other processes wait: what they changed
  /// meanwhile would be torn in the copy. To be let go of by let_others_in(), before others see this process dead. In
  /// the copy the lock stays held: call give_up_exec() there.
  bool hold_for_copy();
  void let_others_in() { let_go(); }

 private:
  // The word: 63…32 thread id, 31 sleepers, 26…16 slot + 1, 15…0 the slot's incarnation. The futex is the low half.
  static constexpr std::uint64_t kWaiters = std::uint64_t{1} << 31;
  static_assert(std::endian::native == std::endian::little && kMaxProcesses < 0x7ff);

  struct Identity {
    std::uint32_t generation = 0;  // of the family's identity that `word` was made for
    std::uint64_t word = 0;
  };
  static thread_local constinit Identity identity;

  /// 0: this process may not enter now.
  std::uint64_t own_word() {
    const std::uint32_t generation = family_.generation();
    if (identity.generation == generation && generation != 0) [[likely]]
      return identity.word;
    return make_identity();
  }
  std::uint64_t make_identity();

  void let_go() {
    state_.changing.store(nullptr, std::memory_order_relaxed);
    // A full barrier: work that is deferred later finds the lock free, and unlock() sees work that was deferred before.
    const std::uint64_t word = state_.word.exchange(0);
    if ((word & kWaiters) != 0) [[unlikely]]
      wake_one();
  }
  bool enter(Taken taken) {
    if (taken == Taken::kYes) [[likely]]
      return true;
    return taken == Taken::kRecovered ? recover() : false;
  }
  bool recover();
  Taken try_take_slowly(std::uint64_t own, std::uint64_t found);
  Taken take_over(std::uint64_t own, std::uint64_t found);
  [[nodiscard]] bool owner_is_dead(std::uint64_t word) const;
  [[nodiscard]] const std::uint32_t* futex() const { return reinterpret_cast<const std::uint32_t*>(&state_.word); }
  void run_deferred();
  void wake_one();

  LockState& state_;
  Family& family_;
  Handlers handlers_;
  // For all threads that only try: how often the same word was found.
  std::atomic<std::uint64_t> stuck_word_{0};
  std::atomic<std::uint32_t> stuck_{0};
};

}  // namespace bypass::socket
