#include "runtime/progress/progress.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <new>
#include <utility>

#include "fastpath/link/peer_links.h"
#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/let_others_run.h"
#include "os/poll_by_parts.h"
#include "runtime/family/spare.h"
#include "runtime/host.h"
#include "socket/api.h"
#include "socket/family/doorbell.h"
#include "socket/family/kin.h"
#include "socket/family/steering.h"
#include "socket/shared/local.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/wait.h"

namespace bypass::runtime {

namespace {
/// How often a family without wires checks whether one of its processes has died.
constexpr Duration kSweepEvery = std::chrono::seconds(1);
/// How long a listener's process must have lived before the ports are opened for it.
constexpr Duration kLateOpen = std::chrono::milliseconds(30);
/// How long a family's ports wait for a process that waits for the wire, before they are opened anyway.
constexpr Duration kForAWaiter = std::chrono::milliseconds(300);
/// The longest pause between looks at a program without active connections: Linux would have sent a delayed ACK by
/// then, too (TCP_DELACK_MIN).
constexpr Duration kLongestPause = std::chrono::milliseconds(40);
/// The first of these pauses for a program that streams: its last bytes may be held until its peer answers.
constexpr Duration kWhileBytesAreHeld = std::chrono::milliseconds(1);
/// The same without a wire, and while a family's wires have no owner though they are needed.
constexpr Duration kPauseWithoutWires = std::chrono::milliseconds(150);
constexpr Duration kPauseWhileLent = std::chrono::seconds(1);
constexpr Duration kPauseWhileRecalled = std::chrono::milliseconds(20);
constexpr Duration kPauseWhilePolled = std::chrono::milliseconds(20);
/// A follower has nothing to do between calls but to publish its own part of what `bypass` shows.
constexpr Duration kFollowersTick = std::chrono::milliseconds(500);
/// The pause before a process takes ports over for others: 10 ms.
constexpr timespec kPassiveWait{0, 10'000'000};
/// After so many looks at a sleeping program in which nothing has changed, the next look comes when the program wakes.
/// It then wakes this thread, which costs one more system call.
constexpr int kLooksBeforeDozing = 10;
/// A program may wait without ever sleeping; this thread must sleep, or it would use a processor for nothing.
Duration bounded(Duration budget) {
  constexpr Duration kMost = std::chrono::milliseconds(1);
  return budget < Duration{} ? kMost : std::min(budget, kMost);
}

}  // namespace

bool Progress::start() {
  if (runs()) return true;
  if (socket::is_in_handler()) return false;  // libc allocates to make a thread
  if (running_.exchange(true, std::memory_order_acq_rel)) return true;
  stopping_.store(false, std::memory_order_relaxed);
  ended_.store(0, std::memory_order_relaxed);
  kin_changed_ = true;
  wake_fd_ = own_high(socket::kernel->eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Not done by the new thread: when that first runs, the program may be in its sandbox already, without /proc and
  // descriptors.
  program_.begin();
  if (wake_fd_ >= 0 && run_thread("bypass-progress", run, this, &thread_) == 0) return true;
  program_.end();
  close_wake();
  running_.store(false, std::memory_order_relaxed);
  return false;
}

void Progress::forget() {
  running_.store(false, std::memory_order_relaxed);
  stopping_.store(false, std::memory_order_relaxed);
  want_ports_.store(false, std::memory_order_relaxed);
  doorbell_fd_.store(-1, std::memory_order_relaxed);
  wake_fd_ = -1;
  called_ = is_others_ = false;
  kin_changed_ = kernel_called_ = true;
  // The parent's thread may have been changing either: their contents are not freed.
  new (&kin_) KinWatch;
  new (&program_) ProgramThreads;
  new (&nap_set_) std::vector<pollfd>;
}

void Progress::join_family() {
  if (doorbell_fd_.load(std::memory_order_acquire) >= 0 || !running_.load(std::memory_order_acquire)) return;
  socket::Doorbell bell;
  const int fd = socket::make_doorbell(bell);
  if (fd < 0) {
    if (!std::exchange(told_no_doorbell_, true)) BYPASS_LOG_WARN("no doorbell: forked processes cannot wake this one");
    return;
  }
  int expected = -1;
  {
    const socket::Guard guard(shard_);  // if two threads come here, the name is that of the one that stays
    if (doorbell_fd_.compare_exchange_strong(expected, fd)) shard_.family().own().doorbell = bell;
  }
  expected == -1 ? wake() : socket::close_own(fd);
}

void Progress::expect_child(int pid) {
  if (pid > 0 && runs() && ports_.opened() && shard_.owns_wires()) kin_.offer(static_cast<std::uint32_t>(pid));
}

void Progress::close_wake() {
  if (wake_fd_ < 0) return;
  own_descriptor(wake_fd_, false);
  socket::kernel->close(wake_fd_);
  wake_fd_ = -1;
}

void Progress::stop() {
  if (!running_.load(std::memory_order_acquire)) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  if (!is_this_thread()) join_thread(thread_);
  close_wake();
  kin_.clear();
  running_.store(false, std::memory_order_release);
}

void Progress::end_in_handler(void (*last)(void*), void* argument) {
  constexpr int kLooks = 100;
  constexpr std::int64_t kLook = 10'000'000;  // ns
  if (!running_.load(std::memory_order_acquire)) return;
  last_call_ = last;
  last_argument_ = argument;
  stopping_.store(true, std::memory_order_release);
  wake();
  for (int i = 0; i < kLooks && ended_.load(std::memory_order_acquire) == 0; i++)
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&ended_), 0, kLook);
}

