// Registers of a device, mapped into the process: the kernel takes them away when the device leaves the machine, and a
// driver that is at work then faults (SIGBUS). Pages of memory are put in their place, so that the driver runs until it
// is stopped. They hold ones, as what is read of a PCI device that has gone (PCI Express base specification, 2.3.2), by
// which drivers end their waits.
#pragma once

#include <cstddef>

namespace bypass::runtime::crash {

/// From now on, faults in this range are answered so. `on` false: no longer, for a range that was given before. Any
/// thread. Ranges beyond the sixty-fourth are left as they are.
void guard_device_memory(const void* begin, std::size_t bytes, bool on);

/// In a handler of SIGBUS: whether the address was a device's. A page of ones lies there now. Async-signal-safe.
bool replace_device_memory(const void* address);

}  // namespace bypass::runtime::crash
