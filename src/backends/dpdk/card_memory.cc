#include "backends/dpdk/card_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace bypass::dpdk {
namespace {

// "BEGIN-END PERMISSIONS OFFSET DEVICE INODE PATH", both addresses in hexadecimal.
MappedRegisters range_of(std::string_view line) {
  constexpr int kHex = 16;
  std::uintptr_t begin = 0, end = 0;
  const char* const stop = line.data() + line.size();
  const auto first = std::from_chars(line.data(), stop, begin, kHex);
  if (first.ptr == stop || *first.ptr != '-') return {};
  std::from_chars(first.ptr + 1, stop, end, kHex);
  return end > begin ? MappedRegisters{begin, end - begin} : MappedRegisters{};
}

std::vector<MappedRegisters> lines_with(std::string_view part, std::string_view maps) {
  std::vector<MappedRegisters> all;
  while (!maps.empty()) {
    const std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(line.size() + 1, maps.size()));
    if (line.find(part) == std::string_view::npos) continue;
    if (const MappedRegisters range = range_of(line); range.bytes != 0) all.push_back(range);
  }
  return all;
}

}  // namespace

std::vector<MappedRegisters> mapped_registers(std::string_view maps, const std::string& address) {
  return lines_with("/" + address + "/resource", maps);
}

std::vector<MappedRegisters> mapped_by_vfio(std::string_view maps) {
  return lines_with("[vfio-device]", maps);
}

void keep_from_children(const std::vector<MappedRegisters>& registers) {
  for (const MappedRegisters& each : registers) madvise(reinterpret_cast<void*>(each.begin), each.bytes, MADV_DONTFORK);
}

std::uintptr_t free_below_iommu_limit(std::string_view maps, std::size_t bytes) {
  constexpr std::uintptr_t kBorder = std::uintptr_t{1} << 30, kLimit = std::uintptr_t{1} << 39;
  std::uintptr_t place = 4 * kBorder;
  for (const MappedRegisters& each : lines_with("", maps))  // in ascending order
    if (each.begin < place + bytes && each.begin + each.bytes > place)
      place = (each.begin + each.bytes + kBorder - 1) / kBorder * kBorder;
  return place + bytes <= kLimit ? place : 0;
}

std::string maps_of_process() {
  std::string text;
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  close(fd);
  return text;
}

}  // namespace bypass::dpdk
