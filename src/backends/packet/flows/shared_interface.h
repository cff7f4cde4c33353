// SharedInterface: an interface that the kernel keeps, with its MAC address and its IP addresses. This process gets the
// flows that it steers to itself, as a card's steering would give them (Port::steer).
#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/packet/flows/flow_map.h"
#include "backends/packet/flows/steering_program.h"
#include "backends/packet/interface.h"

namespace bypass::packet {

class SharedInterface {
 public:
  /// At first nothing is steered. Null: `problem` says why.
  static std::unique_ptr<SharedInterface> create(const PortSpec& spec, const MacAddress& mac, std::string& problem);

  /// A program for a packet ring's socket, which takes the steered frames and the copies. The result is not open on
  /// failure, with errno.
  [[nodiscard]] Descriptor ring_program(std::uint32_t shortest, std::uint32_t longest) const;
  /// From now on the kernel does not get the steered frames. False: `problem` says why.
  bool keep_from_kernel(int interface, std::string& problem);
  /// The kernel gets the steered frames again, until the next keep_from_kernel().
  void leave_to_kernel() { ingress_.close(); }
  [[nodiscard]] SteeringPoint point() const { return {flows_.descriptor(), mac_}; }

  bool steer(const FlowSpec& flow, bool add) { return flows_.steer(flow, add); }

 private:
  std::string name_;
  MacAddress mac_;
  FlowMap flows_;
  Descriptor ingress_;
};

/// The text for a failure with this error: of a function above, or of the packet or AF_XDP sockets that go with it.
std::string sharing_problem(int error);
/// … of attaching the program to the interface's ingress.
std::string ingress_problem(int error, const std::string& interface);

}  // namespace bypass::packet
