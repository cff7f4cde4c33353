#include "socket/shard.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <utility>

#include "fastpath/link/peer_links.h"
#include "os/os.h"
#include "os/own/cancellation.h"
#include "socket/api.h"
#include "socket/family/steering.h"
#include "socket/shared/local.h"
#include "socket/wait/readiness.h"
#include "stack/frame/flow_log.h"
#include "stack/memory/arena_packet.h"

namespace bypass::socket {

constinit Policy policy;
Shard* process_shard = nullptr;

namespace {
/// Frames taken in one look at a port. As many as a transmit batch: the output that they cause goes out in one burst.
constexpr std::size_t kBurst = 64;
/// While output waits for room on a device, timers are due this soon.
constexpr Duration kOutputRetry = std::chrono::microseconds(50);
/// An owner that has not polled for this long is computing: its progress thread is called to do the remaining work.
constexpr Duration kOwnerIsAway = std::chrono::microseconds(100);
/// How often the ports' owner is called to tell the devices of a listener: an owner that is stopped, or has just died,
/// does not do it.
constexpr Duration kSteeringLook = std::chrono::milliseconds(1);
}  // namespace

Shard::Shard(ShardLock& lock, Stack& stack, Memory& memory, const Clock& clock, const Budgets& budgets, Wires* wires)
    : lock_(lock), stack_(stack), clock_(clock), budgets_(budgets) {
  context_.memory = &memory;
  void* const place = wires != nullptr ? wires : memory.allocate(sizeof(Wires));
  sharable_ = place != nullptr;
  owns_wires_ = wires == nullptr;
  wires_ = wires != nullptr ? wires : sharable_ ? new (place) Wires{} : new Wires{};
  next_timeout_.store(kNever.time_since_epoch().count(), std::memory_order_relaxed);
}

void Shard::add_port(Port* port, std::uint16_t queue) {
  context_.queues[context_.ports] = PortQueue(port, static_cast<std::uint16_t>(context_.ports), queue);
  // A link that is up already came up after its last owner's sending. Over a new link nothing was sent.
  link_ups_[context_.ports] = wires_->known ? 0 : port->link_ups();
  context_.ports++;
}

Instant Shard::next_timeout() const {
  return Instant(Duration(next_timeout_.load(std::memory_order_relaxed)));
}

Instant Shard::last_poll() const {
  return Instant(Duration(last_poll_.load(std::memory_order_relaxed)));
}

Instant Shard::last_arrival() const {
  return Instant(Duration(last_arrival_.load(std::memory_order_relaxed)));
}

void Shard::stop_if_ended() {
  if (!ended() || thread_signals.serves_the_end) [[likely]]
    return;
  lock_.unlock();
  HandlersOff::count_out();
  constexpr std::int64_t kForLong = 1'000'000'000;  // ns
  while (ended()) os::futex_wait(reinterpret_cast<const std::uint32_t*>(&ended_), 1, kForLong);
  HandlersOff::count_in();
  if (!lock_.lock()) __builtin_trap();
  stop_if_ended();
}

void Shard::go_on_for_others() {
  ended_.store(0, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&ended_), INT_MAX);
}

void Shard::enter() {
  stop_if_ended();
  context_.now = clock_.now();
  context_.shared = wires_->members.load(std::memory_order_relaxed) != 0;
  fresh_ = true;
  if (!owns_wires_) [[unlikely]]
    renew_limits();
}

void Shard::renew_limits() {
  for (std::size_t i = 0; i < context_.ports; i++) context_.queues[i].renew_limit();
}

void ShortHold::end_work() {
  shard_.leave();
  shard_.lock_.unlock();
  wake_collected();
}

// To be done before frames leave that ask for answers. Changes noted by another process than the ports' owner are left
// to the owner.
void Shard::steer() {
  if (stack_.network().flows().pending().empty()) [[likely]]
    return;
  if (!owns_wires_) return wires_->frames_left.store(true, std::memory_order_relaxed);
  const CancellationOff off;  // devices and the kernel are asked
  steer_noted_flows(stack_, context_);
  const std::uint32_t told = wires_->told.load(std::memory_order_relaxed);
  wires_->told.store((told | 1) + 1, std::memory_order_relaxed);
  if ((told & 1) != 0) os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wires_->told), INT_MAX);
}

