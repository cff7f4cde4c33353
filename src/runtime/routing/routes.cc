#include "runtime/routing/routes.h"

#include <algorithm>
#include <vector>

namespace bypass::runtime {

namespace {

// The length of the longest prefix that holds the address; -1: no prefix does.
int longest(const std::vector<Prefix>& prefixes, const IpAddress& address) {
  int length = -1;
  for (const Prefix& prefix : prefixes)
    if (prefix.length > length && prefix.contains(address)) length = prefix.length;
  return length;
}

int longest(const PortConfig& port, const IpAddress& address) {
  int length = longest(port.addresses, address);
  for (const RouteVia& route : port.routes)
    if (route.destination.length > length && route.destination.contains(address)) length = route.destination.length;
  return length;
}

}  // namespace

// Whether the kernel keeps the address, because it reaches it by a longer prefix or because the address is its own.
bool Routes::is_the_kernels(const PortConfig& port, int length, const IpAddress& remote) const {
  if (!port.shared) return false;
  const auto own = std::ranges::any_of(port.addresses, [&](const Prefix& p) { return p.address == remote; });
  return own || longest(others_, remote) > length;
}

std::optional<std::size_t> Routes::port_to(const IpAddress& remote) const {
  if (remote.is_loopback()) return owner_of(remote);
  std::optional<std::size_t> best;
  int best_length = -1;
  for (std::size_t i = 0; i < ports_.size(); i++) {
    const PortConfig& port = ports_[i];
    if (const int length = longest(port, remote); length > best_length) {
      best = i;
      best_length = length;
    }
    if (best) continue;
    for (const IpAddress& gateway : port.gateways)
      if (!best && gateway.is_v4() == remote.is_v4() && !remote.is_any()) best = i;
  }
  if (best && is_the_kernels(ports_[*best], best_length, remote)) return std::nullopt;
  return best;
}

bool Routes::on_link(const IpAddress& address) const {
  if (owner_of(address)) return true;
  if (address.is_loopback()) return false;
  for (const PortConfig& port : ports_)
    for (const Prefix& prefix : port.addresses)
      if (prefix.length > 0 && prefix.contains(address)) return true;
  return false;
}

std::optional<std::size_t> Routes::owner_of(const IpAddress& address) const {
  for (std::size_t i = 0; i < ports_.size(); i++)
    for (const Prefix& prefix : ports_[i].addresses)
      if (prefix.address == address) return i;
  return std::nullopt;
}

}  // namespace bypass::runtime
