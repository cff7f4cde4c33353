// ShardLock: the one lock of a shard, shared by all processes of a family, robust against their death.
//
// One word in the arena names the owner: its process's slot and incarnation, and its thread. Uncontended, taking it
// is one compare-and-swap and letting go one exchange, no system call. A thread that finds it taken spins briefly, then
// sleeps on the word's futex. It looks now and then whether the owner still lives. A dead owner was killed, also as a
// zombie, or its thread went in another thread's exec: the thread takes the lock over and has the shard rebuilt. The
// state's `changing` names the object that the dead one was in the middle of.
//
// A signal handler on top of the holder is told kOwn: it never waits for itself. It leaves what it wants done with
// defer(); so may any thread that has no reason to wait. The holder runs that when it unlocks.
//
// LockState lies in the arena, ShardLock is a process's own half.
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
  std::atomic<const void*> changing;  // the holder's; null: nothing that a death would spoil
  std::atomic<std::uint64_t> recoveries;
  DeferredList deferred;
};

class ShardLock {
 public:
  enum class Taken : std::uint8_t {
    kBusy,       // another thread has it
    kOwn,        // this very thread has it: we are a handler on top of it
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
  /// True: it was free, and is taken. Never another's, whatever has become of him: nothing is rebuilt here.
  [[nodiscard]] bool try_lock_if_free() {
    const std::uint64_t own = own_word();
    std::uint64_t expected = 0;
    return own != 0 && state_.word.compare_exchange_strong(expected, own, std::memory_order_acquire);
  }
  /// Waits for it. False only where waiting would be for ever: kOwn, kNone.
  bool lock() {
    const Taken first = try_take();
    return enter(first == Taken::kBusy ? take() : first);
  }
  /// Lets go, wakes one sleeper if there are any, and does what was deferred meanwhile (or leaves it to the next
  /// holder, who does the same). Whether there was any.
  bool unlock() {
    let_go();
    if (!state_.deferred.any()) [[likely]]
      return false;
    run_deferred();
    return true;
  }

  /// Has something done under the lock: at once if it is free, else by its holder. Async-signal-safe, never waits.
  /// False: no place left (the caller may wait for the lock if it can).
  [[nodiscard]] bool defer(const Deferred& work);

  /// What a death would spoil from here on; cleared by unlock().
  void set_changing(const void* object) { state_.changing.store(object, std::memory_order_relaxed); }
  [[nodiscard]] const void* changing() const { return state_.changing.load(std::memory_order_relaxed); }
  [[nodiscard]] Family& family() { return family_; }
  /// Whether this thread holds it.
  [[nodiscard]] bool mine() { return (state_.word.load(std::memory_order_relaxed) & ~kWaiters) == own_word(); }
  [[nodiscard]] std::uint64_t recoveries() const { return state_.recoveries.load(std::memory_order_relaxed); }

  // Without the handlers: the caller acts on kRecovered itself.
  [[nodiscard]] Taken try_take() {
    const std::uint64_t own = own_word();
    std::uint64_t expected = 0;
    if (own != 0 && state_.word.compare_exchange_strong(expected, own, std::memory_order_acquire)) [[likely]]
      return Taken::kYes;
    return try_take_slowly(own, expected);
  }
  [[nodiscard]] Taken take();

  /// Before exec, which ends all other threads wherever they are: waits until none of them is inside, and keeps
  /// them out. Other processes may take the lock all the same. If the exec fails: give_up_exec().
  bool hold_for_exec();
  void give_up_exec();
  /// Between the two: others need not take the lock as from the dead. Here it stays as it was copied.
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
    // A full barrier: what is deferred later finds the lock free, what was deferred before is seen by unlock().
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
  // Of all threads that only try: how often the same word was found.
  std::atomic<std::uint64_t> stuck_word_{0};
  std::atomic<std::uint32_t> stuck_{0};
};

}  // namespace bypass::socket
