// What the kernel says of its interfaces' addresses and routes (rtnetlink(7)): for ports that share an interface with
// it.
//
// Asked once, when the configuration is read, and only where a port wants it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stack/address.h"

namespace bypass::runtime {

struct KernelNetwork {
  struct Interface {
    int index = 0;
    std::string name;
    std::uint32_t mtu = 0;
  };
  struct Address {
    int interface = 0;
    Prefix prefix;  // the host's address with its link's prefix
  };
  struct Route {  // of the main table, unicast
    int interface = 0;
    Prefix destination;
    IpAddress gateway;  // any: on the link
  };

  std::vector<Interface> interfaces;
  std::vector<Address> addresses;
  std::vector<Route> routes;  // the better metric first

  /// 0: there is none of that name.
  [[nodiscard]] int index_of(const std::string& name) const;
  [[nodiscard]] std::uint32_t mtu_of(int interface) const;
  /// Those of an interface, but for IPv6's link-local ones.
  [[nodiscard]] std::vector<Prefix> addresses_of(int interface) const;
  /// IPv6's link-local one; any: the interface has none.
  [[nodiscard]] IpAddress link_local_of(int interface) const;
};

/// Of the caller's network namespace. What the kernel does not tell is missing.
KernelNetwork read_kernel_network();

}  // namespace bypass::runtime
