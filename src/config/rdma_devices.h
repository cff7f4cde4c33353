// RDMA devices and the network interfaces that the kernel has on them, as the configuration needs them: addresses and
// routes of ports that name none, and which devices `auto` means.
#pragma once

#include <string>

#include "config/config.h"
#include "os/net/kernel_network.h"

namespace bypass::runtime {

/// Where the kernel lists RDMA devices.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// Whether a port or a software device may share an interface with the kernel, or `auto` is to be found out.
bool asks_the_kernel(const Config& config);

/// Ports on RDMA devices and wires of software devices that name no address, or the kernel's own, share the interface
/// with it: they get its addresses and routes. `auto` becomes a port for every device that has an Ethernet interface
/// with an address, and for every software device. What cannot be is a problem of the configuration.
void complete_from_kernel(Config& config, const KernelNetwork& network, const std::string& devices);

/// Whether a port shares its interface with the kernel: then what that says of it is to be followed.
bool shares_interface(const Config& config);

/// The ports of a complete configuration, as the kernel's network is now. Which ports there are, and which of them
/// share their interface, is decided once. Addresses and routes beyond what the stack holds of an interface are the
/// kernel's.
PortNetwork follow_kernel(const Config& config, const KernelNetwork& network);

/// The network interface of "mlx5_0" or "mlx5_0:2"; empty: none.
std::string interface_of_device(const std::string& target, const std::string& devices);

}  // namespace bypass::runtime
