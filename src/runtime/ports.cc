#include "runtime/ports.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "runtime/host.h"
#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "runtime/port_check.h"

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

}  // namespace

Backend* PortSet::backend_for(std::size_t index, std::string& problem) {
  const char* name = plugin_of_kind(config_.ports[index].kind);
  for (const auto& [known, backend] : plugins_)
    if (known == name) return backend;
  Backend* backend = open_plugin(name, backend_host(), problem);
  if (backend != nullptr) plugins_.emplace_back(name, backend);
  return backend;
}

// Reason kNone: nothing wrong that can be seen.
PortSet::Problem PortSet::check_one(std::size_t index) {
  const PortConfig& port = config_.ports[index];
  std::string problem = quick_check(port);
  if (!problem.empty()) return {kind_built(port.kind) ? Reason::kPortUnavailable : Reason::kNotBuilt, problem};
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
  if (state_.load(std::memory_order_acquire) == State::kClosed) open_all(shard);
  pthread_mutex_unlock(&g_opening);
  return opened();
}

void PortSet::open_all(socket::Shard& shard) {
  state_.store(State::kOpening, std::memory_order_release);
  entries_.resize(config_.ports.size());
  for (std::size_t i = 0; i < entries_.size(); i++) open_one(i, shard);
  if (tried_ != nullptr) tried_(*this);
  const bool any = std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.port != nullptr; });
  state_.store(any ? State::kOpen : State::kFailed, std::memory_order_release);
}

void PortSet::open_one(std::size_t index, socket::Shard& shard) {
  Entry& entry = entries_[index];
  entry.tried = true;
  PortSpec spec = port_spec(config_, index);
  spec.index = static_cast<std::uint16_t>(shard.port_count());  // its place among those that did open
  entry.backend = backend_for(index, entry.problem);
  if (entry.backend != nullptr) entry.port = entry.backend->open(spec, entry.problem);
  if (entry.port == nullptr) {
    entry.problem = named_problem(config_, config_.ports[index], entry.problem);
    return;
  }
  const PortConfig& port = config_.ports[index];
  InterfaceConfig interface;
  interface.mac = entry.port->mac();
  interface.mtu = entry.port->caps().mtu;
  interface.addresses = port.addresses;
  for (const IpAddress& gateway : port.gateways)
    if (gateway.is_v4()) interface.gateway = gateway;
  socket::Guard guard(shard);
  entry.index = static_cast<std::uint16_t>(shard.port_count());
  shard.add_port(entry.port, 0);
  if (!shard.stack().network().set_interface(entry.index, interface))
    BYPASS_LOG_ERROR("BYPASS_ADDR: %s:%s could not take its addresses", spec.kind.c_str(), spec.target.c_str());
}

void PortSet::close(socket::Shard& shard) {
  if (!opened()) return;
  Inside inside;
  {
    socket::Guard guard(shard);
    Context& context = shard.context();
    for (std::size_t i = 0; i < context.ports; i++) context.queue(static_cast<std::uint16_t>(i)).drain();
    context.ports = 0;
  }
  for (Entry& entry : entries_)
    if (entry.port != nullptr) {
      entry.backend->close(entry.port);
      entry.port = nullptr;
    }
  state_.store(State::kFailed, std::memory_order_release);  // a process that ends opens nothing again
}

void PortSet::drop_in_child() {
  for (const auto& [name, backend] : plugins_) backend->drop_in_child();
}

}  // namespace bypass::runtime
