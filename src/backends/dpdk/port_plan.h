// PortPlan: a PortSpec made concrete: which driver, with which arguments, which pool.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/dpdk/buffer_pool.h"
#include "backends/dpdk/device.h"

namespace bypass::dpdk {

enum class Role {
  kVhost,   // serves a vhost-user socket; the driver itself survives its peer's death
  kVirtio,  // connects to one; reopened whenever the peer has gone
  kOther,   // opened once
};

struct PortPlan {
  Role role = Role::kOther;
  std::string path;                // vhost, virtio: the socket, absolute
  std::vector<std::string> cards;  // PCI addresses of all ports of the process
  std::string warning;             // worth a line in the log when the port opens
  DeviceSpec device;
  PoolConfig pool;
  std::size_t all_buffer_bytes = 0;  // of every port of the process together
  Hugepages hugepages = Hugepages::kAuto;
  MacAddress mac;     // zero: the device's own
  PortCaps expected;  // until the device is there
  bool prepare = false;
  bool foreign_threads = false;
};

/// What can be known without opening anything. False: `problem` says what to change.
bool make_plan(const PortSpec& spec, PortPlan& plan, std::string& problem);

/// A locally administered address that is the same in every run and differs between a wire's two ends.
MacAddress derive_mac(const std::string& target, char role);

}  // namespace bypass::dpdk
