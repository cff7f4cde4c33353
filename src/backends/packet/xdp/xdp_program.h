// XdpProgram: the program at an interface's receive path. It hands the frames for us to our AF_XDP socket and leaves
// the rest to the kernel. Frames for us are those to our MAC address, and ARP requests for our addresses, which come as
// broadcasts. At a shared interface, the steered frames are for us.
//
// The program hangs on a link's descriptor (BPF_LINK_CREATE), and nothing is pinned. So the kernel removes it when the
// process is gone, however it ended.
#pragma once

#include <span>

#include "backends/packet/descriptor.h"
#include "backends/packet/flows/steering_program.h"
#include "stack/address.h"

namespace bypass::packet {

class XdpProgram {
 public:
  /// Attaches the program for receive queue 0: in the driver where that can do it, else in front of the kernel's stack.
  /// False with errno; EBUSY: another program is there.
  bool attach(int interface, int xdp_socket, const MacAddress& mac, std::span<const IpAddress> addresses);
  /// The same, at a shared interface.
  bool attach(int interface, int xdp_socket, const SteeringPoint& point);

 private:
  bool attach(int interface, const BpfAssembler& assembled);

  Descriptor link_;
};

}  // namespace bypass::packet