bool Progress::is_only_other() const {
  return runs() && all_threads() == 2;
}

bool Progress::pause() {
  if (!running_.load(std::memory_order_acquire) || want_ports_.load(std::memory_order_acquire)) return false;
  if (!is_only_other()) return false;  // then only the caller calls start(), stop() or wake() meanwhile
  vanish();
  return true;
}

// A thread is joined before it is gone: the kernel wakes the joiner while the thread ends. A tracer may delay that.
void Progress::vanish() {
  if (!running_.load(std::memory_order_acquire)) return;
  stop();
  constexpr timespec kLook{0, 50'000};
  const auto process = static_cast<long>(getpid());
  for (int i = 0; i < 2000 && os::call(SYS_tgkill, process, task_.load(), 0) == 0; i++)
    os::call(SYS_nanosleep, os::address(&kLook), 0);
}

void Progress::want_ports() {
  if (!want_ports_.exchange(true, std::memory_order_acq_rel)) wake();
}

void Progress::wake() {
  const std::uint64_t one = 1;
  if (wake_fd_ >= 0) (void)!socket::kernel->write(wake_fd_, &one, sizeof one);
}

void Progress::run(void* argument) {
  auto& self = *static_cast<Progress*>(argument);
  socket::thread_signals.serves_the_end = true;
  self.task_.store(static_cast<int>(os::call(SYS_gettid)));
  self.loop();
  self.program_.end();
  if (self.last_call_ != nullptr) self.last_call_(self.last_argument_);
  self.ended_.store(1, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&self.ended_), INT_MAX);
}

bool Progress::is_this_thread() const {
  return task_.load(std::memory_order_relaxed) == static_cast<int>(os::gettid());
}

void Progress::loop() {
  while (!stopping_.load(std::memory_order_acquire)) {
    step();
    if (program_.any_left(shard_.clock().now())) continue;
    const bool exits = program_.exits();
    const int status = program_.status();
    program_.end();  // the process is about to end, and makes no further looks
    end_without_program(exits, status, before_exit_);
  }
}

// Looks may follow each other faster than ticks. True: a tick has passed since the last time.
bool Progress::tick() {
  const Instant now = shard_.clock().now();
  if (const Duration since = now - ticked_; since < tick_) {
    tick_again_ = std::min(tick_again_, tick_ - since);
    return false;
  }
  ticked_ = now;
  if (tick_call_ != nullptr) tick_again_ = tick_call_(tick_argument_);
  return true;
}

void Progress::step() {
  if (std::exchange(kernel_called_, false)) ports_.follow_kernel(shard_);
  if (PortSet::lent(shard_)) return lent_step();
  if (!ports_.opened()) return open_step();
  const bool ticked = tick();
  if (socket::has_kin()) ports_.leave_forbidden(shard_);
  if (ports_.following() && want_ports_.exchange(false, std::memory_order_acq_rel)) kin_changed_ = true;
  if (std::exchange(kin_changed_, false)) mind_family();
  if (!ports_.opened()) return want_ports_.store(true, std::memory_order_release);
  if (ports_.following()) return follow_step();
  if (std::exchange(called_, false)) return sleep_armed();
  const Instant polled = shard_.last_poll();
  const bool by_others = polled != own_poll_;
  const bool watched = shard_.watched();
  // Sleepers beside the watcher rely on this thread if the watcher gets up and does not return.
  if (shard_.sleepers() > (watched ? 1 : 0)) pause_ = tick_;
  if (shard_.links() != nullptr && shard_.links()->take_held()) pause_ = std::min(tick_, kWhileBytesAreHeld);
  const Instant now = shard_.clock().now();
  const Duration quiet = now - polled;
  const bool active = is_active(now, shard_.last_arrival());
  if (ticked) local_wants_tick_ = mind_local();
  if (active || local_wants_tick_) pause_ = tick_;
  const Duration left = pace_.patience(pause_, active);
  if (watched || (by_others && quiet < left)) {
    pace_.on_present();
    if (!socket::has_local_links() && doze(polled)) return;
    // Work that other processes leave for a program that has polled, and now computes, waits for this thread.
    if (!watched && socket::has_kin()) pause_ = std::min(pause_, std::max(tick_, quiet));
    const Duration time = watched ? left : left - quiet;
    quiet >= tick_ ? sleep_hearing(time) : sleep_for(time);
    pause_ = std::min(2 * pause_, std::max(tick_, kLongestPause));
    return;
  }
  pace_.on_away();
  pause_ = tick_;
  sleep_armed();
}

