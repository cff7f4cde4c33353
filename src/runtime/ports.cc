#include "runtime/ports.h"

#include <pthread.h>

#include <algorithm>

#include "runtime/host.h"
#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/plugin.h"

namespace bypass::runtime {

namespace {
// Process-private: whoever opens holds it, other callers wait for the outcome.
pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;
}  // namespace

Backend* PortSet::backend_for(std::size_t index, std::string& problem) {
  const char* name = plugin_of_kind(config_.ports[index].kind);
  if (name == nullptr) {
    problem = "BYPASS_PORT=" + config_.ports[index].kind + ": no plugin serves this kind of port";
    return nullptr;
  }
  for (const auto& [known, backend] : plugins_)
    if (known == name) return backend;
  Backend* backend = open_plugin(name, backend_host(), problem);
  if (backend != nullptr) plugins_.emplace_back(name, backend);
  return backend;
}

bool PortSet::check(std::vector<std::string>& problems) {
  Inside inside;
  for (const PortConfig& port : config_.ports) {
    std::string problem;
    const char* name = plugin_of_kind(port.kind);
    if (name == nullptr || !plugin_present(name, problem)) {
      if (problem.empty())
        problem = "BYPASS_PORT=" + port.kind + ":" + port.target + ": no plugin serves this kind of port";
      problems.push_back(problem);
    }
  }
  return problems.empty();
}

bool PortSet::usable(std::size_t index) const {
  return index >= entries_.size() || !entries_[index].tried || entries_[index].port != nullptr;
}

bool PortSet::open(socket::Shard& shard) {
  if (opened()) return true;
  if (failed()) return false;
  Inside inside;
  pthread_mutex_lock(&g_opening);
  if (state_.load(std::memory_order_acquire) == State::kClosed) {
    state_.store(State::kOpening, std::memory_order_release);
    entries_.resize(config_.ports.size());
    for (std::size_t i = 0; i < entries_.size(); i++) open_one(i, shard);
    const bool any = std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.port != nullptr; });
    state_.store(any ? State::kOpen : State::kFailed, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_opening);
  return opened();
}

void PortSet::open_one(std::size_t index, socket::Shard& shard) {
  Entry& entry = entries_[index];
  entry.tried = true;
  entry.backend = backend_for(index, entry.problem);
  if (entry.backend == nullptr) {
    BYPASS_LOG_ERROR("%s", entry.problem.c_str());
    return;
  }
  const PortSpec spec = port_spec(config_, index);
  entry.port = entry.backend->open(spec, entry.problem);
  if (entry.port == nullptr) {
    BYPASS_LOG_ERROR("%s", entry.problem.c_str());
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
