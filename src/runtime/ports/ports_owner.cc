// PortSet, its second part: which process of a family has the ports, how the others follow it, and how ports are left,
// lent and taken over.
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <string>
#include <utility>

#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/family/rights/spare.h"
#include "runtime/ports/port_set.h"
#include "runtime/ports/ports_lock.h"
#include "runtime/undisturbed.h"
#include "socket/family/kin.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

}  // namespace

pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_looking = PTHREAD_MUTEX_INITIALIZER;

void tell_openings(socket::Wires& wires) {
  wires.openings.fetch_add(1, std::memory_order_acq_rel);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wires.openings), INT_MAX);
}

namespace {

/// Lock held.
void leave_to_nobody(socket::Wires& wires) {
  wires.owner.store(0, std::memory_order_release);
  wires.open.store(false, std::memory_order_release);
  tell_openings(wires);
}

/// The owner goes: it tells the others, and one of them takes its place.
void hand_over(socket::Shard& shard) {
  spare::leave_ports();
  socket::Guard guard(shard);
  leave_to_nobody(shard.wires());
  socket::call_kin();
}

}  // namespace

bool PortSet::open(socket::Shard& shard) {
  if (opened()) return true;
  if (failed() || socket::is_in_handler()) return false;
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  if (state_.load(std::memory_order_acquire) == State::kClosed && !lent(shard)) open_or_follow(shard);
  pthread_mutex_unlock(&g_opening);
  return opened();
}

// The ports did not open here, but may open in another process. If no other process is left, this process tries again:
// the obstacle may have gone.
bool PortSet::is_refused(socket::Shard& shard) {
  return shard.family().own().cannot_own.load(std::memory_order_relaxed) && somebody_may_open(shard);
}

// A driver that is still to be made also counts.
bool PortSet::somebody_may_open(socket::Shard& shard) {
  const socket::Wires& wires = shard.wires();
  return wires.keeper.lives() || wires.heir.lives() || shard.family().somebody_may_own();
}

// Connections and listeners get no answer any more, and no other process of the family reports it.
void PortSet::report_loss() const {
  const std::string text = "the process that had the wire has ended, and this one cannot open it: " + refused_;
  BYPASS_LOG_ERROR("%s", text.c_str());
  socket::policy.record_why(-1, static_cast<unsigned>(Reason::kPortUnavailable), text.c_str());
}

// False: no process waits for that. Otherwise a waiting one has opened them, or has ended.
bool PortSet::call_driver(socket::Shard& shard) {
  constexpr std::int64_t kLook = 20'000'000;  // ns
  constexpr int kLooks = 500;                 // 10 s in total: DPDK takes some tenths of a second
  const socket::Wires& wires = shard.wires();
  if (!spare::call_driver()) return false;
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t seen = wires.openings.load(std::memory_order_acquire);
    if (wires.open.load(std::memory_order_acquire) || !spare::called_lives()) break;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&wires.openings), seen, kLook);
  }
  return true;
}

// If this process cannot open the ports, another process of the family may. Until it has, they count as closed.
void PortSet::open_or_follow(socket::Shard& shard) {
  const socket::ProcessSlot& self = shard.family().own();
  state_.store(State::kOpening, std::memory_order_release);
  for (;;) {
    const bool refused = is_refused(shard);
    const bool open = !refused && claim(shard) ? open_all(shard) : follow(shard);
    if (open) return state_.store(State::kOpen, std::memory_order_release);
    if (lent(shard)) return state_.store(State::kClosed, std::memory_order_release);
    if (call_driver(shard)) continue;
    if (!self.cannot_own.load(std::memory_order_relaxed)) continue;  // the process that was opening them has given up
    const bool may_come = somebody_may_open(shard);
    return state_.store(may_come ? State::kClosed : State::kFailed, std::memory_order_release);
  }
}

bool PortSet::owner_lives(socket::Shard& shard) {
  const std::uint64_t owner = shard.wires().owner.load(std::memory_order_acquire);
  return owner != 0 && shard.family().alive(socket::Wires::slot_in(owner), static_cast<std::uint32_t>(owner));
}

// True: this process must open the ports. Dead processes have no claim.
bool PortSet::claim(socket::Shard& shard) {
  socket::Guard guard(shard);
  socket::Wires& wires = shard.wires();
  socket::Family& family = shard.family();
  // references of dead processes are released when there is a wire on which to tell peers
  if (owner_lives(shard)) return false;
  if (!spare::claim_ports()) {
    wires.lent.store(true, std::memory_order_release);
    return false;
  }
  wires.leaving.store(false, std::memory_order_relaxed);
  wires.owner.store(socket::Wires::name(family.slot(), family.incarnation()), std::memory_order_relaxed);
  wires.open.store(false, std::memory_order_relaxed);
  tell_openings(wires);
  return true;
}

// False: the process that was opening them has given up, or is gone.
bool PortSet::follow(socket::Shard& shard) {
  socket::Wires& wires = shard.wires();
  for (;;) {
    const std::uint32_t seen = wires.openings.load(std::memory_order_acquire);
    const std::uint64_t owner = wires.owner.load(std::memory_order_acquire);
    if (wires.open.load(std::memory_order_acquire)) break;
    if (owner == 0 || shard.family().own().cannot_own.load()) return false;
    constexpr std::int64_t kLook = 20'000'000;  // ns between checks whether it still lives
    const auto* const openings = reinterpret_cast<const std::uint32_t*>(&wires.openings);
    if (os::futex_wait(openings, seen, kLook) == -ETIMEDOUT && !owner_lives(shard)) return false;
  }
  attach_relays(shard);
  return true;
}

