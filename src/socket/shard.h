// Shard: this process's hold on one shard: the arena's lock and stack, and the process's own ports and clock.
//
// The lock's holder is the shard's only thread. A Guard takes the lock for one call; poll() looks at the
// wire once. Run to completion: a caller that waits calls poll() until its object is ready.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "os/clock.h"
#include "socket/api.h"
#include "socket/family/wires.h"
#include "socket/policy.h"
#include "socket/shard_lock.h"
#include "socket/wait/link_watch.h"
#include "stack/context.h"
#include "stack/stack.h"

namespace bypass::fastpath {
class PeerLinks;
}

namespace bypass::socket {

/// Turns the stack's events into readiness; src/socket/wait/readiness.cc. Called with the lock held, before it is
/// let go of. Wakes nobody itself: it collects waiters, and `wake_collected` wakes them after the unlock.
void dispatch_events(Stack& stack);
void wake_collected();

class ShortHold;

class Shard {
 public:
  /// `ports` may still be empty: they are opened late.
  Shard(ShardLock& lock, Stack& stack, Memory& memory, const Clock& clock, const Budgets& budgets);

  [[nodiscard]] Stack& stack() { return stack_; }
  [[nodiscard]] Context& context() { return context_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] const Budgets& budgets() const { return budgets_; }
  [[nodiscard]] ShardLock& lock() { return lock_; }

  /// One look at every port, if nobody else is inside: receives a batch each, delivers it, runs due timers,
  /// sends what became due, turns events into readiness. Returns the frames received, nullopt when the lock
  /// is another's (who then does the same work).
  std::optional<std::size_t> poll();
  /// The same with the lock already held.
  std::size_t poll_locked();
  /// One look at the ports alone, which leaves everything as it is where nothing has come. True: something has, and is
  /// delivered, as poll_locked() would have done. Only where the ports are this process's, and no other's.
  bool glance(ShortHold& hold);
  [[nodiscard]] bool may_glance() const;
  /// The last poll_locked() found no frame, no timer due and no output waiting.
  [[nodiscard]] bool poll_was_idle() const { return idle_; }

  /// When timers next want a poll; read without the lock (a hint, refreshed at each unlock).
  [[nodiscard]] Instant next_timeout() const;
  /// When an application thread last polled; the progress thread steps in when it is long ago.
  [[nodiscard]] Instant last_poll() const;
  /// When a poll last took in something: how active the connections are.
  [[nodiscard]] Instant last_arrival() const;

  // --- Families: see wires.h
  [[nodiscard]] Wires& wires() { return *wires_; }
  [[nodiscard]] Family& family() { return lock_.family(); }
  /// Links to other hosts' stacks, if the configuration has any; before the first connection.
  void use_links(fastpath::PeerLinks& links);
  [[nodiscard]] fastpath::PeerLinks* links() const { return links_; }
  /// Whether forked processes can share this shard: its Wires lie in the arena.
  [[nodiscard]] bool sharable() const { return sharable_; }
  /// Whether this process drives the ports (or none is open yet): without the lock, a hint for others than it.
  [[nodiscard]] bool owns_wires() const { return owns_wires_; }
  /// The ports of this process are open, or another's are followed. Lock held.
  void become_owner();
  void follow();
  /// In a forked child: whatever its parent's threads did here, none of them is here. Lock not held.
  void forget_threads();
  /// For Memory's rebuild after a death inside the lock.
  void mark_wires();

  /// Before a sleep: asks every port for its wake-up. False: frames may be waiting, poll again. Also when it is true:
  /// what has come before wakes nobody. Lock held.
  bool arm_locked();
  /// Takes the lock.
  void disarm();
  /// The same with the lock already held.
  void disarm_locked();
  /// Of wait_descriptors(): one a port, and one for all links.
  static constexpr std::size_t kMostWaitDescriptors = Context::kMaxPorts + 1;
  /// The ports' wake-up descriptors, for a sleeper's poll set. Returns how many (at most out.size()).
  std::size_t wait_descriptors(std::span<int> out);
  /// As many as wait_descriptors() returns when nothing has to be looked at from time to time.
  [[nodiscard]] std::size_t watchable() const;