// By the clock, as much may end a sleep early: a fork that is being prepared, to begin with.
void Progress::wait_while(Duration longest, bool (*still)(const Progress&)) {
  const Instant latest = shard_.clock().now() + longest;
  for (Instant now;
       (now = shard_.clock().now()) < latest && still(*this) && !stopping_.load(std::memory_order_acquire);)
    sleep_for(std::min(latest - now, kLateOpen));
}

// Whether no process has opened the ports, or is about to.
bool Progress::untouched() const {
  return shard_.wires().openings.load(std::memory_order_relaxed) == 0;
}

// Another family has the ports, and its end is not reported.
void Progress::lent_step() {
  ports_.lend(shard_);
  if (doorbell_fd_.load(std::memory_order_relaxed) < 0 && socket::has_kin()) join_family();
  bool is_being_made = false;
  {
    const socket::Guard guard(shard_);
    const std::uint64_t founder = spare_.founder;
    is_being_made =
        founder != 0 && shard_.family().alive(socket::Wires::slot_in(founder), static_cast<std::uint32_t>(founder));
  }
  if (!is_being_made && !spare::is_driven()) {
    shard_.wires().lent.store(false, std::memory_order_release);
    return want_ports_.store(true, std::memory_order_release);
  }
  called_ = false;
  (void)tick();
  mind_local() ? sleep_for(tick_) : sleep_hearing(spare::is_recalling() ? kPauseWhileRecalled : kPauseWhileLent);
}

// A listener's ports are opened a little later. Ports that another process must open are opened when that process
// calls.
void Progress::open_step() {
  if (std::exchange(called_, false) && is_others_) want_ports_.store(true, std::memory_order_release);
  if (!want_ports_.load(std::memory_order_acquire) || ports_.failed()) return local_step();
  wait_while(kLateOpen, [](const Progress& self) { return !self.ports_.opened(); });
  if (stopping_.load(std::memory_order_acquire)) return;
  if (doorbell_fd_.load(std::memory_order_relaxed) < 0 && socket::has_kin()) join_family();
  kin_changed_ = true;
  // A master listens and forks: a worker that will wait for the wire should get the ports, or every frame would have to
  // be passed on.
  wait_while(kForAWaiter, [](const Progress& self) { return socket::has_kin() && self.untouched(); });
  if (stopping_.load(std::memory_order_acquire) || ports_.opened()) return;
  // A forked process may have closed what it inherited meanwhile, or a program its listener: then the next process may
  // have the wire. A process that needs the wire later says so again.
  want_ports_.store(false, std::memory_order_release);
  if (!is_wire_needed()) return local_step();
  is_others_ = !ports_.open(shard_) && !ports_.failed();
  if (is_others_) local_step();
}

bool Progress::is_wire_needed() {
  const socket::Guard guard(shard_);
  return socket::is_wire_needed(guard);
}

// Serves connections within the host. True: call it again in a tick.
bool Progress::mind_local() {
  if (!socket::has_local_links()) return false;
  socket::look_at_kernel_halves(shard_.clock().now(), true);
  socket::Guard guard(shard_);
  socket::local_tick(guard);
  return socket::local_wants_tick(guard);
}

// If the wires have no owner, this notices that a process of the family has died.
void Progress::sweep_beside_nobody() {
  if (!socket::has_kin() || !socket::has_local_links()) return;
  socket::Guard guard(shard_);
  const bool alone = shard_.wires().owner_slot() == socket::kNoSlot;
  if (!alone || guard.context().now - swept_ < kSweepEvery) return;
  swept_ = guard.context().now;
  socket::sweep_family(guard);
}