void PortSet::attach_relays(socket::Shard& shard) {
  socket::Guard guard(shard);
  socket::Wires& wires = shard.wires();
  Context& context = shard.context();
  entries_.assign(config_.ports.size(), Entry{});
  relays_.clear();
  context.forget_ports();
  for (std::size_t i = 0; i < entries_.size(); i++) {
    entries_[i].tried = true;
    if ((wires.opened >> i & 1) == 0) continue;
    entries_[i].index = static_cast<std::uint16_t>(context.ports);
    relays_.push_back(std::make_unique<socket::RelayPort>(wires, *context.memory, entries_[i].index));
    entries_[i].port = relays_.back().get();
    shard.add_port(entries_[i].port, 0);
  }
  look_whether_guarded(wires);
  shard.follow();
  following_.store(true, std::memory_order_release);
}

// Whether a process must open the ports. A dead owner is recorded: otherwise its watchers would be told for ever. If
// the wire is not needed, it is left for the next process that wants it, perhaps the program that the owner has
// executed.
bool PortSet::is_missed(socket::Shard& shard) {
  if (lent(shard)) return false;
  socket::Guard guard(shard);
  if (owner_lives(shard)) return false;
  const bool died = shard.wires().owner.load(std::memory_order_relaxed) != 0;
  if (died) leave_to_nobody(shard.wires());
  if (socket::is_wire_needed(guard)) return true;
  if (died) socket::sweep_family(guard);
  return false;
}

void PortSet::take_over(socket::Shard& shard) {
  const bool opened = open_all(shard);
  if (opened) BYPASS_LOG_INFO("took the ports over");
  if (!opened && !loss_told_ && !shard.family().somebody_may_own()) report_loss();
  loss_told_ = !opened;
}

void PortSet::look_after_owner(socket::Shard& shard) {
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  const bool known = std::exchange(missed_, following() && is_missed(shard));
  const bool refused = missed_ && is_refused(shard);
  if (missed_ && !refused && claim(shard)) take_over(shard);
  missed_ = missed_ && following();
  pthread_mutex_unlock(&g_opening);
  if (!refused || known) return;
  const socket::Guard guard(shard);  // they do nothing until they learn that the wire is needed
  socket::call_kin();
}

bool PortSet::keep_to_the_end() {
  pthread_mutex_lock(&g_opening);
  kept_ = opened() && !following();
  pthread_mutex_unlock(&g_opening);
  return kept_;
}

void PortSet::leave_forbidden(socket::Shard& shard) {
  if (following() || !any_is_forbidden()) return;
  if (!shard.family().somebody_may_own()) {
    const socket::Guard guard(shard);
    return socket::call_driver();
  }
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  if (!kept_) {
    BYPASS_LOG_INFO("the wire lets this process not in: left to another process of the family");
    close_ports(shard);
    give_up_claim(shard);
    state_.store(State::kClosed, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_opening);
}

// If no other process may open them, only the kernel's listeners are left: nothing is kept from them.
void PortSet::give_up_claim(socket::Shard& shard) {
  shard.family().own().cannot_own.store(true, std::memory_order_relaxed);
  hand_over(shard);
  if (!shard.family().somebody_may_own()) handovers_.empty();
}

void PortSet::close(socket::Shard& shard) {
  if (!opened()) return;
  Inside inside;
  close_ports(shard);
  if (!following()) hand_over(shard);
  state_.store(State::kFailed, std::memory_order_release);  // a process that ends never opens them again
}

void PortSet::give_up(socket::Shard& shard, const std::string& why) {
  pthread_mutex_lock(&g_opening);
  if (opened()) {
    close_ports(shard);
    if (!following()) hand_over(shard);
  }
  entries_.assign(config_.ports.size(), Entry{});
  for (Entry& entry : entries_) {
    entry.tried = true;
    entry.problem = why;
  }
  relays_.clear();
  handovers_.drop();
  following_.store(false, std::memory_order_release);
  state_.store(State::kFailed, std::memory_order_release);
  pthread_mutex_unlock(&g_opening);
}

// Called with g_opening held. They may be opened or followed again.
void PortSet::shut(socket::Shard& shard) {
  if (opened()) {
    close_ports(shard);
    if (!following()) hand_over(shard);
  }
  entries_.clear();
  relays_.clear();
  missed_ = false;
  following_.store(false, std::memory_order_release);
  state_.store(State::kClosed, std::memory_order_release);
}

void PortSet::hold_for_exec(socket::Shard& shard) {
  pthread_mutex_lock(&g_opening);
  make_handovers(shard);
}

void PortSet::go_on_after_exec() {
  pthread_mutex_unlock(&g_opening);
}

void PortSet::leave(socket::Shard& shard) {
  pthread_mutex_lock(&g_opening);
  shut(shard);
  handovers_.drop();
  pthread_mutex_unlock(&g_opening);
}

bool PortSet::lent(socket::Shard& shard) {
  return shard.wires().lent.load(std::memory_order_acquire);
}

void PortSet::lend(socket::Shard& shard) {
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  if (opened() && !kept_) shut(shard);
  pthread_mutex_unlock(&g_opening);
}

}  // namespace bypass::runtime
