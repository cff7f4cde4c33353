// What the kernel says of a network interface: asked when a port opens and when netlink tells of a change, never on
// the data path.
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

/// Any socket of the interface's network namespace serves. False with errno: there is none of that name.
bool look_at_interface(int socket, const std::string& name, Interface& out);
/// The same for one that a port is to use; false: `problem` says why it cannot.
bool look_at_ethernet(int socket, const std::string& name, Interface& out, std::string& problem);

/// Has the interface take frames to `mac`, unless that is its own; undone by the kernel when the packet socket goes.
/// `type`: PACKET_MR_UNICAST, or PACKET_MR_PROMISC for an interface that has no room for one address more.
bool take_frames_to(const MacAddress& mac, int packet_socket, const Interface& interface, unsigned short type);

/// What to say of an interface that is shared, and that was opened with another MAC address.
std::string other_mac_problem(const MacAddress& now, const MacAddress& opened);

/// A locally administered address, the same in every run. Another interface or other bypass addresses give another one:
/// containers call their interfaces alike, and several processes may share one.
MacAddress derive_mac(const PortSpec& spec, const MacAddress& interface);

}  // namespace bypass::packet
