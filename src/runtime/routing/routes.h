// Routes: tells which port reaches an address, by the configuration. Pure.
//
// It is asked before a port is open, since a socket is decided by its address alone. So it is separate from the stack's
// own routes, which exist only once the port is open. It is a view; the caller keeps the data.
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

  /// The port that reaches `remote`: by the longest prefix, else by a gateway of the address's family. A loopback
  /// address that is not a port's own is reached by no port, whatever its prefix. A port that shares its interface with
  /// the kernel leaves two kinds of addresses to the kernel: those that another interface reaches by a longer prefix,
  /// and the host's own.
  [[nodiscard]] std::optional<std::size_t> port_to(const IpAddress& remote) const;
  /// Whether a port owns `address`: as its own address, or within its prefix. What a port reaches only by a gateway or
  /// by a prefix of length 0 is not on the link.
  [[nodiscard]] bool on_link(const IpAddress& address) const;
  /// The port that has `address` as its own.
  [[nodiscard]] std::optional<std::size_t> owner_of(const IpAddress& address) const;
  [[nodiscard]] bool any_port() const { return !ports_.empty(); }

 private:
  [[nodiscard]] bool is_the_kernels(const PortConfig& port, int length, const IpAddress& remote) const;

  const std::vector<PortConfig>& ports_;
  const std::vector<Prefix>& others_;
};

}  // namespace bypass::runtime
