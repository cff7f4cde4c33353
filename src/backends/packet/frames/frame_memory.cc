#include "backends/packet/frames/frame_memory.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace bypass::packet {

bool FrameMemory::map(std::size_t bytes, Hugepages pages, std::string& problem) {
  if (pages != Hugepages::kOff && map_huge(bytes)) return true;
  if (pages == Hugepages::kOn) {
    problem = "BYPASS_HUGEPAGES=on: this process cannot have the " +
              std::to_string((bytes + kHugePage - 1) / kHugePage) + " huge pages of 2 MiB that the port needs (" +
              std::strerror(errno) + "); accepted are auto and off, or more of them (sysctl vm.nr_hugepages)";
    return false;
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    problem = "no memory for " + std::to_string(bytes >> 20) + " MiB of frames: " + std::strerror(errno);
    return false;
  }
  madvise(memory, bytes, MADV_DONTDUMP);
  memory_ = {static_cast<std::byte*>(memory), bytes};
  return true;
}

// Allocates all pages now. A page that was promised but is missing later, by a limit of the control group, is a SIGBUS.
bool FrameMemory::map_huge(std::size_t bytes) {
  const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  constexpr int kFlags = MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB;
  void* const memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (memory == MAP_FAILED) return false;
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
  if (madvise(memory, whole, kPopulateWrite) != 0 && errno != EINVAL) {
    const int error = errno;
    munmap(memory, whole);
    errno = error;
    return false;
  }
  madvise(memory, whole, MADV_DONTDUMP);
  memory_ = {static_cast<std::byte*>(memory), whole};
  huge_ = true;
  return true;
}

void FrameMemory::unmap() {
  const std::span<std::byte> memory = std::exchange(memory_, {});
  if (!memory.empty()) munmap(memory.data(), memory.size());
}

}  // namespace bypass::packet
