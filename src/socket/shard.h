// Shard: this process's view of one shard: the arena's lock and stack, and the process's own ports and clock.
//
// Only the lock's holder works on the shard. A Guard takes the lock for one call; poll() looks at the wire once. Run to
// completion: a caller that waits calls poll() until its object is ready.
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

/// Turns the stack's events into readiness; src/socket/wait/readiness.cc. Called with the lock held, just before it is
/// released. It collects waiters; `wake_collected` wakes them after the unlock.
void dispatch_events(Stack& stack);
void wake_collected();

class ShortHold;

class Shard {
 public:
  /// `ports` may still be empty: they are opened later.
  /// `wires`: those of the image before this one; null: new ones are made.
  Shard(ShardLock& lock, Stack& stack, Memory& memory, const Clock& clock, const Budgets& budgets,
        Wires* wires = nullptr);

  [[nodiscard]] Stack& stack() { return stack_; }
  [[nodiscard]] Context& context() { return context_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] const Budgets& budgets() const { return budgets_; }
  [[nodiscard]] ShardLock& lock() { return lock_; }

  /// Looks at every port once, if no other thread is inside: receives a batch from each, delivers it, runs due timers,
  /// sends what is due, turns events into readiness. Returns the number of frames received; nullopt if another thread
  /// has the lock (it does the same work).
  std::optional<std::size_t> poll();
  /// The same with the lock already held.
  std::size_t poll_locked();
  /// Looks only at the ports. If nothing has come, nothing changes. True: something has come and was delivered, as
  /// poll_locked() would have done. Only if the ports are this process's, and no other process uses the shard.
  bool glance(ShortHold& hold);
  [[nodiscard]] bool may_glance() const;
  /// True if the last poll_locked() found no frame, no due timer and no waiting output.
  [[nodiscard]] bool poll_was_idle() const { return idle_; }

  /// When timers next want a poll; read without the lock (a hint, refreshed at each unlock).
  [[nodiscard]] Instant next_timeout() const;
  /// When a thread of the program last polled. If that is long ago, the progress thread polls.
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
  /// Whether this process drives the ports (or none is open yet). Read without the lock, it is a hint.
  [[nodiscard]] bool owns_wires() const { return owns_wires_; }
  /// The ports of this process are open, or it takes over from another process. Lock held.
  void become_owner();
  void follow();
  /// In a forked child: none of the parent's threads exists here, whatever they were doing. Lock not held.
  void forget_threads();
  /// For Memory's rebuild after a death inside the lock.
  void mark_wires();

  /// To be called before a sleep: asks every port for its wake-up. False: frames may be waiting, poll again. Even if it
  /// is true, frames that came before wake nobody. Lock held.
  bool arm_locked();
  /// Takes the lock.
  void disarm();
  /// The same with the lock already held.
  void disarm_locked();
  /// The most of wait_descriptors(): one for each port, and one for all links.
  static constexpr std::size_t kMostWaitDescriptors = Context::kMaxPorts + 1;
  /// The ports' wake-up descriptors, for a sleeper's poll set. Returns how many (at most out.size()).
  std::size_t wait_descriptors(std::span<int> out);
  /// The number that wait_descriptors() returns if nothing has to be polled by time.
  [[nodiscard]] std::size_t watchable() const;

