// PortSteering: which flows of this device the wire must be told of, if the wire steers (PortCaps::steering). On an
// interface that the kernel keeps, only frames that were asked for come here.
//
// A rule of a raw-packet queue pair becomes flows of the port. Such a flow is TCP or UDP to a local port, at one
// address or (if the rule names no address) at each of ours, from one remote end or from any. Or it is every frame to
// our MAC address. ARP, neighbour discovery and frames to groups come as copies in any case, so rules for these tell
// the port nothing. Steering decides which queue pair gets a received frame.
//
// RoCE packets need one UDP port of each address. It is taken with the first queue pair that needs it and kept while
// the device exists. So a process that only uses raw frames leaves it to others.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "softverbs/engine/qp/requests.h"
#include "stack/frame/flow_order.h"
#include "stack/frame/port.h"

namespace bypass::rdma {

/// The flows by which a rule gets its frames, for a device with these addresses; none if copies come. EOPNOTSUPP: a
/// port cannot do it (parts of fields, a source MAC address, a protocol without a port, all passing frames).
int flows_of(const FlowRule& rule, const MacAddress& mac, std::span<const ibv_gid> own, std::vector<FlowSpec>& flows);

class PortSteering {
 public:
  explicit PortSteering(Port& port) : port_(port) {}
  ~PortSteering();
  PortSteering(const PortSteering&) = delete;
  PortSteering& operator=(const PortSteering&) = delete;

  [[nodiscard]] bool is_needed() const { return port_.caps().steering; }
  /// Adds each of the flows, or none: EADDRINUSE, another process has one.
  int add(std::span<const FlowSpec> flows);
  void remove(std::span<const FlowSpec> flows);
  /// Takes the UDP port for RoCE queue pairs. Returns 0 or EADDRINUSE.
  int take_roce(std::span<const ibv_gid> own);

 private:
  void remove(const FlowSpec& flow);

  Port& port_;
  std::map<FlowSpec, std::uint32_t, FlowOrder> uses_;
  bool has_roce_ = false;
};

}  // namespace bypass::rdma
