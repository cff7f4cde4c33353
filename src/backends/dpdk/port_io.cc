// The right to use a card's I/O ports (virtio's older form on uio). iopl(2) gives it to one thread, and to the threads
// that this one starts later. EAL calls it only in the thread that starts EAL. But any thread of the program sends a
// port's frames.
#include <rte_bus_pci.h>
#include <sys/io.h>

extern "C" {

void __real_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __real_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);
void __wrap_pci_uio_ioport_read(rte_pci_ioport* ports, void* data, size_t length, off_t offset);
void __wrap_pci_uio_ioport_write(rte_pci_ioport* ports, const void* data, size_t length, off_t offset);

}  // extern "C"

namespace {

// iopl(2) needs CAP_SYS_RAWIO, as opening the port did. A thread that has given it up sends nothing more.
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
