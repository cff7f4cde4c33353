// Progress: the thread that keeps the stack alive while the program is elsewhere.
//
// It sleeps on the ports' wake-up descriptors and the next timer. It works only if no thread of the program has polled
// for one `tick`, or for a millisecond if the program was found computing while frames came (progress_pace.h). So a
// program that computes for seconds still answers SYNs, acknowledges and retransmits. This thread never spins. While
// another thread polls it does not arm the ports, because an armed port costs the peer a system call for each batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/family/arena.h"
#include "runtime/family/kin_watch.h"
#include "runtime/ports/port_set.h"
#include "runtime/progress/program_threads.h"
#include "runtime/progress/progress_pace.h"
#include "socket/shard.h"

namespace bypass::runtime {

class Progress {
 public:
  Progress(socket::Shard& shard, PortSet& ports, const arena::Spare& spare, Duration tick)
      : shard_(shard), ports_(ports), spare_(spare), tick_(tick) {}

  /// Starts the thread unless it runs in this process. False: no thread could be made.
  bool start();
  void stop();
  /// stop(), and also waits (at most some seconds) until the kernel no longer counts the thread: some calls are allowed
  /// only to a process of one thread.
  void vanish();
  /// stop() for a handler, which may not join a thread: the thread calls `last` and ends by itself. This waits for
  /// that, but not for ever: the thread may need a lock of libc that the handler has interrupted.
  void end_in_handler(void (*last)(void*), void* argument);
  /// vanish(), if the process has no third thread. False: it was not stopped. start() continues.
  bool pause();
  [[nodiscard]] bool runs() const { return running_.load(std::memory_order_acquire); }
  /// Whether the process has only the caller's thread and this one.
  [[nodiscard]] bool is_only_other() const;
  /// A forked child has no threads: the next start() makes one.
  void forget();
  /// To be called before a fork: other processes can call this thread from then on.
  void join_family();
  /// To be called after a fork, in the parent. Any thread may call it.
  void expect_child(int pid);
  /// A socket waits for its port: open it soon, or take it over if its owner has left it.
  void want_ports();
  /// Makes the thread look now, if it runs.
  void look_now() {
    if (running_.load(std::memory_order_acquire)) wake();
  }
  /// The same, and starts the thread if it does not run. False: no thread can be made.
  bool start_or_wake() {
    if (!start()) return false;
    wake();
    return true;
  }
  /// Looks from time to time whether tickets have ended (socket/family/tickets.h), as long as there are some.
  void watch_tickets() {
    if (!watches_tickets_.load()) (void)start_or_wake();
  }
  /// About the program's first thread. Any thread may call it.
  void expect(ProgramThreads::End end) {
    program_.expect(end);
    look_now();
  }
  /// Called when no thread of the program is left; `before_exit` is what the program's _exit() would begin with.
  void on_end(void (*before_exit)()) { before_exit_ = before_exit; }
  /// Called once a tick, for work that is not urgent (statistics). It returns the time after which it must be called
  /// again even if nothing happens.
  void on_tick(Duration (*call)(void*), void* argument) {
    tick_call_ = call;
    tick_argument_ = argument;
  }

 private:
  static void run(void* argument);
  [[nodiscard]] bool is_this_thread() const;
  void loop();
  void step();
  void open_step();
  void lent_step();
  void wait_while(Duration longest, bool (*still)(const Progress&));
  [[nodiscard]] bool untouched() const;
  [[nodiscard]] bool is_wire_needed();
  bool may_sweep();
  void mind_family();
  void follow_step();
  void local_step();
  void sweep_beside_nobody();
  bool mind_local();
  bool poll_until_quiet();
  void sleep_armed();
  void sleep_hearing(Duration time);
  void hear_family();
  void sleep_for(Duration time);
  bool nap(std::span<const int> wires, Duration time);
  [[nodiscard]] Duration mind_tickets();
  void wake();
  void close_wake();
  void drain_wake();
  bool doze(Instant polled);
  [[nodiscard]] bool tick();

  socket::Shard& shard_;
  PortSet& ports_;
  const arena::Spare& spare_;
  Duration tick_;
  ProgressPace pace_{tick_};
  Duration pause_{tick_};  // until the next look at a program that polls or sleeps by itself
  Instant ticked_{};       // when the work of a tick was done last
  bool local_wants_tick_ = false;
  Instant seen_poll_{};    // value of last_poll() at the last look
  int same_looks_ = 0;     // number of looks in a row with the same value
  Instant own_poll_{};     // value of last_poll() after a poll of this thread
  Instant words_since_{};  // when the present count of sleeps ended by peers on this host began
  unsigned words_ = 0;
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> want_ports_{false};
  std::uint64_t thread_ = 0;
  std::atomic<std::uint32_t> ended_{0};  // the thread has left loop(); a futex
  void (*last_call_)(void*) = nullptr;
  void* last_argument_ = nullptr;
  std::atomic<int> task_{0};  // the thread's number in the kernel
  int wake_fd_ = -1;
  std::atomic<int> doorbell_fd_{-1};  // used in a family
  std::atomic<bool> told_no_doorbell_{false};
  socket::WakeTarget target_;                 // how others wake this thread
  bool called_ = false;                       // by the doorbell: there is work to do at once
  bool kernel_called_ = true;                 // the kernel's network may have changed
  std::atomic<bool> child_expected_{false};   // this process has forked
  bool kin_changed_ = true;                   // a process has come, or a watched one has ended
  Instant dark_since_ = kNever;               // since when no link has been up, while a dead process waits to be swept
  Instant swept_{};                           // used by a family without wires
  std::atomic<bool> watches_tickets_{false};  // the thread's next look at tickets is due at some time
  std::uint32_t tickets_seen_ = 0;            // how many there were at the last look
  Duration ticket_pause_{};                   // between two looks at them
  Instant tickets_due_{};                     // when the next one comes
  bool was_lent_ = false;                     // at the last look, the ports were another family's
  bool is_others_ = false;                    // another process must open the ports, and will call
  KinWatch kin_;
  ProgramThreads program_;
  std::vector<pollfd> nap_set_;
  void (*before_exit_)() = nullptr;
  Duration (*tick_call_)(void*) = nullptr;
  Duration tick_again_ = kNever - Instant{};
  void* tick_argument_ = nullptr;
};

}  // namespace bypass::runtime
