// FlowGuard: keeps a family's TCP flows at a shared interface from the kernel, while no process of the family has them
// steered to itself. Between the death of one owner and the rules of the next, the kernel would answer their segments
// with RST (RFC 9293 §3.10.7.1). The guard drops these segments, and the peers send them again.
//
// It is an ingress filter with a FlowTable of its own. It runs behind whatever steers (a card, XDP, packet sockets), so
// it sees nothing while a process gets these flows. Its link and table lie in the family's Handover, and go with the
// last process of the family.
#pragma once

#include <span>
#include <string>

#include "backends/backend.h"
#include "backends/packet/descriptor.h"
#include "backends/packet/flows/flow_table.h"

namespace bypass::packet {

class FlowGuard {
 public:
  /// Takes over the guard in `handover`, if that is one for this interface. Else it makes a guard and puts it there.
  /// From now on the guard has exactly `flows`. False: `problem` says why not.
  bool hold(const Handover& handover, int interface, const MacAddress& mac, std::span<const FlowSpec> flows,
            std::string& problem);
  [[nodiscard]] bool is_open() const { return link_.is_open(); }

  /// From now on the guard keeps that flow from the kernel (`add`), or does not. A flow that is not TCP is left to the
  /// kernel.
  void keep(const FlowSpec& flow, bool add);

 private:
  bool take_over(const Handover& handover, int interface, const MacAddress& mac);
  bool make(const Handover& handover, int interface, const MacAddress& mac, std::string& problem);
  void know(std::span<const FlowSpec> flows);

  FlowTable table_;
  Descriptor link_;
  bool said_ = false;  // it was logged that a flow found no room
};

}  // namespace bypass::packet