// Each turn releases the lock, which calls an owner that does not poll.
void Shard::await_steering() {
  if (owns_wires_) [[likely]]
    return;
  for (const Instant deadline = clock_.now() + steering_patience_; clock_.now() < deadline;) {
    std::uint32_t told = 0;
    {
      const Guard guard(*this);
      if (owns_wires_ || stack_.network().flows().pending().empty()) return;
      told = wires_->told.load(std::memory_order_relaxed) | 1;
      wires_->told.store(told, std::memory_order_relaxed);
    }
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&wires_->told), told, kSteeringLook.count());
  }
}

// When somebody must poll next: a timer, or output that waits for room on a device.
Instant Shard::due() const {
  bool waiting = stack_.output_pending();
  for (std::size_t i = 0; i < context_.ports; i++) waiting = waiting || context_.queues[i].pending() != 0;
  const Instant next =
      links_ == nullptr ? stack_.next_timeout() : std::min(stack_.next_timeout(), links_->owner().next_timeout());
  return waiting ? std::min(next, context_.now + kOutputRetry) : next;
}

void Shard::leave() {
  steer();
  const bool links_wait = links_ != nullptr && !links_->owner().flush(context_);
  context_.flush();
  stack_.on_flushed(context_);
  dispatch_events(stack_);
  if (links_wait) [[unlikely]]
    wires_->frames_left.store(true, std::memory_order_relaxed);
  const Instant next = due();
  next_timeout_.store(next.time_since_epoch().count(), std::memory_order_relaxed);
  if (owns_wires_) [[likely]]
    call_sleepers(next);
  else
    leave_to_owner(next);
}

// Calls sleepers of this process: the watcher serves the timers; without a watcher, the progress thread does.
void Shard::call_sleepers(Instant next) {
  WireSleeper& sleeper = wires_->sleeper();
  if (!sleeper.asleep || next >= sleeper.until) return;
  sleeper.until = next;
  collect_wake(sleeper.target);
}

// Leaves this process's work on the wires to the owner. This process keeps nothing of the arena in private memory:
// after a death, a rebuild frees what nobody in the arena holds.
void Shard::leave_to_owner(Instant next) {
  for (std::size_t i = 0; i < context_.ports; i++) context_.queues[i].drain();
  const bool frames = wires_->frames_left.load(std::memory_order_relaxed);
  WireSleeper& sleeper = wires_->sleeper();
  if (sleeper.asleep) {
    if (!frames && next >= sleeper.until) return;
    sleeper.until = frames ? Instant::min() : next;
    return collect_wake(sleeper.target);
  }
  // It is awake, or about to look once more. A program that computes leaves the polling to its progress thread.
  const Instant polled(Duration(wires_->polled.load(std::memory_order_relaxed)));
  if (!frames || wires_->rung || context_.now - polled < kOwnerIsAway) return;
  wires_->rung = true;
  collect_wake(WakeTarget::process(wires_->owner_slot()));
}

std::optional<std::size_t> Shard::poll() {
  Guard guard(*this, std::try_to_lock);
  if (!guard.held()) return std::nullopt;
  return poll_locked();
}

std::size_t Shard::poll_locked() {
  // Reading the clock is a large part of an idle poll: the first poll of a hold uses the time of the hold's beginning.
  if (!fresh_) context_.now = clock_.now();
  fresh_ = false;
  last_poll_.store(context_.now.time_since_epoch().count(), std::memory_order_relaxed);
  if (wires_->members.load(std::memory_order_relaxed) != 0 && owns_wires_) [[unlikely]]
    serve_family();
  else
    served_ = false;
  const bool output = stack_.output_pending();
  if (output) stack_.resume_output(context_);
  std::size_t received = 0;
  for (std::size_t i = 0; i < context_.ports; i++) received += receive(static_cast<std::uint16_t>(i));
  const bool due = stack_.next_timeout() <= context_.now;
  if (due) stack_.on_timers(context_);
  bool moved = links_ != nullptr && links_->owner().poll(context_) != 0;
  if (received != 0 || moved) note_arrival();
  moved = (has_active_local() && poll_local()) || moved;
  idle_ = !output && received == 0 && !due && !served_ && !moved;
  return received;
}

