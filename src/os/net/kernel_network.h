// What the kernel says of its interfaces' addresses and routes (rtnetlink(7)): for ports that share an interface with
// it.
//
// Asked when the configuration is read, and only where a port wants it; from then on whenever the kernel says that
// something has changed (KernelWatch). What has is not to be had from its messages: of routes that go with an address
// or a link it says nothing (Linux's fib_table_flush), so all is read anew.
#pragma once

#include <linux/netlink.h>

#include <cstddef>
#include <cstdint>
#include <span>
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
  struct Route {        // of the main table
    int interface = 0;  // 0: to several of them, or to none (unreachable, blackhole, prohibit)
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
/// The same by a netlink socket of the caller's, that blocks and that nobody else uses.
KernelNetwork read_kernel_network(int netlink);

/// Makes a KernelNetwork of the messages of three dumps: links, addresses, routes.
class KernelNetworkReader {
 public:
  void take(const nlmsghdr& message);
  /// Once.
  KernelNetwork finish();

 private:
  struct Measured {
    KernelNetwork::Route route;
    std::uint32_t metric;
  };
  void take_interface(const nlmsghdr& message);
  void take_address(const nlmsghdr& message);
  void take_route(const nlmsghdr& message);

  KernelNetwork network_;
  std::vector<Measured> routes_;
};

/// Whether a message of the kernel's tells of a change in what read_kernel_network() says.
bool is_network_change(const nlmsghdr& message);

/// Whether one of several messages does, or may: what is cut short is not understood.
bool has_network_change(std::span<const std::byte> messages);

}  // namespace bypass::runtime
