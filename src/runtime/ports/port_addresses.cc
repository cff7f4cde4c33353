#include "runtime/ports/port_addresses.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <charconv>

#include "os/os.h"

namespace bypass::runtime {

namespace {

std::atomic<std::size_t> g_bytes{0};

/// Bytes of address space that this process has mapped (proc(5), statm); 0: /proc does not say.
std::size_t mapped_bytes() {
  const long fd = os::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[64];
  const long length = os::call(SYS_read, fd, os::address(text), sizeof text);
  os::call(SYS_close, fd);
  std::size_t pages = 0;
  if (length > 0) std::from_chars(text, text + length, pages);
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

PortAddresses::PortAddresses() : before_(mapped_bytes()) {}

PortAddresses::~PortAddresses() {
  const std::size_t now = mapped_bytes();
  const std::size_t grown = before_ != 0 && now > before_ ? now - before_ : 0;
  std::size_t known = g_bytes.load(std::memory_order_relaxed);
  while (grown > known && !g_bytes.compare_exchange_weak(known, grown, std::memory_order_relaxed)) {
  }
}

std::size_t PortAddresses::bytes() {
  return g_bytes.load(std::memory_order_relaxed);
}

}  // namespace bypass::runtime
