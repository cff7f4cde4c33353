// PortSteering: what the wire has to be told of this device's flows, where it steers itself (PortCaps::steering): on an
// interface that the kernel keeps, frames that nobody has asked for never come here.
//
// A rule of a raw-packet queue pair becomes the port's flows: TCP or UDP to a local port, at one address or, where the
// rule names none, at each of ours, from a remote end or from anybody; or every frame to our MAC address. ARP,
// neighbour discovery and groups' frames come as copies whatever is steered, so rules for these tell the port nothing.
// Which queue pair gets a frame that has come is Steering's to say.
//
// RoCE packets are for one UDP port of each address. It is taken with the first queue pair that needs it and kept while
// the device is there, so that a process of raw frames alone leaves it to others.
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

/// The flows that bring a rule its frames, to a device with these addresses; none where copies do. EOPNOTSUPP: a port
/// cannot be asked for that (parts of fields, a source MAC address, a protocol without its port, all that passes).
int flows_of(const FlowRule& rule, const MacAddress& mac, std::span<const ibv_gid> own, std::vector<FlowSpec>& flows);

class PortSteering {
 public:
  explicit PortSteering(Port& port) : port_(port) {}
  ~PortSteering();
  PortSteering(const PortSteering&) = delete;
  PortSteering& operator=(const PortSteering&) = delete;

  [[nodiscard]] bool is_needed() const { return port_.caps().steering; }
  /// All of them, each once more, or none: EADDRINUSE, somebody else has one.
  int add(std::span<const FlowSpec> flows);
  void remove(std::span<const FlowSpec> flows);
  /// For RoCE queue pairs. 0 or EADDRINUSE.
  int take_roce(std::span<const ibv_gid> own);

 private:
  void remove(const FlowSpec& flow);

  Port& port_;
  std::map<FlowSpec, std::uint32_t, FlowOrder> uses_;
  bool has_roce_ = false;
};

}  // namespace bypass::rdma
