// DPDK's access to I/O ports (virtio's older form on uio), redirected here by --wrap: see io_ports.h. A card may have
// the same registers in memory, which DPDK has mapped. Those stay DPDK's.
#include <rte_bus_pci.h>

#include <string>

#include "backends/dpdk/card/io_ports.h"
#include "backends/dpdk/eal/eal.h"

using namespace bypass::dpdk;

extern "C" {

int __real_pci_uio_ioport_map(rte_pci_device* device, int bar, rte_pci_ioport* ports);
int __real_pci_uio_ioport_unmap(rte_pci_ioport* ports);
void __real_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __real_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);
int __wrap_pci_uio_ioport_map(rte_pci_device* device, int bar, rte_pci_ioport* ports);
int __wrap_pci_uio_ioport_unmap(rte_pci_ioport* ports);
void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __wrap_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);
int __wrap_rte_eal_iopl_init();

}  // extern "C"

namespace {

// rte_pci_ioport, which no header that is installed has.
struct IoPort {
  rte_pci_device* device;
  std::uint64_t base;  // a number of a port, or an address in this process
  std::uint64_t bytes;
};

bool is_memory(const rte_pci_ioport* ports) {
  constexpr std::uint64_t kPortNumbers = 0x10000;
  return reinterpret_cast<const IoPort*>(ports)->base >= kPortNumbers;
}

}  // namespace

// virtio's driver calls it when the plugin is loaded, for a wire, too, and the bus when it opens ports. Nothing here
// uses the right that it would take.
int __wrap_rte_eal_iopl_init() {
  return 0;
}

// DPDK's own finds the card's uio device, by which its interrupt comes.
int __wrap_pci_uio_ioport_map(rte_pci_device* device, int bar, rte_pci_ioport* ports) {
  const int error = __real_pci_uio_ioport_map(device, bar, ports);
  if (error != 0 || is_memory(ports)) return error;
  std::string problem;
  if (open_ports(ports, bar, problem)) return 0;
  note_error(problem);
  __real_pci_uio_ioport_unmap(ports);
  return -1;
}

int __wrap_pci_uio_ioport_unmap(rte_pci_ioport* ports) {
  close_ports(ports);
  return __real_pci_uio_ioport_unmap(ports);
}

void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset) {
  if (is_memory(ports)) return __real_pci_uio_ioport_read(ports, data, length, offset);
  read_ports(ports, static_cast<std::byte*>(data), length, static_cast<std::size_t>(offset));
}

void __wrap_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset) {
  if (is_memory(ports)) return __real_pci_uio_ioport_write(ports, data, length, offset);
  write_ports(ports, static_cast<const std::byte*>(data), length, static_cast<std::size_t>(offset));
}