void Shard::serve_family() {
  wires_->polled.store(context_.now.time_since_epoch().count(), std::memory_order_relaxed);
  wires_->rung = false;
  steer();
  served_ = frames_left();
  if (served_) take_left_frames(*wires_, context_);
}

std::size_t Shard::receive(std::uint16_t port) {
  std::array<Packet*, kBurst> frames;
  PortQueue& queue = context_.queues[port];
  const std::size_t n = queue.port()->receive(queue.queue(), frames);
  if (queue.port()->link_ups() != link_ups_[port]) [[unlikely]] {
    link_ups_[port] = queue.port()->link_ups();
    stack_.counters().steer_lost += queue.port()->take_steer_lost();
    stack_.on_link_up(context_, port);
  }
  if (n != 0) take_in(port, {frames.data(), n});
  return n;
}

void Shard::take_in(std::uint16_t port, std::span<Packet*> frames) {
  if (wires_->members.load(std::memory_order_relaxed) != 0) [[unlikely]]
    return take_in_copies(port, frames);
  stack_.on_frames(context_, port, frames);
}

bool Shard::may_glance() const {
  const bool alone = owns_wires_ && wires_->members.load(std::memory_order_relaxed) == 0;
  const bool links = links_ != nullptr && links_->table().used != 0;
  return alone && !links && !has_active_local() && !stack_.output_pending();
}

// Everything but frames (a link that has come up, timers, waiting output, links to peers) waits for the next poll, at
// most some microseconds.
bool Shard::glance(ShortHold& hold) {
  bool come = false;
  for (std::uint16_t i = 0; i < context_.ports; i++) {
    std::array<Packet*, kBurst> frames;
    PortQueue& queue = context_.queues[i];
    const std::size_t n = queue.port()->receive(queue.queue(), frames);
    if (n == 0) continue;
    hold.work();
    take_in(i, {frames.data(), n});
    come = true;
  }
  if (!come) return false;
  fresh_ = false;
  last_poll_.store(context_.now.time_since_epoch().count(), std::memory_order_relaxed);
  note_arrival();
  if (stack_.next_timeout() <= context_.now) stack_.on_timers(context_);
  return true;
}

// Another process cannot read the device's memory, so frames are copied. If the arena has no room, they are taken one
// by one into the memory kept back: its ACKs may be what brings memory back. If that is used up, too, the frame is
// lost, as on a full card.
void Shard::take_in_copies(std::uint16_t port, std::span<Packet*> frames) {
  std::size_t copied = 0;
  for (Packet* frame : frames) {
    Packet* copy = copy_to_arena(*context_.memory, *frame);
    if (copy == nullptr) [[unlikely]] {
      if (copied != 0) stack_.on_frames(context_, port, frames.first(std::exchange(copied, 0)));
      if ((copy = copy_to_kept_back(*context_.memory, *frame)) != nullptr)
        stack_.on_frames(context_, port, {&copy, 1});
      else
        stack_.counters().drop_no_memory++;
    } else {
      frames[copied++] = copy;
    }
    context_.release(frame);
  }
  stack_.on_frames(context_, port, frames.first(copied));
}

bool Shard::arm_locked() {
  bool quiet = true;
  for (std::size_t i = 0; i < context_.ports; i++) {
    PortQueue& queue = context_.queues[i];
    quiet = queue.port()->arm(queue.queue()) && quiet;
  }
  if (links_ != nullptr) quiet = links_->owner().arm() && quiet;
  return quiet;
}

void Shard::disarm_locked() {
  for (std::size_t i = 0; i < context_.ports; i++) {
    PortQueue& queue = context_.queues[i];
    queue.port()->disarm(queue.queue());
  }
}

void Shard::disarm() {
  Guard guard(*this);
  disarm_locked();
}

