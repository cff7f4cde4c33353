// Adapter: a software device as it runs in this process: its wire, its engine, and the thread that looks after both.
//
// The first ibv_open_device of the device opens it, and closing its last context closes it. There is one lock; its
// holder is the engine's only thread (Turn). The thread that calls a verb does the work: it polls the wire, answers,
// sends. If no thread polls any more (is_about()), the progress thread does the work. So a peer's one-sided operations
// are served while the program is elsewhere. Between looks it sleeps on the port's wake-up descriptor and the engine's
// next timer.
//
// It belongs to the process that opened it. In a forked child the copy cannot be used (its calls return EIO); the
// child's next ibv_open_device opens a new one.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "os/clock.h"
#include "softverbs/abi/adapter/event_queue.h"
#include "softverbs/abi/adapter/turn_lock.h"
#include "softverbs/engine/device.h"

namespace bypass::softverbs {

struct Context;

class Adapter {
 public:
  /// All devices are the parent's; inherited descriptors are closed by their numbers. Async-signal-safe.
  static void after_fork_in_child();
  /// See bypass_softverbs_protect_descriptors().
  static void protect_descriptors(bool on);
  /// Opens device `index` of BYPASS_SOFT. Null: the reason was reported, and errno is set.
  static Adapter* attach(std::size_t index);
  /// The last user closes the wire.
  void detach();

  class Turn;

  void add(Context& context);
  void remove(Context& context);

  /// The pause between two looks at a wire that brings nothing: spins for the configured budget, then yields, then says
  /// that it is time to sleep.
  class Patience;

  /// Waits until the address of that peer on the link is known, as a card's driver does when a queue pair or an address
  /// handle gets its peer. Without the lock; a second or two at most. It does not wait for libbypass, which calls with
  /// a lock of its own held (the engine asks again when it sends). Returns 0, ETIMEDOUT (the link does not come up) or
  /// EHOSTUNREACH.
  int await_peer(const ibv_gid& gid);
  /// Waits until the link is up, a second or two at most; does not wait for libbypass. False: it may still be down.
  bool await_link();

  [[nodiscard]] Instant now() const { return clock_.now(); }
  /// Completions of the queue with this `user` belong to the connection manager, which sleeps on this descriptor
  /// (eventfd(2)). Within a turn.
  void set_management(const void* user, int descriptor) {
    management_ = user;
    management_fd_ = descriptor;
  }
  /// True once after the other end of a wire in memory has gone. Within a turn.
  bool take_peer_lost() { return std::exchange(peer_lost_, false); }
  /// In a forked child: the device is the parent's.
  [[nodiscard]] bool is_inherited() const { return inherited_; }

 private:
  explicit Adapter(std::size_t index) : index_(index) {}
  bool open(std::string& problem);
  void close();
  void say_farewell();
  static void before_exit();

  std::size_t poll(Instant now, rdma::Acks acks = rdma::Acks::kSend);
  void settle();
  /// Acknowledgements may be left to the program's next call if the program polls (kLeave).
  [[nodiscard]] rdma::Acks acks() const { return armed_ ? rdma::Acks::kSend : rdma::Acks::kLeave; }
  void hand_on_events();
  void deliver(const rdma::AsyncEvent& event);
  std::size_t poll_for_program(Instant now, rdma::Acks acks);
  [[nodiscard]] ibv_port_state port_state() const;
  [[nodiscard]] int physical_state() const;
  [[nodiscard]] bool is_in_memory() const;

  bool is_own(const ibv_gid& gid);

  static void progress(void* self);
  Instant look();
  [[nodiscard]] bool is_about(Instant now) const;
  Duration longer_absence();
  void watch_wire();
  void stop_watching(Instant now);
  void be_alone();
  bool arm();
  void sleep_until(Instant when, int port_fd) const;
  void wake_progress();

  const std::size_t index_;
  std::size_t users_ = 0;  // protected by the table's lock
  TurnLock lock_;
  bool inherited_ = false;  // this is a forked child's copy

  Backend* backend_ = nullptr;
  Port* port_ = nullptr;
  std::unique_ptr<rdma::Device> engine_;
  int interface_ = 0;  // the interface that it shares with the kernel
  socket::Clock clock_;
  std::vector<Context*> contexts_;
  const void* management_ = nullptr;
  int management_fd_ = -1;
  bool peer_lost_ = false;
  Duration spin_{}, yield_{}, tick_{};
  Instant last_useful_{};    // when frames came, or completions were there to poll
  bool found_ = false;       // the same happened since the last look
  std::uint64_t polls_ = 0;  // number of the program's polls
  Instant called_at_{};      // the time of the program's last call
  // Number of looks at the wire for polls of completion queues. Each queue stores the number of the last look that it
  // knows.
  std::uint64_t looks_ = 0;
  Instant looked_at_{};

