#include "runtime/routes.h"

namespace bypass::runtime {

std::optional<std::size_t> Routes::port_to(const IpAddress& remote) const {
  if (is_loopback(remote)) return owner_of(remote);
  std::optional<std::size_t> best;
  int best_length = -1;
  for (std::size_t i = 0; i < config_.ports.size(); i++) {
    const PortConfig& port = config_.ports[i];
    for (const Prefix& prefix : port.addresses)
      if (prefix.length > best_length && prefix.contains(remote)) {
        best = i;
        best_length = prefix.length;
      }
    if (best) continue;
    for (const IpAddress& gateway : port.gateways)
      if (!best && gateway.is_v4() == remote.is_v4() && !remote.is_any()) best = i;
  }
  return best;
}

bool Routes::on_link(const IpAddress& address) const {
  if (owner_of(address)) return true;
  if (is_loopback(address)) return false;
  for (const PortConfig& port : config_.ports)
    for (const Prefix& prefix : port.addresses)
      if (prefix.length > 0 && prefix.contains(address)) return true;
  return false;
}

std::optional<std::size_t> Routes::owner_of(const IpAddress& address) const {
  for (std::size_t i = 0; i < config_.ports.size(); i++)
    for (const Prefix& prefix : config_.ports[i].addresses)
      if (prefix.address == address) return i;
  return std::nullopt;
}

}  // namespace bypass::runtime
