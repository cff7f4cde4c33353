// RDMA devices and the kernel's network interfaces on them, as the configuration needs them: addresses and routes of
// ports that name none, and the devices that `auto` means.
#pragma once

#include <string>

#include "config/config.h"
#include "os/net/kernel_network.h"

namespace bypass::runtime {

/// Where the kernel lists RDMA devices.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// Whether a port or a software device may share an interface with the kernel, or `auto` must be resolved.
bool asks_the_kernel(const Config& config);

/// Ports on RDMA devices and wires of software devices share the interface with the kernel if they name no address, or
/// the kernel's own. They get the interface's addresses and routes. `auto` becomes a port for every device that has an
/// Ethernet interface with an address, and for every software device. What is impossible becomes a problem of the
/// configuration.
void complete_from_kernel(Config& config, const KernelNetwork& network, const std::string& devices);

/// Whether a port shares its interface with the kernel, so that changes of the interface must be followed.
bool shares_interface(const Config& config);

/// The ports of a complete configuration, as the kernel's network is now. The set of ports, and which of them share
/// their interface, is decided only once. Addresses and routes that do not fit into the stack's tables stay with the
/// kernel.
PortNetwork follow_kernel(const Config& config, const KernelNetwork& network);

/// The network interface of "mlx5_0" or "mlx5_0:2"; empty: it has no interface.
std::string interface_of_device(const std::string& target, const std::string& devices);

}  // namespace bypass::runtime