  // The progress thread
  std::uint64_t thread_ = 0;
  int wake_fd_ = -1;
  bool stopping_ = false;
  bool armed_ = false;
  bool woken_ = false;
  // the progress thread found the lock taken or the wire held, so it does not watch the port
  std::atomic<bool> passed_by_{false};
  bool asked_ = false;  // a program that may sleep since has asked for a notification
  unsigned polls_since_asked_ = 0;
  unsigned sleepers_ = 0;  // readers of event queues: no thread polls for them
  std::uint64_t seen_polls_ = 0;
  Duration absence_{1};    // absence of the program that the progress thread does not notice
  Duration full_pause_{};  // the pause before it looks again whether the wire has room
  Instant sleeps_until_{};
};

/// Holds the lock for its lifetime. At its end it passes on the events that the engine has made. Nothing inside is a
/// cancellation point (pthreads(7)): a thread that was cancelled would leave the lock taken. Ports and log ensure this
/// themselves (Host::libc), so that a turn pays nothing for it.
class Adapter::Turn {
 public:
  explicit Turn(Adapter& adapter) : adapter_(adapter) { adapter_.lock_.lock(); }
  Turn(Adapter& adapter, std::adopt_lock_t) : adapter_(adapter) {}
  ~Turn() {
    if (!adapter_.inherited_) adapter_.settle();
    adapter_.lock_.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// False in a forked child: the engine must not be used (EIO).
  explicit operator bool() const { return !adapter_.inherited_; }
  rdma::Device* operator->() const { return adapter_.engine_.get(); }

  /// Looks at the wire, answers, sends. Returns the number of received frames.
  std::size_t poll();
  /// The same for a program that polls a completion queue, and will poll again. If it polls several queues in turn, the
  /// wire is looked at for one of them: completions for the others are there already. `seen`: the queue's own number,
  /// see looks_.
  std::size_t look(std::uint64_t& seen);
  /// Sends what is due.
  void run() { adapter_.engine_->run(adapter_.clock_.now()); }
  /// Sends what the program has posted.
  void post();
  /// A poll of the program found this many completions. True: there was nothing for a while, so other threads may have
  /// the processor.
  bool found(std::size_t completions);
  [[nodiscard]] ibv_port_state port_state() const { return adapter_.port_state(); }
  /// As numbered by the InfiniBand specification: the wire's real state, whatever the port's state says. Disabled: the
  /// wire exists, but does not admit this process.
  [[nodiscard]] int physical_state() const { return adapter_.physical_state(); }
  /// Frames that the wire had to drop, or that found no receive request.
  [[nodiscard]] std::uint64_t lost() const {
    return adapter_.engine_->counters().rx_no_receive + adapter_.port_->stats().rx_dropped;
  }
  /// The number of the kernel's network interface on this wire; 0: there is no such interface.
  [[nodiscard]] std::uint32_t interface() const { return static_cast<std::uint32_t>(adapter_.interface_); }
  /// Passes on the engine's events before the end of the turn.
  void hand_on_events() {
    if (!adapter_.inherited_) adapter_.hand_on_events();
  }
  /// Also watches the wire: the caller may sleep afterwards without another call.
  int request_notify(rdma::Cq& queue, bool solicited_only);
  /// The caller goes to sleep, or is back: meanwhile the progress thread has to look at the wire.
  void sleeps(bool asleep);

 private:
  Adapter& adapter_;
};

class Adapter::Patience {
 public:
  explicit Patience(const Adapter& adapter);
  /// False: the budget is used up.
  bool wait_a_little();

 private:
  const Adapter& adapter_;
  Instant spin_until_, yield_until_;
};

/// Ends what a wait has begun, also if the thread is cancelled during the wait.
template <typename Event>
struct EventQueue<Event>::Sleep {
  Adapter& adapter;
  EventQueue& queue;
  bool woken = false;
  ~Sleep() {
    Adapter::Turn turn(adapter);
    turn.sleeps(false);
    if (!woken) queue.abandon_wait();
  }
};

template <typename Event>
template <typename OnTaken>
bool EventQueue<Event>::take(Adapter& adapter, Event& event, OnTaken on_taken) {
  Adapter::Patience patience(adapter);
  for (bool spinning = is_blocking();;) {
    {
      Adapter::Turn turn(adapter);
      if (!turn) {  // the descriptors belong to the parent
        errno = EIO;
        return false;
      }
      turn.poll();
      if (pop(event)) {
        on_taken(event);
        return true;
      }
      if (!spinning) {
        if (!begin_wait()) return false;
        turn.sleeps(true);
      }
    }
    if (spinning) {
      spinning = patience.wait_a_little();
      continue;
    }
    Sleep sleep{adapter, *this};
    sleep.woken = wait();
    if (!sleep.woken) return false;
  }
}

}  // namespace bypass::softverbs