  /// One of the process's sleepers watches the wires and the timers for the others: meanwhile no other thread needs to,
  /// not even the progress thread. Lock held. False: there is a watcher already.
  bool begin_watch(const WakeTarget& target);
  /// How long the watcher may sleep: until `deadline` or the next timer. A thread that sets an earlier timer, or leaves
  /// a frame, wakes it.
  Instant watch_until(Instant deadline);
  void end_watch();
  /// The progress thread sleeps on the armed wires until `deadline`. While there is no watcher, a thread that sets an
  /// earlier timer wakes it. Lock held. False: another process has left frames meanwhile.
  bool begin_progress_sleep(const WakeTarget& target);
  void end_progress_sleep();
  /// A listener or a datagram socket of a process without the ports was made, or is about to release its number. Waits
  /// until the devices were told, for a limited time. Lock not held.
  void await_steering();
  void set_steering_patience(Duration patience) { steering_patience_ = patience; }
  /// Whether other processes have left unsent frames, or flows of which no device was told.
  [[nodiscard]] bool frames_left() const { return wires_->frames_left.load(std::memory_order_relaxed); }
  /// While there is a watcher, the progress thread has nothing to do: `event_fd` is written to at the end of the watch.
  /// Lock held. False: there is no watcher.
  bool doze_while_watched(int event_fd);
  void end_doze() { dozer_fd_ = -1; }
  /// Without the lock: a hint.
  [[nodiscard]] bool watched() const { return watched_.load(std::memory_order_acquire); }
  /// Threads that sleep until something comes on the wire, the watcher included. Changed with the lock held.
  void count_sleeper(int change) {
    sleepers_.store(sleepers_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  [[nodiscard]] int sleepers() const { return sleepers_.load(std::memory_order_relaxed); }

  /// The process ends. Its other threads stop when they next ask for the lock, as when the kernel ends them, and do not
  /// see how their sockets end. Lock held.
  void end_for_others() { ended_.store(1, std::memory_order_relaxed); }
  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_relaxed) != 0; }
  /// The process does not end after all. Lock not held.
  void go_on_for_others();
  /// The progress thread relies on armed ports.
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
  void leave();  // before it is released
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
  bool served_ = false;                  // the last poll took frames that other processes had left
  std::atomic<std::uint32_t> ended_{0};  // a futex
  Duration steering_patience_ = std::chrono::milliseconds(100);
  std::array<std::uint32_t, Context::kMaxPorts> link_ups_{};
  Wires* wires_;
  fastpath::PeerLinks* links_ = nullptr;
  LinkWatch link_watch_;
  bool sharable_ = true;
  bool owns_wires_ = true;
  int dozer_fd_ = -1;  // the progress thread's, while it sleeps during a watch
};

/// Holds back the program's handlers on this thread for a scope. Handlers read `in_lock`, so the compiler must not move
/// anything across the counts.
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

/// Holds the shard's lock for an instant, if it is free. For work that needs no time, causes no output and no event
/// (unless work() is called first), and makes no kernel call that is a cancellation point. Check held().
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
  /// From now on it is a hold like a Guard's: it has a time, and at its end it sends output and reports events.
  /// Meanwhile the stack, the ports and the links do nothing in which a thread could be cancelled.
  Context& work() {
    if (!works_) {
      works_ = true;
      shard_.enter();
    }
    return shard_.context();
  }
  /// wake_collected() must run at its end.
  void has_wakes() { wakes_ = true; }

 private:
  void end_work();

  const HandlersOff off_;
  Shard& shard_;
  bool held_;
  bool works_ = false, wakes_ = false;
};

/// Holds the shard's lock for one call. Sets the context's time; at the end flushes the transmit batch, turns events
/// into readiness, unlocks, and wakes sleepers. The thread is not cancelled meanwhile, because kernel calls of the
/// ports are cancellation points (pthreads(7)).
class Guard {
 public:
  explicit Guard(Shard& shard);
  /// Takes the lock only if it is free: check held().
  Guard(Shard& shard, std::try_to_lock_t);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  [[nodiscard]] bool held() const { return held_; }
  /// Releases the lock during a call (for a large copy, a wait). resume() takes it again. What the call needs meanwhile
  /// must be pinned.
  void pause();
  void resume();
  /// Ends the hold after a poll that found nothing, if nothing else was done in it: there is no output to flush, no
  /// event to report and no new timer.
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

/// This process's shard. Null until the arena is set up, and in a forked child that does not share it.
extern Shard* process_shard;
[[nodiscard]] inline bool has_shard() {
  return process_shard != nullptr;
}

}  // namespace bypass::socket