  /// Of all sleepers one watches the wires and the timers for the others (in the process): while there is one,
  /// nobody else needs to, the progress thread included. Lock held. False: there is one already.
  bool begin_watch(const WakeTarget& target);
  /// Until when the watcher sleeps at most: `deadline` or the next timer. A thread that sets an earlier timer, or
  /// leaves a frame, wakes it.
  Instant watch_until(Instant deadline);
  void end_watch();
  /// The progress thread sleeps on the armed wires until `deadline`: who sets an earlier timer while nobody
  /// watches wakes it. Lock held.
  /// False: another process has left frames meanwhile.
  bool begin_progress_sleep(const WakeTarget& target);
  void end_progress_sleep();
  /// A listener, or a datagram socket, of a process without the ports has come or is about to give its number back:
  /// waits until the devices have been told, at most so long. Lock not held.
  void await_steering();
  void set_steering_patience(Duration patience) { steering_patience_ = patience; }
  /// Whether other processes have left frames that are not sent yet, or flows that no device has been told of.
  [[nodiscard]] bool frames_left() const { return wires_->frames_left.load(std::memory_order_relaxed); }
  /// While somebody watches, the progress thread has nothing to do: `event_fd` is written to at the end of the
  /// watch. Lock held. False: nobody watches.
  bool doze_while_watched(int event_fd);
  void end_doze() { dozer_fd_ = -1; }
  /// Without the lock: a hint.
  [[nodiscard]] bool watched() const { return watched_.load(std::memory_order_acquire); }
  /// Threads asleep until something comes on the wire, the watcher among them. Changed with the lock held.
  void count_sleeper(int change) {
    sleepers_.store(sleepers_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  [[nodiscard]] int sleepers() const { return sleepers_.load(std::memory_order_relaxed); }

  /// The process ends: its other threads stop where they next ask for the lock, as those of a process that the
  /// kernel ends do, and see nothing of sockets that end under them. Lock held.
  void end_for_others() { ended_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_relaxed); }
  /// The progress thread relies on the ports being armed.
  [[nodiscard]] bool progress_sleeps() const { return owns_wires_ && wires_->progress.asleep; }

  // The process's side, called by src/runtime with the lock held.
  void add_port(Port* port, std::uint16_t queue);
  /// Other processes may have left frames for the ports' owner since this one last held the lock.
  void renew_limits();
  [[nodiscard]] std::size_t port_count() const { return context_.ports; }

 private:
  friend class Guard;
  friend class ShortHold;
  void enter();  // after the lock is taken
  void leave();  // before it is let go of
  void stop_if_ended();
  void steer();
  [[nodiscard]] Instant due() const;
  void call_sleepers(Instant next);
  void serve_family();
  std::size_t receive(std::uint16_t port);
  void take_in(std::uint16_t port, std::span<Packet*> frames);
  void note_arrival() { last_arrival_.store(context_.now.time_since_epoch().count(), std::memory_order_relaxed); }
  void take_in_copies(std::uint16_t port, std::span<Packet*> frames);
  void leave_to_owner(Instant next);

  ShardLock& lock_;
  Stack& stack_;
  const Clock& clock_;
  const Budgets& budgets_;
  Context context_;
  std::atomic<std::int64_t> next_timeout_{0};
  std::atomic<std::int64_t> last_poll_{0};
  std::atomic<std::int64_t> last_arrival_{0};
  std::atomic<bool> watched_{false};
  std::atomic<int> sleepers_{0};
  bool fresh_ = false;  // context_.now was read in this hold, and no poll has used it
  bool idle_ = false;
  bool served_ = false;  // the last poll took frames that other processes had left
  std::atomic<bool> ended_{false};
  Duration steering_patience_ = std::chrono::milliseconds(100);
  std::array<std::uint32_t, Context::kMaxPorts> link_ups_{};
  Wires* wires_;
  fastpath::PeerLinks* links_ = nullptr;
  LinkWatch link_watch_;
  bool sharable_ = true;
  bool owns_wires_ = true;
  int dozer_fd_ = -1;  // the progress thread's, while it sleeps through a watch
};

/// For a scope: the program's handlers are held back on this thread. Handlers read `in_lock`: the compiler may move
/// nothing across the counts.
class HandlersOff {
 public:
  HandlersOff() { count_in(); }
  ~HandlersOff() { count_out(); }
  HandlersOff(const HandlersOff&) = delete;
  HandlersOff& operator=(const HandlersOff&) = delete;