std::size_t Shard::wait_descriptors(std::span<int> out) {
  std::size_t n = 0;
  Guard guard(*this);  // a thread that has the lock may end a port or a link now
  for (std::size_t i = 0; i < context_.ports && n < out.size(); i++) {
    const PortQueue& queue = context_.queues[i];
    const int fd = queue.port()->wait_descriptor(queue.queue());
    if (fd >= 0) out[n++] = fd;
  }
  if (links_ == nullptr) return n;
  const int links = link_watch_.descriptor(links_->owner());
  if (links >= 0 && n < out.size()) out[n++] = links;
  return n;
}

std::size_t Shard::watchable() const {
  return context_.ports + (links_ != nullptr && links_->owner().changes() != 0 ? 1 : 0);
}

bool Shard::begin_watch(const WakeTarget& target) {
  if (!owns_wires_ || watched_.load(std::memory_order_relaxed)) return false;
  watched_.store(true, std::memory_order_release);
  wires_->watcher.target = target;
  return true;
}

Instant Shard::watch_until(Instant deadline) {
  context_.flush();
  wires_->watcher.asleep = true;
  return wires_->watcher.until = std::min(deadline, due());
}

void Shard::end_watch() {
  wires_->watcher.asleep = false;
  watched_.store(false, std::memory_order_release);
  if (dozer_fd_ >= 0) collect_wake({family().slot(), dozer_fd_, {}});
  dozer_fd_ = -1;
}

bool Shard::begin_progress_sleep(const WakeTarget& target) {
  if (frames_left()) return false;
  wires_->progress = {true, due(), target};
  return true;
}

void Shard::end_progress_sleep() {
  wires_->progress.asleep = false;
}

void Shard::become_owner() {
  owns_wires_ = true;
  wires_->watcher.asleep = wires_->progress.asleep = wires_->rung = false;
}

void Shard::follow() {
  owns_wires_ = false;
}

void Shard::mark_wires() {
  if (!sharable_) return;
  (void)context_.memory->mark_in_use(wires_);
  mark_left_frames(*wires_, *context_.memory);
}

void Shard::use_links(fastpath::PeerLinks& links) {
  links_ = &links;
  context_.hooks = &links.hooks();
}

void Shard::forget_threads() {
  if (links_ != nullptr) links_->owner().forget_devices();
  link_watch_.forget();
  context_.forget_ports();
  owns_wires_ = false;
  watched_.store(false, std::memory_order_relaxed);
  sleepers_.store(0, std::memory_order_relaxed);
  last_poll_.store(0, std::memory_order_relaxed);
  last_arrival_.store(0, std::memory_order_relaxed);
  dozer_fd_ = -1;
  fresh_ = idle_ = false;
  ended_.store(0, std::memory_order_relaxed);
}

bool Shard::doze_while_watched(int event_fd) {
  const bool watched = watched_.load(std::memory_order_relaxed);
  if (watched) dozer_fd_ = event_fd;
  return watched;
}

Guard::Guard(Shard& shard) : shard_(shard) {
  resume();
}

Guard::Guard(Shard& shard, std::try_to_lock_t) : shard_(shard) {
  begin();
  held_ = shard_.lock_.try_lock();
  if (held_)
    shard_.enter();
  else
    end();
}

Guard::~Guard() {
  if (held_) pause();
}

void Guard::pause() {
  shard_.leave();
  held_ = false;
  shard_.lock_.unlock();
  wake_collected();
  end();
}

void Guard::leave_untouched() {
  held_ = false;
  if (shard_.lock_.unlock()) wake_collected();
  end();
}

void Guard::begin() {
  HandlersOff::count_in();
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
}

// A handler that was held back runs in count_out(), and may not return.
void Guard::end() {
  pthread_setcancelstate(cancel_state_, nullptr);
  HandlersOff::count_out();
}

void Guard::resume() {
  begin();
  // This fails only for a handler that interrupted this thread's own hold (api calls return early then: `busy_here`),
  // or in a process without a slot in the family: continuing would corrupt what others use.
  if (!shard_.lock_.lock()) __builtin_trap();
  held_ = true;
  shard_.enter();
}

}  // namespace bypass::socket
