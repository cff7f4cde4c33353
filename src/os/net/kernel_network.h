// The addresses and routes of the kernel's interfaces (rtnetlink(7)), for ports that share an interface with the
// kernel.
//
// They are read with the configuration, only if a port needs them, and again whenever the kernel reports a change
// (KernelWatch). The change itself cannot be taken from the kernel's messages: it reports nothing about routes that go
// with an address or a link (fib_table_flush of Linux). So everything is read again.
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
    Prefix prefix;  // the host's address, with the prefix length of its link
  };
  struct Route {        // a route of the main table
    int interface = 0;  // 0: several interfaces, or none (unreachable, blackhole, prohibit)
    Prefix destination;
    IpAddress gateway;  // unset: on the link
  };

  std::vector<Interface> interfaces;
  std::vector<Address> addresses;
  std::vector<Route> routes;  // the better metric comes first

  /// 0: no interface has that name.
  [[nodiscard]] int index_of(const std::string& name) const;
  [[nodiscard]] std::uint32_t mtu_of(int interface) const;
  /// The addresses of an interface, without IPv6's link-local ones.
  [[nodiscard]] std::vector<Prefix> addresses_of(int interface) const;
  /// IPv6's link-local address; unset: the interface has none.
  [[nodiscard]] IpAddress link_local_of(int interface) const;
};

/// Reads the caller's network namespace. What the kernel does not report is missing.
KernelNetwork read_kernel_network();
/// The same through the caller's netlink socket, which must block and must have no other user.
KernelNetwork read_kernel_network(int netlink);

/// Makes a KernelNetwork from the messages of three dumps: links, addresses, routes.
class KernelNetworkReader {
 public:
  void take(const nlmsghdr& message);
  /// To be called once.
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

/// Whether a message of the kernel reports a change in what read_kernel_network() returns.
bool is_network_change(const nlmsghdr& message);

/// Whether one of several messages does. True also if a message is cut short, as it might.
bool has_network_change(std::span<const std::byte> messages);

}  // namespace bypass::runtime
