// A card's I/O ports (virtio's older form on uio). EAL gives that right to the thread that starts it, and to those
// which that thread starts later: iopl(2) is a thread's. A port's frames are sent by any thread of the program.
#include <rte_bus_pci.h>
#include <sys/io.h>

extern "C" {

void __real_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __real_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);
void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __wrap_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);

}  // extern "C"

namespace {

// The same right that the process's opening of the port was granted by: CAP_SYS_RAWIO. A thread that has given it up
// sends nothing more.
bool may_use_ports() {
  static thread_local const bool may = ::iopl(3) == 0;
  return may;
}

}  // namespace

void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset) {
  if (may_use_ports()) __real_pci_uio_ioport_read(ports, data, length, offset);
}
void __wrap_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset) {
  if (may_use_ports()) __real_pci_uio_ioport_write(ports, data, length, offset);
}
