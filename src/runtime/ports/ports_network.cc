// PortSet, its third part: what the kernel changes on interfaces that it shares with the ports.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "config/rdma_devices.h"
#include "os/log/log.h"
#include "os/net/address_text.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/ports/port_set.h"
#include "runtime/ports/ports_lock.h"
#include "runtime/routing/kernel_watch.h"
#include "runtime/undisturbed.h"
#include "socket/family/steering.h"

namespace bypass::runtime {

namespace {

constexpr int kLookShare = 16;  // at most one part in so many of the time is used for reading the kernel's network

Duration monotonic_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

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

}  // namespace bypass::runtime
