#include "runtime/crash/device_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace bypass::runtime::crash {
namespace {

// `begin` is written last when a range is added, and first when it goes: whoever reads it not null has its bytes.
struct Range {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> bytes{0};
};
constinit std::array<Range, 64> g_ranges;
constexpr std::uintptr_t kTaken = 1;  // no page begins there

void add(std::uintptr_t begin, std::size_t bytes) {
  for (Range& range : g_ranges) {
    std::uintptr_t none = 0;
    if (!range.begin.compare_exchange_strong(none, kTaken, std::memory_order_relaxed)) continue;
    range.bytes.store(bytes, std::memory_order_relaxed);
    return range.begin.store(begin, std::memory_order_release);
  }
}

void remove(std::uintptr_t begin) {
  for (Range& range : g_ranges)
    if (range.begin.load(std::memory_order_relaxed) == begin) return range.begin.store(0, std::memory_order_release);
}

// A page alone: a card may have megabytes of registers, of which a driver touches few.
bool put_page(std::uintptr_t place) {
  constexpr std::size_t kPage = 4096;
  constexpr int kOnes = 0xff, kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  const long page = syscall(SYS_mmap, place & ~(kPage - 1), kPage, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (page == -1) return false;
  std::memset(reinterpret_cast<void*>(page), kOnes, kPage);
  return true;
}

}  // namespace

void guard_device_memory(const void* begin, std::size_t bytes, bool on) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  on ? add(address, bytes) : remove(address);
}

bool replace_device_memory(const void* address) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  for (const Range& range : g_ranges) {
    const std::uintptr_t begin = range.begin.load(std::memory_order_acquire);
    const std::size_t bytes = range.bytes.load(std::memory_order_relaxed);
    if (begin <= kTaken || place < begin || place - begin >= bytes) continue;
    return put_page(place);
  }
  return false;
}

}  // namespace bypass::runtime::crash
