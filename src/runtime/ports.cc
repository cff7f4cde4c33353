#include "runtime/ports.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "runtime/address_text.h"
#include "runtime/host.h"
#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "runtime/port_check.h"
#include "socket/kin.h"
#include "socket/os.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

// Process-private: whoever opens holds it, other callers wait for the outcome.
pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;

/// Who holds it is not cancelled, and no handler of the program runs on top that might ask for the ports, too.
class Undisturbed {
 public:
  Undisturbed() {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_);
    const sigset_t all = all_but_faults();
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
  }
  ~Undisturbed() {
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    pthread_setcancelstate(cancel_, nullptr);
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  sigset_t mask_;
  int cancel_ = 0;
};

void tell_openings(socket::Wires& wires) {
  wires.openings.fetch_add(1, std::memory_order_acq_rel);
  socket::os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wires.openings), INT_MAX);
}

/// The owner goes: the others are told, and one of them takes its place.
void hand_over(socket::Shard& shard) {
  socket::Guard guard(shard);
  shard.wires().owner.store(0, std::memory_order_release);
  shard.wires().open.store(false, std::memory_order_release);
  tell_openings(shard.wires());
  socket::call_kin();
}

}  // namespace

Backend* PortSet::backend_for(std::size_t index, std::string& problem) {
  return plugins_.get(plugin_of_kind(config_.ports[index].kind), backend_host(), problem);
}

// Reason kNone: nothing wrong that can be seen.
PortSet::Problem PortSet::check_one(std::size_t index) {
  const PortConfig& port = config_.ports[index];
  std::string problem = quick_check(config_, port);
  if (!problem.empty()) return {Reason::kPortUnavailable, problem};
  if (!plugin_present(plugin_of_kind(port.kind), problem)) return {Reason::kPluginMissing, problem};
  if (port.kind != "dpdk") return {Reason::kNone, ""};
  Backend* const backend = backend_for(index, problem);
  if (backend != nullptr && backend->check(port_spec(config_, index), problem)) return {Reason::kNone, ""};
  return {Reason::kPortUnavailable, problem};
}

bool PortSet::check(std::vector<Problem>& problems) {
  Inside inside;
  for (std::size_t i = 0; i < config_.ports.size(); i++) {
    Problem problem = check_one(i);
    if (problem.reason == Reason::kNone) continue;
    problem.text = named_problem(config_, config_.ports[i], problem.text);
    problems.push_back(std::move(problem));
  }
  return problems.empty();
}

bool PortSet::usable(std::size_t index) const {
  return index >= entries_.size() || !entries_[index].tried || entries_[index].port != nullptr;
}

bool PortSet::open(socket::Shard& shard) {
  if (opened()) return true;
  if (failed()) return false;
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  if (state_.load(std::memory_order_acquire) == State::kClosed) open_or_follow(shard);
  pthread_mutex_unlock(&g_opening);
  return opened();
}

// The ports did not open here, and perhaps do elsewhere. Where nobody else is left, this process tries again: what was
// in the way may have gone.
bool PortSet::is_refused(socket::Shard& shard) {
  socket::Family& family = shard.family();
  return family.own().cannot_own.load(std::memory_order_relaxed) && family.somebody_may_own();
}

// Connections and listeners go silent, and nobody else of the family says so.
void PortSet::tell_loss() const {
  const std::string text = "the process that had the wire has ended, and this one cannot open it: " + refused_;
  BYPASS_LOG_ERROR("%s", text.c_str());
  if (socket::environment.record_why != nullptr)
    socket::environment.record_why(-1, static_cast<unsigned>(Reason::kPortUnavailable), text.c_str());
}

// Where this process cannot open them, another one of the family may: until it has, they are as good as closed.
void PortSet::open_or_follow(socket::Shard& shard) {
  const socket::ProcessSlot& self = shard.family().own();
  state_.store(State::kOpening, std::memory_order_release);
  for (;;) {
    const bool refused = is_refused(shard);
    const bool open = !refused && claim(shard) ? open_all(shard) : follow(shard);
    if (open) return state_.store(State::kOpen, std::memory_order_release);
    if (!self.cannot_own.load(std::memory_order_relaxed)) continue;  // who was opening them has given up
    const bool may_come = shard.family().somebody_may_own();
    return state_.store(may_come ? State::kClosed : State::kFailed, std::memory_order_release);
  }
}

