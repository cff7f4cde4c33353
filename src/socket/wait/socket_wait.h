// What the calls on one socket share: their patience, their condition, and how a failed wait is reported.
// Tests: tests/socket/stream_test.cc, tests/socket/long_copy_test.cc.
#pragma once

#include <pthread.h>

#include <atomic>

#include "os/errno_map.h"
#include "os/own/cancellation.h"
#include "socket/socket.h"
#include "socket/wait/direct_set.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

/// Longer copies are made without the lock.
inline constexpr std::size_t kCopyInLock = std::size_t{16} << 10;
/// A call that has work to do still looks at the wire if no thread has done so for this long.
inline constexpr Duration kStale = std::chrono::microseconds(20);

inline void poll_if_stale(Guard& guard) {
  if (guard.context().now - guard.shard().last_poll() > kStale) guard.shard().poll_locked();
}

/// To be called before a connection's state is read. A state in the kernel has changed by the time that a segment
/// arrived; ours changes once a thread has looked at the wire. Lock held; the connection may be gone afterwards.
inline void look_before_asking(Guard& guard) {
  guard.shard().poll_locked();
  dispatch_events(guard.shard().stack());
}

/// Patience of a blocking call; `timeout_ms` is SO_RCVTIMEO or SO_SNDTIMEO, 0 for no limit. A call with a timeout is
/// not restarted after a handler (signal(7)).
inline Patience socket_patience(Guard& guard, std::uint32_t timeout_ms) {
  Patience patience;
  patience.restart = timeout_ms == 0;
  if (timeout_ms == kNoTimeAtAll)
    patience.deadline = guard.context().now;
  else if (timeout_ms != 0)
    patience.deadline = guard.context().now + std::chrono::milliseconds(timeout_ms);
  return patience;
}

/// Turns kAgain and kTimedOutWait into what the program sees, unless some bytes were moved already.
inline long wait_result(long r, std::size_t done) {
  if (r >= 0) return r;
  if (done != 0) return static_cast<long>(done);
  return r == kTimedOutWait ? kAgain : r;
}

/// A part of an attempt during which the lock may be released, and which `flag` (kReading, kWriting) shows to other
/// threads. Signals are held back meanwhile, as inside the lock: a handler that interrupted it and used the same socket
/// would wait for ever. It begins and ends with the lock held; what it holds is released with it, also on cancellation.
class Busy {
 public:
  Busy(Socket& socket, std::uint32_t flag) : socket_(socket), flag_(flag) {
    hold(socket_, flag_);
    thread_signals.in_lock = thread_signals.in_lock + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Busy() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    thread_signals.in_lock = thread_signals.in_lock - 1;  // the guard's own count stays
    hold_end(socket_, flag_);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Socket& socket_;
  std::uint32_t flag_;
};

/// The same for a long copy, which is made completely without the lock.
class OutsideLock : Busy {
 public:
  OutsideLock(Guard& guard, Socket& socket, std::uint32_t flag) : Busy(socket, flag), guard_(guard) { guard_.pause(); }
  ~OutsideLock() { guard_.resume(); }
  OutsideLock(const OutsideLock&) = delete;
  OutsideLock& operator=(const OutsideLock&) = delete;

 private:
  Guard& guard_;
};

/// A condition on one socket.
class SocketCondition : public Condition {
 public:
  SocketCondition(Socket& socket, std::uint32_t mask, bool exclusive = false)
      : socket_(socket), mask_(mask), exclusive_(exclusive) {}

  [[nodiscard]] bool changed() const final {
    return socket_.readiness.version.load(std::memory_order_acquire) != version_;
  }
  bool link(Waiter& waiter) override { return link_waiter(waiter, socket_, mask_ | kAlways, exclusive_); }

 protected:
  ~SocketCondition() = default;
  long again() {
    version_ = socket_.readiness.version.load(std::memory_order_relaxed);
    disconnects_ = socket_.disconnects;
    waited_ = true;
    return kAgain;
  }
  /// Whether connect(AF_UNSPEC) has dissolved, since again(), what was waited for (sk_disconnects of Linux).
  /// To a pump (socket/family/pumped.h).
  [[nodiscard]] bool is_moved() const { return socket_.path == Path::kPumped; }
  [[nodiscard]] bool dissolved() const { return waited_ && disconnects_ != socket_.disconnects; }
  /// Another thread copies from or to the socket without the lock: waits for it, as for the kernel's socket lock.
  void wait_for_copy(Guard& guard, std::uint32_t flag) {
    while (socket_.has(flag)) [[unlikely]] yield_to_copy(guard);
  }

  Socket& socket_;

 private:
  void yield_to_copy(Guard& guard);
  unsigned yields_ = 0;

  std::uint32_t version_ = 0;
  std::uint32_t mask_;
  bool exclusive_;
  bool waited_ = false;
  std::uint8_t disconnects_ = 0;
};

/// The same for a socket with a kernel half.
class DualCondition : public SocketCondition {
 public:
  using SocketCondition::SocketCondition;
  [[nodiscard]] bool has_kernel() const final { return has_kernel_half(socket_); }
  long look_at_kernel(Instant now, bool always) final {
    if (!direct_.hear()) look_at_kernel_halves(now, always && !rationed_);
    return kAgain;
  }
  /// Limits a program that asks repeatedly without blocking to one system call every `kernel_poll`.
  void ration(bool on) { rationed_ = on; }
  bool link(Waiter& waiter) final {
    direct_.begin();
    direct_.add(socket_);
    return SocketCondition::link(waiter);
  }
  [[nodiscard]] Hearing hearing() const final { return direct_.hearing(); }
  std::span<pollfd> sleep_set(std::size_t spare) final {
    static_assert(1 + Shard::kMostWaitDescriptors + 1 + DirectSet::kEntriesOfOne <= kFewDescriptors);
    for (const pollfd& entry : direct_.entries()) few_[spare++] = entry;
    return {few_, spare};
  }
  bool on_slept(std::span<const pollfd> kernels, Instant now) final {
    direct_.on_slept(kernels);
    return SocketCondition::on_slept(kernels, now);
  }

 protected:
  ~DualCondition() = default;
  /// Asks the kernel's side without the lock. `ask` makes one call on the number that it gets, and does not wait.
  /// kernel_half.h explains the order of flags and request.
  template <typename Ask>
  long ask_kernel(Guard& guard, Ask ask) {
    const Busy asking(socket_, 0);  // if a handler does not return, what the call takes must not be lost,
    const int number = begin_asking(guard);
    const long r = [&] {
      const CancellationOff off;  // nor if the thread ends
      return ask(number);
    }();
    end_asking(guard, r);
    return r;
  }

  /// The readiness' version without the signals of ask_kernel() itself. A thread that looks again at each change would
  /// otherwise see one each time.
  [[nodiscard]] std::uint32_t others_version() const {
    return socket_.readiness.version.load(std::memory_order_relaxed) - own_signals_;
  }

  /// The same with the lock kept, for a request that only looks. `ask` must be no cancellation point.
  template <typename Ask>
  long ask_kernel_at_once(Ask ask) {
    KernelHalf& half = *kernel_half(socket_);
    take_back_news(half);
    const long r = ask(half.number);
    note_answer(half, r);
    return r;
  }

 private:
  int begin_asking(Guard& guard);
  void end_asking(Guard& guard, long answer);
  static void note_answer(KernelHalf& half, long answer) {
    if (answer == kAgain) return;
    half.in = half.watched;
    doubt_kernel_half(half);
  }

  DirectSet direct_;
  std::uint32_t own_signals_ = 0;
  bool rationed_ = false;
};

}  // namespace bypass::socket
