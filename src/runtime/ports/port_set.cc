#include "runtime/ports/port_set.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "config/port_check.h"
#include "config/rdma_devices.h"
#include "fastpath/link/peer_links.h"
#include "os/log/log.h"
#include "os/log/run_dir.h"
#include "os/own/own_work.h"
#include "runtime/family/keeper/notice.h"
#include "runtime/family/rights/spare.h"
#include "runtime/family/standing.h"
#include "runtime/host.h"
#include "runtime/ports/plugin.h"
#include "runtime/ports/port_addresses.h"
#include "runtime/ports/ports_lock.h"
#include "socket/family/kin.h"
#include "socket/family/steering.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

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

bool PortSet::any_link_is_up() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->link() == LinkState::kUp; });
}

bool PortSet::any_is_forbidden() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.port != nullptr && entry.port->forbidden(); });
}

// The peer of a wire that another process, or another image, had before comes back within some milliseconds.
bool PortSet::any_link_is_expected(Instant now) const {
  constexpr Duration kForThePeer = std::chrono::milliseconds(500);
  const bool comes_back = now - taken_over_ < kForThePeer;
  return std::any_of(entries_.begin(), entries_.end(), [=](const Entry& entry) {
    return entry.port != nullptr && (entry.port->expects_link() || (comes_back && entry.port->link_ups() == 0));
  });
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
  await_keepers_end(config_);
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
  if (try_all(apart_) != 0) return true;
  for (const Entry& entry : apart_)
    BYPASS_LOG_WARN("no port for the workers that give rights up: %s", entry.problem.c_str());
  return false;
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
  if (wires.known) taken_over_ = shard.clock().now();
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

}  // namespace bypass::runtime