// Without a wire: handles messages of peers on this host while the program is elsewhere. Sleeping threads of the
// program hear their own connections, but may not hear others.
void Progress::local_step() {
  (void)tick();
  if (!socket::has_local_links()) return sleep_for(kNever - Instant{});
  // Done even while the program polls: it may look at other sockets only.
  const Duration pause = mind_local() ? tick_ : kPauseWithoutWires;
  sweep_beside_nobody();
  const Duration quiet = shard_.clock().now() - shard_.last_poll();
  // The program may be about to do something else for long, while a peer waits for this end's answer.
  if (quiet < tick_ && !socket::are_links_heard()) return sleep_for(std::min(pause, kPauseWhilePolled));
  sleep_hearing(pause);
}

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

void Progress::drain_wake() {
  std::uint64_t drained = 0;
  (void)!socket::kernel->read(wake_fd_, &drained, sizeof drained);
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

// Sleeps until this or another process, a wire, or the death of a watched process wakes it. False: nothing did.
bool Progress::nap(std::span<const int> wires, Duration time) {
  const int doorbell = doorbell_fd_.load(std::memory_order_acquire);
  nap_set_.assign(1, {wake_fd_, POLLIN, 0});
  nap_set_.push_back({doorbell, POLLIN, 0});  // ppoll ignores a negative descriptor
  const Duration pause = ports_.kernel_pause();
  const bool hears = pause == Duration{} && !kernel_called_;
  nap_set_.push_back({hears ? ports_.kernel_descriptor() : -1, POLLIN, 0});
  if (pause != Duration{}) time = std::min(time, pause);
  time = std::min({time, tick_again_, program_.longest_sleep()});
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
  if (called == 0 || (called < 0 && errno == EINTR)) return false;
  if (called < 0) nap_set_[0].revents = nap_set_[1].revents = POLLIN;  // it is not known who called
  if ((nap_set_[0].revents & POLLIN) != 0) drain_wake();
  if ((nap_set_[1].revents & POLLIN) != 0) {
    socket::silence_doorbell(doorbell);
    called_ = kin_changed_ = true;
    const socket::Guard guard(shard_);
    socket::pass_on_wakes();
  }
  kernel_called_ = kernel_called_ || nap_set_[2].revents != 0;
  for (std::size_t i = 3 + wires.size(); i < nap_set_.size(); i++)
    kin_changed_ = kin_changed_ || nap_set_[i].revents != 0;
  return true;
}

// Releases what dead processes had, takes over the ports of a dead owner, and watches new processes. Open connections
// of a dead process end with FIN or RST, and an RST is sent only once. So if the wire was just taken over, this waits
// until the other end is back, or a second has passed.
bool Progress::may_sweep() {
  constexpr Duration kPatience = std::chrono::seconds(1);
  if (ports_.any_link_is_up()) {
    dark_since_ = kNever;
    return true;
  }
  const Instant now = shard_.clock().now();
  if (dark_since_ == kNever) dark_since_ = now;
  return now - dark_since_ > kPatience;
}

void Progress::mind_family() {
  // No process calls one that is alone: its doorbell is made before its first fork, in the program's own call.
  if (doorbell_fd_.load(std::memory_order_relaxed) < 0 && socket::has_kin()) join_family();
  if (ports_.following()) {
    // A process that never waits for the wire (a master beside its workers) should be the last to take the ports:
    // arriving frames are for others.
    const bool passive = shard_.last_poll() == Instant{};
    if (passive && !ports_.owner_lives(shard_)) socket::kernel->ppoll(nullptr, 0, &kPassiveWait, nullptr);
    ports_.look_after_owner(shard_);
    ports_.look_at_handovers(shard_);
  } else if (may_sweep()) {
    socket::Guard guard(shard_);
    socket::sweep_family(guard);
  } else {
    kin_changed_ = true;
  }
  if (!kin_.refresh(shard_)) kin_changed_ = true;
}

// Another process serves the wires and the timers.
void Progress::follow_step() {
  called_ = false;
  if (socket::keeps_numbers()) {
    const socket::Guard guard(shard_);
    socket::give_numbers_back();
  }
  sweep_beside_nobody();
  const bool missed = ports_.missed();
  if (mind_local())
    sleep_for(tick_);
  else
    sleep_hearing(missed ? kPauseWithoutWires : kFollowersTick);
  // No process could open the ports that an owner has left: one has to try again.
  kin_changed_ = kin_changed_ || missed;
}

}  // namespace bypass::runtime
