// Interfaces and routes: which port, which next hop, which source address. IPv4 in host order. IPv6 will get a table of
// its own.
//
// An interface's prefixes are its on-link routes, and its gateway is a default route; there may be others. The longest
// prefix wins, then the lower port.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/context.h"
#include "stack/ip/network.h"

namespace bypass {

struct InterfaceAddress {
  std::uint32_t address = 0, mask = 0;
  [[nodiscard]] bool covers(std::uint32_t other) const { return ((address ^ other) & mask) == 0; }
  /// RFC 3021: prefixes of 31 and 32 bits have no broadcast address.
  [[nodiscard]] bool has_broadcast() const { return ~mask > 1; }
  [[nodiscard]] std::uint32_t broadcast() const { return address | ~mask; }
};

struct Interface {
  static constexpr std::size_t kMaxAddresses = 8;
  static constexpr std::size_t kMaxRoutes = 24;

  /// A route through a router on the link.
  struct Via {
    std::uint32_t network = 0, mask = 0, gateway = 0;
  };

  bool up = false;
  bool steered = false;
  MacAddress mac;
  std::uint32_t mtu = 0, kernel_index = 0;
  std::size_t count = 0, route_count = 0;
  std::array<InterfaceAddress, kMaxAddresses> addresses{};
  std::array<Via, kMaxRoutes> routes{};  // includes the default route

  [[nodiscard]] std::span<const InterfaceAddress> all() const { return {addresses.data(), count}; }
  [[nodiscard]] std::span<const Via> via() const { return {routes.data(), route_count}; }
  [[nodiscard]] bool owns(std::uint32_t address) const;
  [[nodiscard]] const InterfaceAddress* on_link(std::uint32_t address) const;
  [[nodiscard]] bool is_broadcast(std::uint32_t address) const;
};

struct Route {
  std::uint32_t network = 0, mask = 0;
  std::uint32_t source = 0;   // our address on this route
  std::uint32_t gateway = 0;  // 0: on-link
  std::uint16_t port = 0;
};

class RouteTable {
 public:
  /// Replaces what the port had. kInvalid, kAddressInUse (another port has the address), kNetUnreachable (a gateway is
  /// not on-link), kNoMemory (more than an interface holds). IPv6 addresses are accepted and ignored, as IPv6 is not
  /// built yet.
  Result<bool> set(std::uint16_t port, const InterfaceConfig& config);

  [[nodiscard]] const Interface& interface(std::uint16_t port) const { return interfaces_[port]; }
  [[nodiscard]] const Route* lookup(std::uint32_t remote) const;
  /// The port that has this address of ours, or kNone.
  static constexpr std::uint16_t kNone = 0xffff;
  [[nodiscard]] std::uint16_t owner(std::uint32_t address) const;
  /// Whether the address is the subnet broadcast of any port.
  [[nodiscard]] bool is_broadcast(std::uint32_t address) const;
  [[nodiscard]] bool any_steered() const;

 private:
  void rebuild_routes();
  void add_route(const Route& route);

  static constexpr std::size_t kMaxRoutes = Context::kMaxPorts * (Interface::kMaxAddresses + Interface::kMaxRoutes);
  struct Owned {
    std::uint32_t address;
    std::uint16_t port;
  };
  std::array<Interface, Context::kMaxPorts> interfaces_{};
  std::array<Owned, Context::kMaxPorts * Interface::kMaxAddresses> owned_{};  // all addresses of ours, of all ports
  std::size_t owned_count_ = 0;
  std::array<Route, kMaxRoutes> routes_{};  // longest prefix first
  std::size_t route_count_ = 0;
};

}  // namespace bypass
