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
  /// Nothing is steered yet. Null: `problem` says why.
  static std::unique_ptr<SharedInterface> create(const PortSpec& spec, const MacAddress& mac, std::string& problem);

  /// For a packet ring's socket: what is steered, and the copies. Not open: errno.
  [[nodiscard]] Descriptor ring_program(std::uint32_t shortest, std::uint32_t longest) const;
  /// From now on the kernel does not get what is steered. False: `problem` says why.
  bool keep_from_kernel(int interface, std::string& problem);
  /// Until the next call of that.
  void leave_to_kernel() { ingress_.close(); }
  [[nodiscard]] SteeringPoint point() const { return {flows_.descriptor(), mac_}; }

  bool steer(const FlowSpec& flow, bool add) { return flows_.steer(flow, add); }

 private:
  std::string name_;
  MacAddress mac_;
  FlowMap flows_;
  Descriptor ingress_;
};

/// What to say when a call for the above, or one of packet or AF_XDP sockets beside it, has failed with this error.
std::string sharing_problem(int error);
/// … when it was that which hangs the program at the interface's ingress.
std::string ingress_problem(int error, const std::string& interface);

}  // namespace bypass::packet
