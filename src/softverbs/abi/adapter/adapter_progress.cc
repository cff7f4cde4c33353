// The progress thread: it looks after the wire while no thread of the program does.
#include "softverbs/abi/adapter/adapter.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "os/log/log.h"
#include "os/os.h"
#include "os/poll_by_parts.h"
#include "softverbs/abi/adapter/setup.h"

namespace bypass::softverbs {
namespace {

/// After so many polls of the program, or frames that it took, since the progress thread's last look, the program
/// counts as busy and looks after the wire itself.
constexpr std::uint64_t kBusyPolls = 64;

/// The same, but only if its last call was at most this long ago: a program that handles much takes its time.
constexpr Duration kRecently = std::chrono::microseconds{50};

/// The program may stop polling at any moment, to wait for a peer's write to its memory. The progress thread checks for
/// that soon after such a stop, then less and less often, at last at this interval. Until then a peer may wait for an
/// acknowledgement that was left to the program's next call.
constexpr Duration kFirstAbsence = std::chrono::microseconds{25};

constexpr Duration kLongestAbsence = std::chrono::milliseconds{1};

/// The same under libbypass if nobody has asked for a notification. A wake-up costs its thread about 40 µs if both have
/// one core; at a thousand a second that would be its 99th percentile.
constexpr Duration kHostedAbsence = std::chrono::milliseconds{10};

/// The wire is full: the first look comes after this time, later ones less often, at least once a tick.
constexpr Duration kFirstFullPause = std::chrono::microseconds{5};

timespec to_timespec(Duration duration) {
  return {static_cast<time_t>(duration / std::chrono::seconds{1}),
          static_cast<long>((duration % std::chrono::seconds{1}).count())};
}

}  // namespace

void Adapter::progress(void* self) {
  auto& adapter = *static_cast<Adapter*>(self);
  for (;;) {
    if (!adapter.lock_.try_lock()) {  // the lock's holder looks after the wire
      adapter.passed_by_.store(true, std::memory_order_relaxed);
      adapter.sleep_until(adapter.clock_.now() + adapter.longer_absence(), -1);
      continue;
    }
    Instant until;
    int port_fd = -1;
    {
      const Turn turn(adapter, std::adopt_lock);
      if (adapter.stopping_) return;
      adapter.passed_by_.store(false, std::memory_order_relaxed);
      until = adapter.look();
      port_fd = adapter.port_->wait_descriptor(0);
      // Without a descriptor the port is looked at after a tick.
      if (port_fd < 0) until = std::min(until, adapter.clock_.now() + adapter.tick_);
      if (adapter.engine_->holds_wire()) {  // waiting frames would wake it at once
        port_fd = -1;
        adapter.passed_by_.store(true, std::memory_order_relaxed);
      }
      adapter.sleeps_until_ = until;
      adapter.woken_ = false;
    }
    adapter.sleep_until(until, port_fd);
  }
}

// When to look again. While the program polls, there is nothing to do here, and peers need not wake this process.
Instant Adapter::look() {
  sleeps_until_ = Instant::min();
  const Instant now = clock_.now();
  const bool busy = sleepers_ == 0 && is_about(now);
  seen_polls_ = polls_;
  clock_.correct();
  if (busy) {
    be_alone();
    if (!is_hosted()) return now + longer_absence();
    return now + (engine_->owes_notification() ? std::min(kLongestAbsence, tick_) : kHostedAbsence);
  }
  absence_ = kFirstAbsence;
  if (poll(now) != 0 || (!engine_->holds_wire() && !arm())) {
    full_pause_ = {};
    return now;
  }
  if (!engine_->output_pending()) {
    full_pause_ = {};
    return engine_->next_timeout();
  }
  if (!engine_->waits_for_room()) return now;
  // A peer that is stopped may leave the wire full for ever.
  full_pause_ = std::clamp(2 * full_pause_, kFirstFullPause, std::max(kFirstFullPause, tick_));
  return now + full_pause_;
}

// libbypass reports when it goes to sleep, and has a progress thread of its own for a program that computes.
bool Adapter::is_about(Instant now) const {
  const std::uint64_t polls = polls_ - seen_polls_;
  return is_hosted() ? !asked_ && polls != 0 : polls >= kBusyPolls && now - called_at_ < kRecently;
}

Duration Adapter::longer_absence() {
  return absence_ = std::min({absence_ * 2, kLongestAbsence, tick_});
}

// To be called for a program that is about to sleep.
void Adapter::watch_wire() {
  if (!armed_) arm();
  if (!armed_ || passed_by_.load(std::memory_order_relaxed)) wake_progress();
}

// Another of its threads may still sleep: the progress thread must look again, however long it meant to sleep.
void Adapter::stop_watching(Instant now) {
  asked_ = false;
  const Duration pause = engine_->owes_notification() ? std::min(kLongestAbsence, tick_) : kHostedAbsence;
  if (sleeps_until_ > now + pause) wake_progress();
}

// The program's polls suffice: peers need not wake this process.
void Adapter::be_alone() {
  if (!armed_) port_->arm(0);  // this takes what has made the descriptor readable
  port_->disarm(0);
  armed_ = false;
}

// False: look again before sleeping.
bool Adapter::arm() {
  armed_ = port_->arm(0);
  return poll(clock_.now()) == 0 && armed_;
}

void Adapter::sleep_until(Instant when, int port_fd) const {
  pollfd items[2] = {{wake_fd_, POLLIN, 0}, {port_fd, POLLIN, 0}};
  const Duration left = std::max(when - clock_.now(), Duration::zero());
  if (when <= clock_.now()) return;
  const timespec timeout = to_timespec(left);
  const timespec* const most = when == kNever ? nullptr : &timeout;
  if (ppoll(items, 2, most, nullptr) < 0 && errno != EINTR && socket::poll_by_parts(items, most) < 0)
    os::eventfd_take(wake_fd_);  // the caller's value does not matter
  // the program has closed all descriptors that it did not know
  if (((items[0].revents | items[1].revents) & POLLNVAL) != 0) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true, std::memory_order_relaxed))
      BYPASS_LOG_WARN(
          "the program has closed descriptors of ours: what its peers send it is seen late while it sleeps");
    const timespec tick = to_timespec(std::min(left, tick_));
    ppoll(nullptr, 0, &tick, nullptr);
    return;
  }
  if (items[0].revents != 0) os::eventfd_take(wake_fd_);
}

void Adapter::wake_progress() {
  if (woken_) return;
  woken_ = true;
  os::eventfd_add(wake_fd_, 1);
}

}  // namespace bypass::softverbs
