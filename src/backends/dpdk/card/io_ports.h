// A card's I/O ports (virtio's older form on uio), by the files that the kernel has for them: resource0 to resource5 in
// the card's folder (Documentation/ABI/testing/sysfs-bus-pci). DPDK would take iopl(2), which gives a thread every I/O
// port of the machine. Children and programs that the thread starts would keep it, and so would a process that has
// given up root. A file gives the one card's ports. It is closed on exec and in a forked child, and each thread may use
// it.
#pragma once

#include <cstddef>
#include <string>

namespace bypass::dpdk {

/// The folder of the card that is opened next, such as /sys/bus/pci/devices/0000:3b:00.0. Control thread.
void name_card_of_ports(const std::string& folder);

/// Opens the ports of that card's base address register `bar` under the name `key`. False: there is no such file, this
/// process may not open it, or too many are open (8); `problem` says which. Control thread.
[[nodiscard]] bool open_ports(const void* key, int bar, std::string& problem);
void close_ports(const void* key);

/// In a forked child, whose descriptors of ports are closed: their numbers may be the program's next.
/// Async-signal-safe.
void forget_ports_in_child();

/// One access of 4, 2 or 1 bytes at a time, as the rest allows. What a card that has gone reads as is ones. Any thread,
/// while the ports are open.
void read_ports(const void* key, std::byte* data, std::size_t bytes, std::size_t offset);
void write_ports(const void* key, const std::byte* data, std::size_t bytes, std::size_t offset);

}  // namespace bypass::dpdk
