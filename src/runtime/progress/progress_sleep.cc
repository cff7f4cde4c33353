// Progress, its third part: how the thread sleeps between two looks, and what wakes it.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>

#include "os/kernel.h"
#include "os/own/let_others_run.h"
#include "os/poll_by_parts.h"
#include "runtime/progress/progress.h"
#include "socket/family/doorbell.h"
#include "socket/family/kin.h"
#include "socket/family/tickets.h"
#include "socket/shared/local.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/wait.h"

namespace bypass::runtime {

namespace {

/// How long a process sleeps that other processes cannot wake.
constexpr Duration kWithoutDoorbell = std::chrono::milliseconds(10);
/// After so many looks at a sleeping program in which nothing has changed, the next look comes when the program wakes.
/// It then wakes this thread, which costs one more system call.
constexpr int kLooksBeforeDozing = 10;

/// A program may wait without ever sleeping; this thread must sleep, or it would use a processor for nothing.
Duration bounded(Duration budget) {
  constexpr Duration kMost = std::chrono::milliseconds(1);
  return budget < Duration{} ? kMost : std::min(budget, kMost);
}

}  // namespace

// The program sleeps and serves the wires itself: there is nothing to do until it wakes, and the thread that ends the
// watch reports that.
bool Progress::doze(Instant polled) {
  same_looks_ = shard_.watched() && polled == seen_poll_ ? same_looks_ + 1 : 0;
  seen_poll_ = polled;
  if (same_looks_ < kLooksBeforeDozing) return false;
  {
    socket::Guard guard(shard_);
    if (!shard_.doze_while_watched(wake_fd_)) return false;
  }
  // Publishes what has changed since the last time; after that there is nothing more to do.
  while (!nap({}, kNever - Instant{}) && !kernel_called_ && !kin_changed_) (void)tick();
  {
    socket::Guard guard(shard_);
    shard_.end_doze();
  }
  same_looks_ = 0;
  pause_ = tick_;
  return true;
}

// Other processes of the family wait for what comes here. For them a pause is bridged by polling, as a wait of the
// program would do it, before this thread sleeps. False: a thread of the program polls.
bool Progress::poll_until_quiet() {
  constexpr int kBatches = 64;  // then check the program and stopping_ again
  const bool kin = socket::has_kin();
  const Duration patience = kin ? bounded(shard_.budgets().spin) + bounded(shard_.budgets().yield) : Duration{};
  Instant busy = shard_.clock().now();
  Instant seen = shard_.last_poll();
  for (int i = 0; i < kBatches;) {
    if (shard_.last_poll() != seen) return false;
    const auto received = shard_.poll();
    if (!received.has_value()) {
      if (!kin) return false;
      socket::let_others_run();  // perhaps a process that does not poll this wire is inside
      continue;
    }
    own_poll_ = seen = shard_.last_poll();
    if (!shard_.poll_was_idle()) {
      busy = own_poll_;
      i++;
    } else if (own_poll_ - busy >= patience) {
      break;
    } else {
      sched_yield();
    }
  }
  return true;
}

// No thread of the program polls: polls here until the wire is quiet, then sleeps until a port or a timer needs this
// thread. A thread of the program that falls asleep meanwhile also becomes the wires' watcher. Both are woken then, and
// the lock decides which of them arms and disarms, so that no sleeper is left with an unarmed port.
void Progress::sleep_armed() {
  if (!poll_until_quiet()) return;
  {
    socket::Guard guard(shard_);
    // A frame that came before the port was armed wakes nobody: look once more.
    const bool quiet = shard_.arm_locked() && shard_.poll_locked() == 0;
    own_poll_ = shard_.last_poll();
    if (!quiet || !shard_.begin_progress_sleep({shard_.family().slot(), wake_fd_, {}})) {
      if (!shard_.watched()) shard_.disarm_locked();
      return;
    }
  }
  std::array<int, socket::Shard::kMostWaitDescriptors + 1> wires{};
  std::size_t wire_count = shard_.wait_descriptors(wires);
  const bool local = socket::has_local_links();
  if (local) wires[wire_count++] = socket::kernel_halves_descriptor();
  const Instant deadline = shard_.next_timeout();
  const Duration time = deadline == kNever ? kNever - Instant{} : deadline - shard_.clock().now();
  nap({wires.data(), wire_count}, local && mind_local() ? std::min(time, tick_) : time);
  {
    socket::Guard guard(shard_);
    shard_.end_progress_sleep();
    if (!shard_.watched()) shard_.disarm_locked();
    if (local) socket::local_tick(guard);
  }
  if (local) socket::look_at_kernel_halves(shard_.clock().now(), true);
}

// Sleeps until it is called. Peers on this host call it if no sleeper of the program hears all of them. Their messages
// may be meant for a sleeper, so only a limited number is handled in a tick.
void Progress::sleep_hearing(Duration time) {
  constexpr unsigned kWordsATick = 8;
  if (!socket::has_local_links() || socket::are_links_heard()) return sleep_for(time);
  if (const Instant now = shard_.clock().now(); now - words_since_ >= tick_) {
    words_since_ = now;
    words_ = 0;
  }
  if (words_ == kWordsATick) return sleep_for(std::min(time, tick_));
  const int watch = socket::kernel_halves_descriptor();
  words_ += nap({&watch, 1}, time) ? 1 : 0;
}

void Progress::sleep_for(Duration time) {
  nap({}, time);
}

// Other processes of the family have called this one, or its sleepers.
void Progress::hear_family() {
  called_ = kin_changed_ = true;
  const socket::Guard guard(shard_);
  socket::pass_on_wakes();
}

// What is passed on to other processes ends when its message is thrown away, and nobody calls then. Most messages are
// received at once. Returns the time until the next look.
Duration Progress::mind_tickets() {
  constexpr Duration kFirst = std::chrono::milliseconds(20), kMost = std::chrono::milliseconds(640);
  watches_tickets_.store(false);  // before the count is read: one that makes a ticket counts first, then reads this
  const std::uint32_t out = socket::tickets_out();
  if (out == 0 || shard_.family().own().takes_nothing) {
    tickets_seen_ = 0;
    return kNever - Instant{};
  }
  watches_tickets_.store(true);
  const Instant now = shard_.clock().now();
  if (out > tickets_seen_ && (tickets_seen_ == 0 || ticket_pause_ > kFirst)) {
    ticket_pause_ = kFirst;
    tickets_due_ = now + kFirst;
  }
  tickets_seen_ = out;
  if (now < tickets_due_) return tickets_due_ - now;
  socket::settle_tickets();
  tickets_seen_ = socket::tickets_out();
  ticket_pause_ = std::min(2 * ticket_pause_, kMost);
  tickets_due_ = now + ticket_pause_;
  return ticket_pause_;
}

// Sleeps until this or another process, a wire, or the death of a watched process wakes it. False: nothing did.
bool Progress::nap(std::span<const int> wires, Duration time) {
  const int doorbell = doorbell_fd_.load(std::memory_order_acquire);
  nap_set_.assign(1, {wake_fd_, POLLIN, 0});
  nap_set_.push_back({doorbell, POLLIN, 0});  // ppoll ignores a negative descriptor
  const Duration pause = ports_.kernel_pause();
  const bool hears = pause == Duration{} && !kernel_called_;
  nap_set_.push_back({hears ? ports_.kernel_descriptor() : -1, POLLIN, 0});
  if (pause != Duration{}) time = std::min(time, pause);
  const bool is_deaf = doorbell < 0 && told_no_doorbell_.load(std::memory_order_relaxed) && socket::has_kin();
  if (is_deaf) time = std::min(time, kWithoutDoorbell);
  time = std::min({time, tick_again_, program_.longest_sleep(), mind_tickets()});
  for (const int fd : wires) nap_set_.push_back({fd, POLLIN, 0});
  // A process that has ended will be swept as soon as the link is up: its end is known already.
  if (!kin_changed_) kin_.append(nap_set_);
  if (kin_changed_ && ports_.opened()) time = std::min<Duration>(time, std::chrono::milliseconds(5));
  const std::int64_t ns = std::max<std::int64_t>(0, time.count());
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  const bool bounded = time < kNever - Instant{};
  const timespec* const most = bounded ? &limit : nullptr;
  int called = socket::kernel->ppoll(nap_set_.data(), nap_set_.size(), most, nullptr);
  if (called < 0 && errno != EINTR) called = socket::poll_by_parts(nap_set_, most);
  if (called == 0 && is_deaf) hear_family();
  if (called == 0 || (called < 0 && errno == EINTR)) return false;
  if (called < 0) nap_set_[0].revents = nap_set_[1].revents = POLLIN;  // it is not known who called
  if ((nap_set_[0].revents & POLLIN) != 0) drain_wake();
  if ((nap_set_[1].revents & POLLIN) != 0) {
    socket::silence_doorbell(doorbell);
    hear_family();
  }
  kernel_called_ = kernel_called_ || nap_set_[2].revents != 0;
  for (std::size_t i = 3 + wires.size(); i < nap_set_.size(); i++)
    kin_changed_ = kin_changed_ || nap_set_[i].revents != 0;
  return true;
}

}  // namespace bypass::runtime
