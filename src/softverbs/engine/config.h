// The configuration of a software RDMA device: its addresses and its limits.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "stack/address.h"
#include "stack/tcp/open/isn.h"
#include "stack/time.h"

namespace bypass::rdma {

/// The device's limits. The names, and where possible the values, are those of Linux's soft-RoCE.
struct Limits {
  std::uint32_t max_qp = 65'536;
  std::uint32_t max_qp_wr = 16'384;
  std::uint32_t max_sge = 32;  // elements of a request of any kind
  std::uint32_t max_inline = 512;
  std::uint32_t max_cq = 65'536;
  std::uint32_t max_cqe = 1'048'575;  // libfabric's ofi_rxm asks for 262,144
  std::uint32_t max_mr = 65'535;
  std::uint32_t max_pd = 65'535;
  std::uint32_t max_ah = 65'535;
  std::uint32_t max_srq = 65'535;
  std::uint32_t max_srq_wr = 32'767;
  std::uint32_t max_rd_atomic = 128;     // for each queue pair, in either direction
  std::uint32_t max_message = 8U << 20;  // bytes
  std::uint64_t max_mr_size = ~std::uint64_t{0};
  std::uint32_t max_multicast = 8'192;  // attachments of queue pairs to groups
  std::uint32_t max_flow = 65'535;      // steering rules
};

struct DeviceConfig {
  MacAddress mac;  // zero: the port's
  /// The device's own addresses, of either family. GID 0 is the link-local address; then the IPv4 addresses
  /// (v4-mapped), then the others, in this order. All RoCE v2.
  std::vector<Prefix> addresses;
  IpAddress link_local;   // unset: made from the MAC
  IpAddress gateway;      // IPv4; unset: no gateway
  std::uint32_t mtu = 0;  // bytes of an IP packet; 0: the port's
  /// Whether the device answers ARP and neighbour solicitations. Not if a kernel owns the address and answers.
  bool answer_neighbours = true;
  /// The secret from which memory keys are made: random numbers, where a peer must not guess the keys.
  tcp::Secret secret{1, 2};
  /// Packets of one queue pair that may be unanswered. If the wire's rings hold fewer, packets are lost and sent again.
  std::uint32_t window = 128;
  Duration resolve_retry = std::chrono::milliseconds{100};  // between two requests for a neighbour's address
  Limits limits;
};

}  // namespace bypass::rdma
