// The programs that tell, frame by frame, what of a shared interface is ours: one piece of assembly in three uses,
// which look into the same FlowMap.
//
//   ring_filter      at a packet ring's socket: takes what is steered, and copies of ARP, neighbour discovery, groups
//   ingress_filter   behind the packet sockets: keeps what is steered from the kernel's stack, which would refuse it
//   xdp_redirect     in the driver: hands what is steered to an AF_XDP socket
//
// A frame's flow is looked up whole first, then without its remote end; then comes the rule that takes every frame to
// the interface's MAC address. Fragments have no ports, and headers that IPv6 puts in between hide them: such packets
// are no flow's. ARP, neighbour discovery and frames of a VLAN stay the kernel's whatever is steered; xdp_redirect
// knows the latter by their tag in the frame, and no other.
#pragma once

#include <cstdint>

#include "backends/packet/flows/bpf_assembler.h"
#include "stack/address.h"

namespace bypass::packet {

/// `flows`: the FlowMap's descriptor; `mac`: the interface's.
struct SteeringPoint {
  int flows = -1;
  MacAddress mac;
};

/// Frames whose length lies between these, its ends included, as RxShape has them.
BpfAssembler ring_filter(const SteeringPoint& point, std::uint32_t shortest, std::uint32_t longest);
BpfAssembler ingress_filter(const SteeringPoint& point);
/// `socket_map`: an XSKMAP whose entry 0 is the socket.
BpfAssembler xdp_redirect(const SteeringPoint& point, int socket_map);

}  // namespace bypass::packet
