// Routes: which port reaches an address, as the configuration has it. Pure.
//
// Asked before a port is open (a socket is decided by its address alone), and therefore kept beside the
// stack's own routes, which exist once the port does. A view of what somebody else keeps.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "config/config.h"
#include "stack/address.h"

namespace bypass::runtime {

class Routes {
 public:
  explicit Routes(const Config& config) : ports_(config.ports), others_(config.others) {}
  explicit Routes(const PortNetwork& network) : ports_(network.ports), others_(network.others) {}

  /// The port that reaches `remote`: longest prefix, then a gateway of the address's family. None reaches a
  /// loopback address that is no port's own, whatever its prefix holds. A port that shares its interface with the
  /// kernel leaves it what another interface reaches by a longer prefix, and the host itself.
  [[nodiscard]] std::optional<std::size_t> port_to(const IpAddress& remote) const;
  /// Whether a port owns `address`: it is its own, or lies in its prefix. What a gateway or a prefix of length 0
  /// reaches is everybody else's.
  [[nodiscard]] bool on_link(const IpAddress& address) const;
  /// The port whose own address `address` is.
  [[nodiscard]] std::optional<std::size_t> owner_of(const IpAddress& address) const;
  [[nodiscard]] bool any_port() const { return !ports_.empty(); }

 private:
  [[nodiscard]] bool is_the_kernels(const PortConfig& port, int length, const IpAddress& remote) const;

  const std::vector<PortConfig>& ports_;
  const std::vector<Prefix>& others_;
};

}  // namespace bypass::runtime
