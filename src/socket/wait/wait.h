// Waiting: spin on the shard, then yield the processor between polls, then sleep.
//
// A sleeper sleeps in one ppoll() over its own eventfd, the kernel descriptors that it waits for, and the wires if no
// other thread watches them. (It is then the shard's watcher, and serves the timers, too.)
//
// No wake-up is lost. A thread links itself to what it waits for, and looks once more under the shard's lock; a thread
// that changes the object signals it under the same lock. The eventfd is written after the unlock, and only for a
// thread that is linked and not about to look itself. It stays readable until its owner has read it.
// Tests: tests/socket/stream_test.cc, tests/preload/programs/handlers.c.
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
  std::uint32_t mask = 0;  // what it waits for; other signals do not wake it
  bool exclusive = false;  // each signal wakes one of these
};

/// A thread that sleeps, or did once. It lies in the arena, where the lock's holder may find it.
struct Waiter {
  WakeTarget target;     // its eventfd is made at the first sleep
  int doorbell_fd = -1;  // for target.doorbell; made at the first sleep in a family
  bool asleep = false;
  bool called = false;                      // it was sent a signal since it fell asleep
  bool looks = false;                       // its thread is about to look itself, and need not be woken
  std::atomic<Epoll*> kernel_set{nullptr};  // its thread sleeps there by the program's own call: kernel_sleep.h
  Waiter* free_next = nullptr;
  WaitLink link;              // for a wait on one object
  WaitLink* links = nullptr;  // a block for several objects
  std::uint32_t linked = 0;   // how many of either are in use
  std::uint32_t room = 0;     // places in the block

  /// The objects that calls of this thread are working on, and the flag (kReading, kWriting) that each has set. This is
  /// undone if the thread's process dies there.
  struct Hold {
    File* file;
    std::uint32_t flag;
    std::uintptr_t frame;  // the call's, within a few bytes
  };
  static constexpr std::uint32_t kHolds = 8;  // a call, its copy, and the calls of interrupting handlers
  std::array<Hold, kHolds> holds{};
  std::uint32_t held = 0;
};

/// The calling thread's waiter, able to sleep. Null: there is no descriptor or no memory for it.
Waiter* my_waiter();
/// The same without a descriptor, for a thread that does not sleep by it. Null: no memory.
Waiter* my_record();
/// In a forked child, whose thread has no waiter of its own yet, and does not sleep.
void forget_waiter();
void forget_sleep();
/// The calling thread's waiter was freed.
void drop_my_waiter();
/// A process has died: its threads' holds and links are undone, and their waiters freed. Lock held.
void drop_waiters(Guard& guard, std::uint32_t slot);
/// A process has died, perhaps between signalling a sleeper and waking it: wakes all sleepers that were signalled. Lock
/// held.
void wake_told();
/// For the progress thread, when its doorbell has rung: passes on wake-ups of other processes for sleepers that have no
/// doorbell of their own. Lock held.
void pass_on_wakes();
/// Whether a thread of this process copies to or from the socket without the lock. Lock held; rarely called.
[[nodiscard]] bool is_copied_here(const File& file);
/// Lock held. False: the arena has no room for the links, and the caller must not sleep.
bool link_waiter(Waiter& waiter, File& file, std::uint32_t mask, bool exclusive);
bool reserve_links(Waiter& waiter, std::size_t count);
void unlink_waiter(Waiter& waiter);

struct Patience {
  Instant deadline = kNever;
  bool block = true;    // false: looks at everything once, then returns kAgain
  bool restart = true;  // handlers installed with SA_RESTART do not end the wait
  const sigset_t* mask = nullptr;
};

/// What a call waits for.
class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  /// Called with the lock held: does the work, or returns kAgain and stores the versions that changed() compares.
  virtual long attempt(Guard& guard) = 0;
  /// Called without the lock: whether an attempt may succeed now, after the last one did not.
  [[nodiscard]] virtual bool changed() const = 0;
  /// Called with the lock held, after a failed attempt: links the waiter to all objects.
  virtual bool link(Waiter& waiter) = 0;

  /// Whether something was done already: a handler, even one with SA_RESTART, then ends the call, which returns how
  /// much.
  [[nodiscard]] virtual bool has_transferred() const { return false; }
  /// Whether it needs the wires at all (an epoll set of kernel descriptors does not).
  [[nodiscard]] virtual bool needs_wire() const { return true; }
  /// Whether to look at the wire before the first attempt. Otherwise a set with an object that is always ready (a
  /// writable socket that nobody writes to) would never hear of the others.
  [[nodiscard]] virtual bool polls_first() const { return false; }
  /// Whether it has kernel descriptors. look_at_kernel() looks at them without the lock: kAgain or the call's result.
  /// Unless `always`, the look may be left out if the last one was less than `kernel_poll` ago.
  [[nodiscard]] virtual bool has_kernel() const { return false; }
  virtual long look_at_kernel(Instant /*now*/, bool /*always*/) { return kAgain; }
  /// What the sleep hears, once linked.
  [[nodiscard]] virtual Hearing hearing() const { return {}; }
  /// Called after a sleep, with the lock held. `kernels`: the kernel's part of the sleeper's poll set, with its
  /// answers. False: nothing has come, and the kernel need not be looked at.
  virtual bool on_slept(std::span<const pollfd> kernels, Instant now);
  /// The sleeper's poll set: `spare` entries for the waiter, then the kernel descriptors. Empty: no memory.
  virtual std::span<pollfd> sleep_set(std::size_t spare);
  /// The longest time of the sleep, once linked. Negative: no limit.
  [[nodiscard]] virtual Duration longest_sleep() const { return Duration{-1}; }
  /// Called after a sleep, without the lock, before the wire and the rings are looked at: handles the kernel's answers
  /// in their order.
  virtual void hear_kernel(std::span<const pollfd> /*kernels*/, Instant /*now*/) {}

 protected:
  ~Condition() = default;
  static constexpr std::size_t kFewDescriptors = Shard::kMostWaitDescriptors + 5;
  pollfd few_[kFewDescriptors];
};

/// Runs the condition's attempt until it succeeds, the deadline passes (kTimedOutWait), or a signal handler ran
/// (kInterrupted). For a call that does not block, until everything was looked at once (kAgain).
long wait(Condition& condition, const Patience& patience);
/// The same after a failed attempt and poll: begins with a look at the kernel and spinning.
long wait_on(Condition& condition, const Patience& patience);

/// Whether sleeping threads of this process hear all of its connections within the host.
[[nodiscard]] bool are_links_heard();

/// Whether the calling thread's waits were short lately, it has its processor alone, and the profile spins.
[[nodiscard]] bool spinning_pays();

/// Whether a wait of the calling thread that finds nothing sleeps at once, and so asks the kernel for everything.
[[nodiscard]] bool sleeps_at_once();

/// A deadline: now plus a duration, which may be "for ever" (negative).
[[nodiscard]] Instant deadline_after(Duration timeout);

}  // namespace bypass::socket
