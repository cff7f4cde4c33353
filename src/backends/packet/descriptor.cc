#include "backends/packet/descriptor.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

// Each entry is a number plus one; 0 is an empty entry. A port has eight descriptors at most, and a process sixteen
// ports. The rest are claims: one for each flow that the process waits for.
std::array<std::atomic<int>, 1024> g_open{};

void replace(int before, int after) {
  for (auto& place : g_open) {
    int expected = before;
    if (place.compare_exchange_strong(expected, after, std::memory_order_relaxed)) return;
  }
}

int raise(int fd) {
  const int high = host->copy_high(fd);
  if (high < 0) return fd;  // no high number is left
  libc.close(fd);
  return high;
}

}  // namespace

Descriptor::Descriptor(int fd) : fd_(fd) {
  if (fd < 0) return;
  const int saved = errno;
  fd_ = raise(fd);
  libc.fcntl(fd_, F_SETFD, FD_CLOEXEC);
  host->own_descriptor(fd_, true);
  replace(0, fd_ + 1);
  errno = saved;
}

void Descriptor::close() {
  if (fd_ < 0) return;
  replace(fd_ + 1, 0);
  host->own_descriptor(fd_, false);
  libc.close(fd_);
  fd_ = -1;
}

void drop_descriptors() {
  for (auto& place : g_open) {
    const int stored = place.exchange(0, std::memory_order_relaxed);
    if (stored != 0) libc.close(stored - 1);
  }
}

void protect_descriptors(bool on) {
  for (const auto& place : g_open)
    if (const int stored = place.load(std::memory_order_relaxed); stored != 0) host->own_descriptor(stored - 1, on);
}

}  // namespace bypass::packet
