#include "runtime/ports/port_set.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>
#include <optional>
#include <utility>

#include "config/port_check.h"
#include "config/rdma_devices.h"
#include "fastpath/link/peer_links.h"
#include "os/log/log.h"
#include "os/log/run_dir.h"
#include "os/net/address_text.h"
#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/family/spare.h"
#include "runtime/family/standing.h"
#include "runtime/host.h"
#include "runtime/ports/plugin.h"
#include "runtime/ports/port_addresses.h"
#include "runtime/undisturbed.h"
#include "socket/family/kin.h"
#include "socket/family/steering.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

// Private to the process. The thread that opens the ports holds it; other callers wait for the result.
pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;

// The signal mask of the forking thread, which holds g_opening: a handler of the program may ask for the ports, too.
std::optional<sigset_t> g_fork_mask;

// Held by the thread that reads the kernel's network; taken last.
pthread_mutex_t g_looking = PTHREAD_MUTEX_INITIALIZER;
constexpr int kLookShare = 16;  // at most one part in so many of the time is used for that

Duration monotonic_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

void tell_openings(socket::Wires& wires) {
  wires.openings.fetch_add(1, std::memory_order_acq_rel);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wires.openings), INT_MAX);
}

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

Backend* PortSet::backend_for(std::size_t index, std::string& problem) {
  return plugins_.get(plugin_of_port(config_, config_.ports[index]), backend_host(), problem);
}

// Reason kNone: no problem is visible.
PortSet::Problem PortSet::check_one(std::size_t index) {
  const PortConfig& port = config_.ports[index];
  std::string problem = quick_check(config_, port);
  if (!problem.empty()) return {Reason::kPortUnavailable, problem};
  if (!plugin_present(plugin_of_port(config_, port), problem)) return {Reason::kPluginMissing, problem};
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
void PortSet::tell_loss() const {
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

bool PortSet::any_link_is_up() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->link() == LinkState::kUp; });
}

bool PortSet::any_is_forbidden() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->forbidden(); });
}

bool PortSet::any_link_is_expected() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->expects_link(); });
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
  if (!opened && !loss_told_ && !shard.family().somebody_may_own()) tell_loss();
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

std::uint16_t PortSet::try_all(std::vector<Entry>& made) {
  const PermittedRights rights;
  const PortAddresses addresses;
  if (network_.changes()) {
    pthread_mutex_lock(&g_looking);
    look_at_kernel(true);
    pthread_mutex_unlock(&g_looking);
  }
  made.resize(config_.ports.size());
  std::uint16_t opened = 0;
  for (std::size_t i = 0; i < made.size(); i++) {
    open_one(i, opened, made[i]);
    if (made[i].port == nullptr) continue;
    open_links(i, made[i]);
    opened++;
  }
  if (opened != 0) open_shm_links();
  return opened;
}

