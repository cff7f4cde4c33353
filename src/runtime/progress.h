// Progress: the thread that keeps the stack alive while the program is elsewhere.
//
// It sleeps on the ports' wake-up descriptors and the next timer. It steps in only when no application thread has
// polled for one `tick`, or for a millisecond where the program was found computing while frames came
// (progress_pace.h). A program that computes for seconds still answers SYNs, acknowledges and retransmits. This thread
// never spins. It does not arm the ports while somebody polls, because an armed port costs the peer a system call a
// batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/family/arena.h"
#include "runtime/family/kin_watch.h"
#include "runtime/ports.h"
#include "runtime/program_threads.h"
#include "runtime/progress_pace.h"
#include "socket/shard.h"

namespace bypass::runtime {

class Progress {
 public:
  Progress(socket::Shard& shard, PortSet& ports, const arena::Spare& spare, Duration tick)
      : shard_(shard), ports_(ports), spare_(spare), tick_(tick) {}

  /// Starts the thread if it does not run in this process. False: no thread could be had.
  bool start();
  void stop();
  /// stop(), and the kernel counts the thread no more when it returns (100 ms at most): some calls it allows to a
  /// process of one thread alone.
  void vanish();
  /// stop() for a handler, which may join nothing: the thread calls `last` and ends by itself. That is waited for,
  /// though not for ever: the thread may need a lock of libc's that the handler has interrupted.
  void end_in_handler(void (*last)(void*), void* argument);
  /// vanish(), where the process has no third thread. False: it was not stopped. start() goes on.
  bool pause();
  [[nodiscard]] bool runs() const { return running_.load(std::memory_order_acquire); }
  /// Whether the process has the caller's thread and this one alone.
  [[nodiscard]] bool is_only_other() const;
  /// A forked child has no threads: the next start() makes one.
  void forget();
  /// Before a fork: other processes can call this thread from then on.
  void join_family();
  /// After a fork, in the parent. Any thread.
  void expect_child(int pid);
  /// A socket waits for its port: open it soon, or take it over where the one who had it has left it.
  void want_ports();
  /// A look at what there is to watch, where it runs.
  void look_now() {
    if (running_.load(std::memory_order_acquire)) wake();
  }
  /// The same; starts it where it does not. False: no thread can be had.
  bool start_or_wake() {
    if (!start()) return false;
    wake();
    return true;
  }
  /// Of the program's first thread. Any thread.
  void expect(ProgramThreads::End end) {
    program_.expect(end);
    look_now();
  }
  /// When no thread of the program's is left: `before_exit` is what _exit() of the program begins with.
  void on_end(void (*before_exit)()) { before_exit_ = before_exit; }
  /// Called once a tick, for what is not urgent (statistics). It says after how long it is to be called again though
  /// nothing happens.
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
  void sleep_for(Duration time);
  bool nap(std::span<const int> wires, Duration time);
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
  Duration pause_{tick_};  // until the next look at a program that polls or sleeps on its own
  Instant ticked_{};       // when what is done once a tick last was
  bool local_wants_tick_ = false;
  Instant seen_poll_{};    // what last_poll() said at the last look
  int same_looks_ = 0;     // how many looks in a row said the same
  Instant own_poll_{};     // what last_poll() said after a poll of ours
  Instant words_since_{};  // so many sleeps since then have been ended by peers on this host
  unsigned words_ = 0;
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> want_ports_{false};
  std::uint64_t thread_ = 0;
  std::atomic<std::uint32_t> ended_{0};  // the thread has left loop(); a futex
  void (*last_call_)(void*) = nullptr;
  void* last_argument_ = nullptr;
  std::atomic<int> task_{0};  // the thread as the kernel numbers it
  int wake_fd_ = -1;
  std::atomic<int> doorbell_fd_{-1};  // in a family
  bool told_no_doorbell_ = false;
  socket::WakeTarget target_;    // how others wake this thread
  bool called_ = false;          // by the doorbell: there is something to do at once
  bool kernel_called_ = true;    // its network may have changed
  bool kin_changed_ = true;      // somebody has come, or one that is watched has ended
  Instant dark_since_ = kNever;  // since when no link has been up, while somebody is to be swept
  Instant swept_{};              // a family without wires
  bool is_others_ = false;       // the ports are another process's to open, which will call
  KinWatch kin_;
  ProgramThreads program_;
  std::vector<pollfd> nap_set_;
  void (*before_exit_)() = nullptr;
  Duration (*tick_call_)(void*) = nullptr;
  Duration tick_again_ = kNever - Instant{};
  void* tick_argument_ = nullptr;
};

}  // namespace bypass::runtime
