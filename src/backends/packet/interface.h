// What the kernel says about a network interface. It is asked when a port opens and when netlink tells of a change,
// never on the data path.
#pragma once

#include <cstdint>
#include <string>

#include "backends/backend.h"
#include "stack/address.h"

namespace bypass::packet {

struct Interface {
  int index = 0;
  bool is_up = false;  // IFF_UP and IFF_RUNNING: frames pass
  bool is_ethernet = false;
  std::uint32_t mtu = 0;
  MacAddress mac;
};

/// `socket`: any socket in the interface's network namespace. False with errno: there is no interface with that name.
bool look_at_interface(int socket, const std::string& name, Interface& out);
/// The same for an interface that a port is to use. False: `problem` says why it cannot.
bool look_at_ethernet(int socket, const std::string& name, Interface& out, std::string& problem);

/// Makes the interface accept frames to `mac`, unless that is its own address. The kernel undoes it when the packet
/// socket goes. `type`: PACKET_MR_UNICAST, or PACKET_MR_PROMISC for an interface that has no room for one more address.
bool take_frames_to(const MacAddress& mac, int packet_socket, const Interface& interface, unsigned short type);

/// The text for a shared interface whose MAC address is no longer the one at opening.
std::string other_mac_problem(const MacAddress& now, const MacAddress& opened);

/// A locally administered address that is the same in every run. It depends on the interface and on the bypass
/// addresses, since containers give their interfaces the same names and several processes may share one.
MacAddress derive_mac(const PortSpec& spec, const MacAddress& interface);

}  // namespace bypass::packet
