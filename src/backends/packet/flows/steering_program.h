// The programs that tell, frame by frame, which frames of a shared interface are ours. One piece of assembly has three
// uses, which all look into the same FlowMap.
//
//   ring_filter      at a packet ring's socket: takes what is steered, and copies of ARP, neighbour discovery, groups
//   ingress_filter   behind the packet sockets: keeps what is steered from the kernel's stack, which would refuse it
//   xdp_redirect     in the driver: hands what is steered to an AF_XDP socket
//
// A program looks up a frame's flow whole first, then without its remote end, and last the rule for every frame to the
// interface's MAC address. Fragments have no ports, and IPv6 extension headers hide them, so such packets belong to no
// flow. ARP, neighbour discovery and frames with a VLAN tag always stay the kernel's. xdp_redirect recognizes a VLAN
// only by a tag in the frame.
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

/// Takes frames whose length lies in this range, both ends included (RxShape).
BpfAssembler ring_filter(const SteeringPoint& point, std::uint32_t shortest, std::uint32_t longest);
BpfAssembler ingress_filter(const SteeringPoint& point);
/// `socket_map`: an XSKMAP whose entry 0 is the socket.
BpfAssembler xdp_redirect(const SteeringPoint& point, int socket_map);

}  // namespace bypass::packet
