// FlowGuard: keeps the TCP flows of a family from the kernel of an interface that it shares, while no process of the
// family has them steered to itself. Between an owner's death and the next one's rules the kernel would answer their
// segments with RST (RFC 9293 §3.10.7.1). What is dropped meanwhile is sent again.
//
// It is an ingress filter with a FlowTable of its own, behind what steers (a card, XDP, packet sockets). As long as a
// process gets these flows, nothing of them arrives there. Its link and table lie in the family's Handover, and go with
// the last of its processes.
#pragma once

#include <span>
#include <string>

#include "backends/backend.h"
#include "backends/packet/descriptor.h"
#include "backends/packet/flows/flow_table.h"

namespace bypass::packet {

class FlowGuard {
 public:
  /// Takes the one over that lies in `handover`, if it is the interface's, else makes one and lays it there; from now
  /// on it knows of `flows` and no others. False: `problem` says why not.
  bool hold(const Handover& handover, int interface, const MacAddress& mac, std::span<const FlowSpec> flows,
            std::string& problem);
  [[nodiscard]] bool is_open() const { return link_.is_open(); }

  /// From now on that flow is kept from the kernel, or is not. What is no TCP flow is the kernel's.
  void keep(const FlowSpec& flow, bool add);

 private:
  bool take_over(const Handover& handover, int interface, const MacAddress& mac);
  bool make(const Handover& handover, int interface, const MacAddress& mac, std::string& problem);
  void know(std::span<const FlowSpec> flows);

  FlowTable table_;
  Descriptor link_;
  bool said_ = false;  // that a flow found no room
};

}  // namespace bypass::packet