  static void count_in() {
    thread_signals.in_lock = thread_signals.in_lock + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  static void count_out() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    thread_signals.in_lock = thread_signals.in_lock - 1;
    if (thread_signals.held_back == 0 || thread_signals.in_lock != 0 || thread_signals.ends) [[likely]]
      return;
    if (redeliver_signals != nullptr) redeliver_signals();
  }
};

/// Holds the shard's lock for an instant, if it is free: for what needs no time, brings about no output and no event,
/// unless work() is called first, and makes no call of the kernel's that is a cancellation point. Ask held().
class ShortHold {
 public:
  explicit ShortHold(Shard& shard) : shard_(shard), held_(shard.lock().try_lock_if_free()) {
    if (!held_ || !shard.ended()) [[likely]]
      return;
    shard.lock().unlock();  // its next Guard stops this thread
    held_ = false;
  }
  ~ShortHold() {
    if (works_)
      end_work();
    else if (held_ && (shard_.lock().unlock() || wakes_)) [[unlikely]]
      wake_collected();
  }
  ShortHold(const ShortHold&) = delete;
  ShortHold& operator=(const ShortHold&) = delete;
  [[nodiscard]] bool held() const { return held_; }
  /// From here on it is a hold like a Guard's: it has a time, and sends and tells what it has brought about at its end.
  /// The stack, the ports and the links do nothing on the way that a thread could be cancelled in.
  Context& work() {
    if (!works_) {
      works_ = true;
      shard_.enter();
    }
    return shard_.context();
  }
  /// At its end wake_collected() is due.
  void has_wakes() { wakes_ = true; }

 private:
  void end_work();

  const HandlersOff off_;
  Shard& shard_;
  bool held_;
  bool works_ = false, wakes_ = false;
};

/// Holds the shard's lock for one call: sets the context's time, and at the end flushes the transmit batch,
/// turns events into readiness, lets go, and wakes who must be woken. The thread is not cancelled meanwhile: what ports
/// call of the kernel's are cancellation points (pthreads(7)).
class Guard {
 public:
  explicit Guard(Shard& shard);
  /// Takes the lock only if it is free: ask held().
  Guard(Shard& shard, std::try_to_lock_t);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  [[nodiscard]] bool held() const { return held_; }
  /// Lets go in the middle of a call (a large copy, a wait) and takes the lock again. What the call relies on
  /// meanwhile it has pinned.
  void pause();
  void resume();
  /// Ends the hold after a poll that found nothing, when nothing else was done in it: there is no output to flush,
  /// no event to tell and no new timer.
  void leave_untouched();
  [[nodiscard]] Shard& shard() { return shard_; }
  [[nodiscard]] Context& context() { return shard_.context(); }

 private:
  void begin();
  void end();

  Shard& shard_;
  bool held_ = false;
  int cancel_state_ = 0;  // the thread's own
};

/// This process's shard. Null until the arena is taken, and in a forked child that has no part of it.
extern Shard* process_shard;
[[nodiscard]] inline bool has_shard() {
  return process_shard != nullptr;
}

}  // namespace bypass::socket