bool PortSet::any_link_is_up() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->link() == LinkState::kUp; });
}

bool PortSet::owner_lives(socket::Shard& shard) {
  const std::uint64_t owner = shard.wires().owner.load(std::memory_order_acquire);
  return owner != 0 && shard.family().alive(socket::Wires::slot_in(owner), static_cast<std::uint32_t>(owner));
}

// True: the ports are this process's to open. The dead have no claim.
bool PortSet::claim(socket::Shard& shard) {
  socket::Guard guard(shard);
  socket::Wires& wires = shard.wires();
  socket::Family& family = shard.family();
  if (owner_lives(shard)) return false;  // what the dead referred to is given up when there is a wire to say so on
  wires.owner.store(socket::Wires::name(family.slot(), family.incarnation()), std::memory_order_relaxed);
  wires.open.store(false, std::memory_order_relaxed);
  tell_openings(wires);
  return true;
}

// False: whoever was opening them has given up or is gone.
bool PortSet::follow(socket::Shard& shard) {
  socket::Wires& wires = shard.wires();
  for (;;) {
    const std::uint32_t seen = wires.openings.load(std::memory_order_acquire);
    const std::uint64_t owner = wires.owner.load(std::memory_order_acquire);
    if (wires.open.load(std::memory_order_acquire)) break;
    if (owner == 0 || shard.family().own().cannot_own.load()) return false;
    constexpr std::int64_t kLook = 20'000'000;  // ns, between looks whether it still lives
    const auto* const openings = reinterpret_cast<const std::uint32_t*>(&wires.openings);
    if (socket::os::futex_wait(openings, seen, kLook) == -ETIMEDOUT && !owner_lives(shard)) return false;
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
  shard.follow();
  following_.store(true, std::memory_order_release);
}

void PortSet::look_after_owner(socket::Shard& shard) {
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  if (following() && !is_refused(shard) && claim(shard)) {
    const bool opened = open_all(shard);
    if (opened) BYPASS_LOG_INFO("took the ports over");
    if (!opened && !loss_told_ && !shard.family().somebody_may_own()) tell_loss();
    loss_told_ = !opened;
  }
  pthread_mutex_unlock(&g_opening);
}

void PortSet::leave_forbidden(socket::Shard& shard) {
  const auto refused = [](const Entry& entry) { return entry.port != nullptr && entry.port->forbidden(); };
  if (following() || !std::any_of(entries_.begin(), entries_.end(), refused) || !shard.family().somebody_may_own())
    return;
  const Inside inside;
  const Undisturbed undisturbed;
  pthread_mutex_lock(&g_opening);
  BYPASS_LOG_INFO("the wire lets this process not in: left to another process of the family");
  close_ports(shard);
  give_up_claim(shard);
  state_.store(State::kClosed, std::memory_order_release);
  pthread_mutex_unlock(&g_opening);
}

bool PortSet::open_all(socket::Shard& shard) {
  std::vector<Entry> made(config_.ports.size());
  std::uint16_t opened = 0;
  for (std::size_t i = 0; i < made.size(); i++) {
    open_one(i, opened, made[i]);
    if (made[i].port != nullptr) opened++;
  }
  if (opened == 0 && (following() || shard.family().somebody_may_own())) {
    for (const Entry& entry : made) BYPASS_LOG_INFO("left to another process of the family: %s", entry.problem.c_str());
    refused_ = made.front().problem;
    give_up_claim(shard);
    return false;
  }
  entries_.resize(made.size());
  install(shard, made);
  if (tried_ != nullptr) tried_(*this);
  if (opened == 0) {
    give_up_claim(shard);
    return false;
  }
  following_.store(false, std::memory_order_release);
  relays_.clear();
  return true;
}

void PortSet::open_one(std::size_t index, std::uint16_t place, Entry& entry) {
  entry.tried = true;
  PortSpec spec = port_spec(config_, index);
  spec.index = place;  // among those that did open
  entry.index = place;
  entry.backend = backend_for(index, entry.problem);
  errno = 0;
  if (entry.backend != nullptr) entry.port = entry.backend->open(spec, entry.problem);
  entry.taken = entry.port == nullptr && errno == EADDRINUSE;
  if (entry.port == nullptr) entry.problem = named_problem(config_, config_.ports[index], entry.problem);
}

// In the place of relays, where this process followed another one.
void PortSet::install(socket::Shard& shard, const std::vector<Entry>& made) {
  socket::Guard guard(shard);
  socket::Wires& wires = shard.wires();
  Context& context = shard.context();
  for (std::size_t i = 0; i < context.ports; i++) context.queue(static_cast<std::uint16_t>(i)).drain();
  context.forget_ports();
  wires.opened = 0;
  bool steered = false;
  std::copy(made.begin(), made.end(), entries_.begin());  // never larger or smaller: others look at it
  for (std::size_t i = 0; i < entries_.size(); i++) {
    Port* const port = entries_[i].port;
    if (port == nullptr) continue;
    const std::uint16_t place = entries_[i].index;
    InterfaceConfig interface;
    interface.mac = port->mac();
    interface.mtu = port->caps().mtu;
    interface.addresses = config_.ports[i].addresses;
    interface.routes = config_.ports[i].routes;
    interface.steered = port->caps().steering;
    steered = steered || interface.steered;
    for (const IpAddress& gateway : config_.ports[i].gateways)
      if (gateway.is_v4()) interface.gateway = gateway;
    shard.add_port(port, 0);
    const bool known = wires.known && wires.macs[place] == interface.mac && wires.caps[place].mtu == interface.mtu;
    if (!known && !shard.stack().network().set_interface(place, interface))
      BYPASS_LOG_ERROR("BYPASS_ADDR: %s:%s could not take its addresses (MTU %u, MAC address %s)",
                       config_.ports[i].kind.c_str(), config_.ports[i].target.c_str(), interface.mtu,
                       to_text(interface.mac).c_str());
    wires.opened |= std::uint32_t{1} << i;
    wires.macs[place] = interface.mac;
    wires.caps[place] = port->caps();
    wires.caps[place].gather = false;  // a relay's frames are copied
    wires.caps[place].arena_frames = true;
  }
  if (context.ports == 0) return;
  if (steered) shard.stack().steer_all(context);
  wires.known = true;
  shard.become_owner();
  wires.open.store(true, std::memory_order_release);
  tell_openings(wires);
  socket::call_kin();
}

void PortSet::give_up_claim(socket::Shard& shard) {
  shard.family().own().cannot_own.store(true, std::memory_order_relaxed);
  hand_over(shard);
}

void PortSet::close(socket::Shard& shard) {
  if (!opened()) return;
  Inside inside;
  close_ports(shard);
  if (!following()) hand_over(shard);
  state_.store(State::kFailed, std::memory_order_release);  // a process that ends opens nothing again
}

void PortSet::close_ports(socket::Shard& shard) {
  {
    socket::Guard guard(shard);
    Context& context = shard.context();
    for (std::size_t i = 0; i < context.ports; i++) context.queue(static_cast<std::uint16_t>(i)).drain();
    context.forget_ports();
    shard.follow();
  }
  for (Entry& entry : entries_) {
    if (entry.backend != nullptr && entry.port != nullptr) entry.backend->close(entry.port);
    entry.port = nullptr;
  }
}

void PortSet::hold_for_fork() {
  pthread_mutex_lock(&g_opening);
}

void PortSet::let_go_after_fork() {
  pthread_mutex_unlock(&g_opening);
}

void PortSet::drop_in_child() {
  plugins_.drop_in_child();
  entries_.clear();
  following_.store(false, std::memory_order_relaxed);
  state_.store(State::kClosed, std::memory_order_relaxed);
  pthread_mutex_init(&g_opening, nullptr);  // held for the fork
}

}  // namespace bypass::runtime