bool PortSet::open_all(socket::Shard& shard) {
  std::vector<Entry> made;
  const std::uint16_t opened = try_all(made);
  if (opened == 0 && !made.empty() && (following() || shard.family().somebody_may_own())) {
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

bool PortSet::open_apart() {
  const Inside inside;
  return try_all(apart_) != 0;
}

// A port notices its link inside receive(), which no other thread calls yet.
bool PortSet::is_linked_apart() {
  return std::all_of(apart_.begin(), apart_.end(), [](const Entry& entry) {
    if (entry.port == nullptr) return true;
    (void)entry.port->receive(0, {});
    return entry.port->link() == LinkState::kUp;
  });
}

bool PortSet::serve_apart(socket::Shard& shard) {
  const Inside inside;
  pthread_mutex_lock(&g_opening);
  const bool serves = claim(shard);
  if (serves) {
    entries_.resize(apart_.size());
    install(shard, apart_);
    if (tried_ != nullptr) tried_(*this);
    following_.store(false, std::memory_order_release);
    state_.store(State::kOpen, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_opening);
  return serves;
}

void PortSet::open_one(std::size_t index, std::uint16_t place, Entry& entry) {
  entry.tried = true;
  PortSpec spec = port_spec(config_, index);
  spec.index = place;  // the index among the ports that did open
  entry.index = place;
  entry.backend = backend_for(index, entry.problem);
  errno = 0;
  if (entry.backend != nullptr) entry.port = entry.backend->open(spec, entry.problem);
  entry.taken = entry.port == nullptr && errno == EADDRINUSE;
  if (entry.port == nullptr) entry.problem = named_problem(config_, config_.ports[index], entry.problem);
}

/// Opens the RDMA device for links, if the configuration wants links: the port's own, or the named one.
void PortSet::open_links(std::size_t index, Entry& entry) {
  const PortConfig& port = config_.ports[index];
  const std::string& device = config_.rdma == RdmaMode::kDevice ? config_.rdma_device : port.target;
  if (!config_.wants_links(port)) return;
  const LiveNetwork::Reading now(network_);
  const std::vector<Prefix>& addresses = now->ports[index].addresses;
  const auto v4 =
      std::find_if(addresses.begin(), addresses.end(), [](const Prefix& prefix) { return prefix.address.is_v4(); });
  if (v4 == addresses.end()) {
    entry.links_problem = "its port has no IPv4 address, which RoCE's packets would come from";
    return;
  }
  entry.link_backend = plugins_.get("verbs", backend_host(), entry.links_problem);
  if (entry.link_backend == nullptr) return;
  fastpath::LinkDeviceSpec spec;
  spec.address = v4->address;
  entry.links = entry.link_backend->open_links(device, spec, entry.links_problem);
}

/// For links to processes of this host with the same run directory, in any network namespace.
void PortSet::open_shm_links() {
  if (!config_.local) return;
  std::string problem;
  const int folder = open_run_dir(run_dir_path(config_.run_dir), true, problem);
  if (folder < 0) {
    BYPASS_LOG_INFO("no shared memory with peers over the ports: %s", problem.c_str());
    return;
  }
  auto kept = fastpath::shm::Descriptor::kept(folder);
  shm_links_ = std::make_unique<fastpath::shm::ShmDevice>(std::move(kept));
}

/// In the order in which they are tried: memory is the nearest.
void PortSet::add_link_devices(socket::Shard& shard) {
  fastpath::PeerLinks* const links = shard.links();
  if (links == nullptr) return;
  links->owner().begin_ownership(shard.context());
  for (const Entry& entry : entries_) {
    if (entry.port == nullptr) continue;
    if (shm_links_ != nullptr) links->owner().add_device(entry.index, *shm_links_);
    if (entry.links != nullptr) links->owner().add_device(entry.index, *entry.links);
  }
}

// --- What the kernel changes on interfaces that it shares

// Called with g_looking held.
void PortSet::look_at_kernel(bool anew) {
  const bool opens = !watch_.is_open() && !watch_failed_;
  if (opens && !watch_.open()) {
    watch_failed_ = true;
    BYPASS_LOG_WARN("the kernel does not tell of changes to its addresses and routes (%s): they are not followed",
                    strerrordesc_np(errno));
  }
  // Read after the notifications: later changes are notified again.
  if (!watch_.hear() && !opens && !anew) return;
  const Duration begin = monotonic_now();
  const bool changed = network_.replace(runtime::follow_kernel(config_, watch_.read()));
  const Duration end = monotonic_now();
  next_look_.store(end + kLookShare * (end - begin), std::memory_order_relaxed);
  if (!changed) return;
  const LiveNetwork::Reading now(network_);
  for (const std::string& line : now->left_out) BYPASS_LOG_WARN("%s", line.c_str());
}

void PortSet::hear_kernel() {
  if (!network_.changes() || socket::is_in_handler()) return;
  const Inside inside;
  const Undisturbed undisturbed;
  if (pthread_mutex_trylock(&g_looking) != 0) return;  // another thread does
  look_at_kernel(false);
  pthread_mutex_unlock(&g_looking);
}

void PortSet::follow_kernel(socket::Shard& shard) {
  if (!network_.changes()) return;
  pthread_mutex_lock(&g_looking);
  look_at_kernel(false);
  pthread_mutex_unlock(&g_looking);
  pthread_mutex_lock(&g_opening);
  if (opened() && !following()) apply_changes(shard);
  pthread_mutex_unlock(&g_opening);
}

Duration PortSet::kernel_pause() const {
  const Duration next = next_look_.load(std::memory_order_relaxed);
  return next == Duration{} ? next : std::max(Duration{}, next - monotonic_now());
}

InterfaceConfig PortSet::interface_of(const Entry& entry, const PortConfig& port) {
  InterfaceConfig interface;
  interface.mac = entry.port->mac();
  interface.mtu = entry.port->caps().mtu;
  if (port.shared && port.mtu != 0) interface.mtu = std::min(interface.mtu, port.mtu);
  interface.addresses = port.addresses;
  interface.routes = port.routes;
  interface.steered = entry.port->caps().steering;
  if (port.shared) interface.kernel_index = static_cast<std::uint32_t>(port.interface_index);
  for (const IpAddress& gateway : port.gateways)
    if (gateway.is_v4()) interface.gateway = gateway;
  return interface;
}

// Lock held. `known`: the stack has the interface already, with the same MAC address.
bool PortSet::set_interface(socket::Shard& shard, const Entry& entry, const PortConfig& port, bool known) {
  const InterfaceConfig interface = interface_of(entry, port);
  Stack& stack = shard.stack();
  const bool set = known ? socket::change_interface(stack, shard.context(), entry.index, interface).ok()
                         : stack.set_interface(entry.index, interface).ok();
  if (!set)
    BYPASS_LOG_ERROR("BYPASS_ADDR: %s:%s could not take its addresses (MTU %u, MAC address %s)", port.kind.c_str(),
                     port.target.c_str(), interface.mtu, to_text(interface.mac).c_str());
  return set;
}

void PortSet::apply_changes(socket::Shard& shard) {
  const LiveNetwork::Reading now(network_);
  for (std::size_t i = 0; i < entries_.size(); i++) {
    const PortConfig& port = now->ports[i];
    if (entries_[i].port == nullptr || !port.shared || is_same_network(port, applied_[i])) continue;
    socket::Guard guard(shard);
    if (set_interface(shard, entries_[i], port, true))
      BYPASS_LOG_INFO("followed a change of %s", port.interface.c_str());
    applied_[i] = port;
  }
}

// Replaces the relays, if this process followed another one.
void PortSet::install(socket::Shard& shard, const std::vector<Entry>& made) {
  applied_ = LiveNetwork::Reading(network_)->ports;
  socket::Guard guard(shard);
  socket::Wires& wires = shard.wires();
  Context& context = shard.context();
  for (std::size_t i = 0; i < context.ports; i++) context.queue(static_cast<std::uint16_t>(i)).drain();
  context.forget_ports();
  wires.opened = 0;
  bool steered = false;
  std::copy(made.begin(), made.end(), entries_.begin());  // the size never changes, because other threads read it
  for (std::size_t i = 0; i < entries_.size(); i++) {
    Port* const port = entries_[i].port;
    if (port == nullptr) continue;
    const std::uint16_t place = entries_[i].index;
    const PortCaps& caps = port->caps();
    const PortConfig& network = applied_[i];
    steered = steered || caps.steering;
    shard.add_port(port, 0);
    const bool known = wires.known && wires.macs[place] == port->mac();
    if (!known || network.shared || wires.caps[place].mtu != caps.mtu)
      (void)set_interface(shard, entries_[i], network, known && network.shared);
    wires.opened |= std::uint32_t{1} << i;
    wires.macs[place] = port->mac();
    wires.caps[place] = caps;
    wires.caps[place].gather = false;  // a relay's frames are copied
    wires.caps[place].arena_frames = true;
  }
  if (context.ports == 0) return;
  if (steered) {
    shard.stack().steer_all(context);
    // At once: a handover's copy of an earlier owner's flows is dropped as soon as keep_flows() has our flows.
    socket::steer_noted_flows(shard.stack(), context);
  }
  keep_flows(shard);
  add_link_devices(shard);
  wires.known = true;
  shard.become_owner();
  wires.open.store(true, std::memory_order_release);
  tell_openings(wires);
  socket::call_kin();
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

void PortSet::close_ports(socket::Shard& shard) {
  const PermittedRights rights;
  {
    socket::Guard guard(shard);
    Context& context = shard.context();
    if (shard.links() != nullptr) shard.links()->owner().drop_devices(context);
    context.flush();
    for (std::size_t i = 0; i < context.ports; i++) context.queue(static_cast<std::uint16_t>(i)).drain();
    context.forget_ports();
    shard.follow();
  }
  shm_links_.reset();
  for (Entry& entry : entries_) {
    if (entry.links != nullptr) entry.link_backend->close_links(entry.links);
    entry.links = nullptr;
    if (entry.backend != nullptr && entry.port != nullptr) entry.backend->close(entry.port);
    entry.port = nullptr;
  }
}

// Lock held; this process is the owner.
void PortSet::keep_flows(socket::Shard& shard) {
  shard.wires().guarded_by.store(handovers_.id(), std::memory_order_release);
  if (handovers_.id() == 0) return;
  for (std::size_t i = 0; i < entries_.size(); i++) {
    const Entry& entry = entries_[i];
    std::string problem;
    if (!config_.ports[i].shared) continue;
    if (entry.port == nullptr) {  // nobody serves what the owner before had there
      handovers_.empty(i);
      continue;
    }
    if (entry.backend->keep_flows(entry.port, handovers_.of(i), problem)) continue;
    record_unguarded(config_.ports[i].interface, problem);
  }
}

void PortSet::record_unguarded(const std::string& interface, const std::string& why) {
  if (std::exchange(unguarded_told_, true)) return;
  const std::string text = interface + ": " + why;
  BYPASS_LOG_INFO("%s, so that a process's end may cost connections of others of its family", text.c_str());
  socket::policy.record_why(-1, static_cast<unsigned>(Reason::kUnguarded), text.c_str());
}

/// For a process that follows an owner.
void PortSet::look_whether_guarded(const socket::Wires& wires) {
  const auto found = std::ranges::find_if(config_.ports, [](const PortConfig& port) { return port.shared; });
  if (found == config_.ports.end()) return;
  if (handovers_.id() == 0 || handovers_.id() != wires.guarded_by.load(std::memory_order_acquire))
    record_unguarded(found->interface, "this process, or the one that has the wire, was forked without a socket there");
}

void PortSet::look_at_handovers(socket::Shard& shard) {
  const socket::Wires& wires = shard.wires();
  pthread_mutex_lock(&g_opening);
  const bool others =
      wires.open.load(std::memory_order_acquire) && wires.guarded_by.load(std::memory_order_acquire) != handovers_.id();
  if (others) handovers_.drop();
  pthread_mutex_unlock(&g_opening);
}

void PortSet::hold_for_fork(socket::Shard& shard) {
  const sigset_t all = all_but_faults();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_mutex_lock(&g_opening);
  g_fork_mask = before;
  const auto is_shared = [](const PortConfig& port) { return port.shared; };
  if (handovers_.id() != 0 || std::ranges::none_of(config_.ports, is_shared) || socket::is_in_handler()) return;
  std::vector<bool> shared;
  for (const PortConfig& port : config_.ports) shared.push_back(port.shared);
  const Inside inside;
  socket::Guard guard(shard);
  handovers_.make(shared, ++shard.wires().handovers);
  if (opened() && !following()) keep_flows(shard);
}

void PortSet::let_go_after_fork() {
  const std::optional<sigset_t> before = std::exchange(g_fork_mask, std::nullopt);
  pthread_mutex_unlock(&g_opening);
  if (before) pthread_sigmask(SIG_SETMASK, &*before, nullptr);
}

void PortSet::drop_in_child() {
  plugins_.drop_in_child();
  if (shm_links_ != nullptr) shm_links_.release()->abandon();
  if (socket::is_in_handler())
    new (&entries_) std::vector<Entry>;  // the old contents are not freed, as nothing may be freed here
  else
    entries_.clear();
  unguarded_told_ = false;
  missed_ = kept_ = false;
  following_.store(false, std::memory_order_relaxed);
  state_.store(State::kClosed, std::memory_order_relaxed);
  pthread_mutex_init(&g_opening, nullptr);  // it was held for the fork
  pthread_mutex_init(&g_looking, nullptr);
  network_.forget_threads();
  watch_.forget();
  const std::optional<sigset_t> before = std::exchange(g_fork_mask, std::nullopt);
  if (before) pthread_sigmask(SIG_SETMASK, &*before, nullptr);
}

}  // namespace bypass::runtime
