// Waiting: spin on the shard, then yield the processor between polls, then sleep.
//
// A sleeper sleeps in one ppoll over its own eventfd, the kernel descriptors it waits for, and, if no other
// thread does so already, the wires (it is then the shard's watcher, and minds the timers, too).
//
// No wake-up is lost: a thread links itself to what it waits for and looks at it once more under the shard's
// lock, and the one that changes the object signals it under the same lock. The eventfd is written after the
// unlock, and only for a thread that is linked and not about to look itself; it stays readable until its owner has
// read it.
#pragma once

#include <poll.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "os/errno_map.h"
#include "socket/family/wires.h"
#include "socket/file.h"
#include "socket/shard.h"
#include "socket/wait/direct_set.h"
#include "stack/time.h"

namespace bypass::socket {

struct Waiter;

/// A sleeper's place in the list of one object.
struct WaitLink {
  Waiter* waiter = nullptr;
  WaitLink* next = nullptr;
  File* file = nullptr;
  std::uint32_t mask = 0;  // what it waits for; signals of other kinds leave it asleep
  bool exclusive = false;  // one of those is woken a signal
};

/// A thread that sleeps (or did once). Lies in the arena: the lock's holder may find it.
struct Waiter {
  WakeTarget target;     // its eventfd is made at the first sleep
  int doorbell_fd = -1;  // of target.doorbell; made at the first sleep in a family
  bool asleep = false;
  bool called = false;                      // a signal has been sent its way since it fell asleep
  bool looks = false;                       // its thread is about to look itself, and is not to be woken
  std::atomic<Epoll*> kernel_set{nullptr};  // its thread sleeps there by the program's own call: kernel_sleep.h
  Waiter* free_next = nullptr;
  WaitLink link;              // for a wait on one object
  WaitLink* links = nullptr;  // a block for more
  std::uint32_t linked = 0;   // how many of either are in use
  std::uint32_t room = 0;     // of the block

  /// The objects that calls of this thread are inside of, and the flag (kReading, kWriting) that each has set: what
  /// is to be undone should its process die there.
  struct Hold {
    File* file;
    std::uint32_t flag;
    std::uintptr_t frame;  // of the call, within a few bytes
  };
  static constexpr std::uint32_t kHolds = 8;  // a call, its copy, and handlers' calls on top of it
  std::array<Hold, kHolds> holds{};
  std::uint32_t held = 0;
};

/// The calling thread's, able to sleep. Null when there is no descriptor or no memory for one.
Waiter* my_waiter();
/// The same without a descriptor, for who does not sleep by it. Null: no memory.
Waiter* my_record();
/// A forked child's thread has none of its own yet, and does not sleep.
void forget_waiter();
void forget_sleep();
/// The calling thread's has been freed.
void drop_my_waiter();
/// A process has died: its threads' holds and links are undone, their waiters freed. Lock held.
void drop_waiters(Guard& guard, std::uint32_t slot);
/// A process has died, perhaps between telling a sleeper and waking it: all that have been told are woken. Lock held.
void wake_told();
/// The progress thread's, when its doorbell has rung: passes on what other processes had for sleepers that have none
/// of their own. Lock held.
void pass_on_wakes();
/// A thread of this process copies to or from the socket without the lock. Lock held; cold.
[[nodiscard]] bool is_copied_here(const File& file);
/// Lock held. False when the arena has no room for the links: the caller then does not sleep.
bool link_waiter(Waiter& waiter, File& file, std::uint32_t mask, bool exclusive);
bool reserve_links(Waiter& waiter, std::size_t count);
void unlink_waiter(Waiter& waiter);

struct Patience {
  Instant deadline = kNever;
  bool block = true;    // false: one look at everything, then kAgain
  bool restart = true;  // handlers installed with SA_RESTART do not end the wait
  const sigset_t* mask = nullptr;
};

/// What a call waits for.
class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  /// With the lock held: does the work, or returns kAgain and remembers the versions that changed() compares.
  virtual long attempt(Guard& guard) = 0;
  /// Without the lock: whether an attempt may succeed where the last one did not.
  [[nodiscard]] virtual bool changed() const = 0;
  /// With the lock held, after a failed attempt: links the waiter to all objects.
  virtual bool link(Waiter& waiter) = 0;

  /// Whether something is done already: a handler then ends the call, which says how much, also one with SA_RESTART.
  [[nodiscard]] virtual bool has_moved() const { return false; }
  /// Whether it needs the wires at all (an epoll set of kernel descriptors does not).
  [[nodiscard]] virtual bool needs_wire() const { return true; }
  /// Whether to look at the wire before the first attempt: a set with an object that is always ready (a writable
  /// socket nobody writes to) would otherwise never hear of the others.
  [[nodiscard]] virtual bool polls_first() const { return false; }
  /// Whether it has kernel descriptors, and a look at them without the lock: kAgain or the call's result.
  /// Unless `always`, the look may be left out when the last one was less than `kernel_poll` ago.
  [[nodiscard]] virtual bool has_kernel() const { return false; }
  virtual long look_at_kernel(Instant /*now*/, bool /*always*/) { return kAgain; }
  /// Of the sleep, once linked.
  [[nodiscard]] virtual Hearing hearing() const { return {}; }
  /// After a sleep, with the lock held: what of the sleeper's poll set is the kernel's, with what has come there.
  /// False: nothing has, and the kernel need not be looked at.
  virtual bool on_slept(std::span<const pollfd> kernels, Instant now);
  /// The sleeper's poll set: `spare` entries for the waiter, then the kernel descriptors. Empty: no memory.
  virtual std::span<pollfd> sleep_set(std::size_t spare);
  /// Of the sleep, once linked: at most so long. Negative: any time.
  [[nodiscard]] virtual Duration longest_sleep() const { return Duration{-1}; }
  /// After a sleep, without the lock, before the wire and the rings are looked at: what the kernel has told is heard,
  /// in its order.
  virtual void hear_kernel(std::span<const pollfd> /*kernels*/, Instant /*now*/) {}

 protected:
  ~Condition() = default;
  static constexpr std::size_t kFewDescriptors = Shard::kMostWaitDescriptors + 5;
  pollfd few_[kFewDescriptors];
};

/// Runs the condition's attempt until it succeeds, the deadline passes (kTimedOutWait), a signal handler ran
/// (kInterrupted), or, for a call that does not block, everything has been looked at once (kAgain).
long wait(Condition& condition, const Patience& patience);
/// The same after a failed attempt and poll: begins with looking at the kernel and spinning.
long wait_on(Condition& condition, const Patience& patience);

/// Whether threads of this process that sleep hear all of its connections within the host.
[[nodiscard]] bool are_links_heard();

/// Whether the calling thread's waits have been short lately, it has its processor to itself, and the profile spins.
[[nodiscard]] bool spinning_pays();

/// Whether a wait of the calling thread that finds nothing sleeps at once, and so asks the kernel for all it waits for.
[[nodiscard]] bool sleeps_at_once();

/// Deadlines: now plus a duration that may be "for ever" (negative).
[[nodiscard]] Instant deadline_after(Duration timeout);

}  // namespace bypass::socket
