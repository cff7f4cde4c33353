// XdpProgram: the program at an interface's receive path that hands what is for us to our AF_XDP socket and leaves the
// rest to the kernel. For us are frames to our MAC address, and ARP requests for our addresses, which come as
// broadcasts. At an interface that is shared, what is steered is for us.
//
// It hangs on a link's descriptor (BPF_LINK_CREATE) and nothing is pinned: the kernel takes it off when the process is
// gone, however it went.
#pragma once

#include <span>

#include "backends/packet/descriptor.h"
#include "backends/packet/flows/steering_program.h"
#include "stack/address.h"

namespace bypass::packet {

class XdpProgram {
 public:
  /// For receive queue 0. In the driver where it can, else in front of the kernel's stack. False with errno; EBUSY:
  /// another program is there.
  bool attach(int interface, int xdp_socket, const MacAddress& mac, std::span<const IpAddress> addresses);
  /// The same at a shared interface.
  bool attach(int interface, int xdp_socket, const SteeringPoint& point);

 private:
  bool attach(int interface, const BpfAssembler& assembled);

  Descriptor link_;
};

}  // namespace bypass::packet
