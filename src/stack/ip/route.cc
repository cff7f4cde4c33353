#include "stack/ip/route.h"

#include <algorithm>

namespace bypass {
namespace {

constexpr std::uint32_t kMinMtu = 68;  // RFC 791 §3.2: every module forwards 68 octets
constexpr std::uint32_t kMaxMtu = 65535;

constexpr std::uint32_t mask_of(unsigned length) {
  return length == 0 ? 0 : ~std::uint32_t{0} << (32 - length);
}

bool is_unicast(std::uint32_t address) {
  const std::uint32_t first = address >> 24;
  return first != 0 && first != 127 && first < 224;
}

bool usable(const InterfaceAddress& own) {
  return is_unicast(own.address) && !(own.has_broadcast() && own.address == own.broadcast());
}

Result<bool> add_route(const RouteVia& route, Interface& out) {
  if (!route.gateway.is_v4() || !route.destination.address.is_v4()) return true;
  if (route.destination.length > 32) return Error::kInvalid;
  const std::uint32_t gateway = route.gateway.v4(), mask = mask_of(route.destination.length);
  if (out.owns(gateway)) return Error::kInvalid;
  if (out.on_link(gateway) == nullptr) return Error::kNetUnreachable;
  if (out.route_count == Interface::kMaxRoutes) return Error::kNoMemory;
  out.routes[out.route_count++] = {route.destination.address.v4() & mask, mask, gateway};
  return true;
}

Result<bool> parse(const InterfaceConfig& config, Interface& out) {
  if (config.mac.is_zero() || config.mac.is_multicast()) return Error::kInvalid;
  if (config.mtu < kMinMtu || config.mtu > kMaxMtu) return Error::kInvalid;
  out.up = true;
  out.mac = config.mac;
  out.mtu = config.mtu;
  for (const Prefix& prefix : config.addresses) {
    if (!prefix.address.is_v4()) continue;
    if (prefix.length > 32) return Error::kInvalid;
    const InterfaceAddress own{prefix.address.v4(), mask_of(prefix.length)};
    if (!usable(own)) return Error::kInvalid;
    if (out.count == Interface::kMaxAddresses) return Error::kNoMemory;
    out.addresses[out.count++] = own;
  }
  out.steered = config.steered;
  out.kernel_index = config.kernel_index;
  for (const RouteVia& route : config.routes)
    if (const Result<bool> good = add_route(route, out); !good) return good;
  if (config.gateway.is_any()) return true;
  return add_route({{IpAddress::from_v4(0), 0}, config.gateway}, out);
}

}  // namespace

bool Interface::owns(std::uint32_t address) const {
  return std::ranges::any_of(all(), [&](const InterfaceAddress& own) { return own.address == address; });
}

const InterfaceAddress* Interface::on_link(std::uint32_t address) const {
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& own : all())
    if (own.covers(address) && (best == nullptr || own.mask > best->mask)) best = &own;
  return best;
}

bool Interface::is_broadcast(std::uint32_t address) const {
  return std::ranges::any_of(
      all(), [&](const InterfaceAddress& own) { return own.has_broadcast() && own.broadcast() == address; });
}

Result<bool> RouteTable::set(std::uint16_t port, const InterfaceConfig& config) {
  if (port >= interfaces_.size()) return Error::kInvalid;
  Interface parsed;
  const Result<bool> good = parse(config, parsed);
  if (!good) return good;
  for (const InterfaceAddress& own : parsed.all()) {
    const std::uint16_t other = owner(own.address);
    if (other != kNone && other != port) return Error::kAddressInUse;
  }
  interfaces_[port] = parsed;
  rebuild_routes();
  return true;
}

void RouteTable::rebuild_routes() {
  route_count_ = owned_count_ = 0;
  for (std::uint16_t port = 0; port < interfaces_.size(); port++) {
    const Interface& interface = interfaces_[port];
    for (const InterfaceAddress& own : interface.all()) {
      owned_[owned_count_++] = {own.address, port};
      add_route({own.address & own.mask, own.mask, own.address, 0, port});
    }
    for (const Interface::Via& via : interface.via())
      add_route({via.network, via.mask, interface.on_link(via.gateway)->address, via.gateway, port});
  }
}

// The new route goes after all routes of the same or a longer prefix.
void RouteTable::add_route(const Route& route) {
  const auto begin = routes_.begin(), end = begin + static_cast<std::ptrdiff_t>(route_count_);
  const auto place = std::find_if(begin, end, [&](const Route& other) { return other.mask < route.mask; });
  std::move_backward(place, end, end + 1);
  *place = route;
  route_count_++;
}

const Route* RouteTable::lookup(std::uint32_t remote) const {
  for (std::size_t i = 0; i < route_count_; i++)
    if ((remote & routes_[i].mask) == routes_[i].network) return &routes_[i];
  return nullptr;
}

std::uint16_t RouteTable::owner(std::uint32_t address) const {
  for (std::size_t i = 0; i < owned_count_; i++)
    if (owned_[i].address == address) return owned_[i].port;
  return kNone;
}

bool RouteTable::is_broadcast(std::uint32_t address) const {
  return std::ranges::any_of(interfaces_, [&](const Interface& i) { return i.up && i.is_broadcast(address); });
}

bool RouteTable::any_steered() const {
  return std::ranges::any_of(interfaces_, [](const Interface& i) { return i.up && i.steered; });
}

}  // namespace bypass
