// Progress, its second part: what one look of the thread does, with ports, without ports, and beside their owner.
#include <algorithm>
#include <chrono>
#include <utility>

#include "fastpath/link/peer_links.h"
#include "os/kernel.h"
#include "runtime/family/rights/spare.h"
#include "runtime/progress/progress.h"
#include "socket/api.h"
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

}  // namespace

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
  if (std::exchange(was_lent_, false)) want_ports_.store(true, std::memory_order_release);
  if (!ports_.opened()) return open_step();
  const bool ticked = tick();
  if (socket::has_kin()) ports_.leave_forbidden(shard_);
  if (ports_.following() && want_ports_.exchange(false, std::memory_order_acq_rel)) kin_changed_ = true;
  if (child_expected_.exchange(false, std::memory_order_acq_rel)) kin_changed_ = true;
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

// Another family has the ports, and its end is not reported. After it each process wants them again: the first that
// opens them may lose its rights, or end, while it does.
void Progress::lent_step() {
  ports_.lend(shard_);
  was_lent_ = true;
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
    return;
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
