#include "backends/dpdk/card/card_memory.h"

#include <sys/mman.h>

#include "os/memory_maps.h"

namespace bypass::dpdk {
namespace {

std::vector<MappedRegisters> mappings_with(std::string_view part, std::string_view maps) {
  std::vector<MappedRegisters> all;
  os::for_each_mapping(maps, [&](const os::MemoryMapping& each) {
    if (each.name.find(part) != std::string_view::npos) all.push_back({each.begin, each.bytes()});
    return true;
  });
  return all;
}

}  // namespace

std::vector<MappedRegisters> mapped_registers(std::string_view maps, const std::string& address) {
  return mappings_with("/" + address + "/resource", maps);
}

std::vector<MappedRegisters> mapped_by_vfio(std::string_view maps) {
  return mappings_with("[vfio-device]", maps);
}

void keep_from_children(const std::vector<MappedRegisters>& registers) {
  for (const MappedRegisters& each : registers) madvise(reinterpret_cast<void*>(each.begin), each.bytes, MADV_DONTFORK);
}

std::uintptr_t free_below_iommu_limit(std::string_view maps, std::size_t bytes) {
  constexpr std::uintptr_t kBorder = std::uintptr_t{1} << 30, kLimit = std::uintptr_t{1} << 39;
  std::uintptr_t place = 4 * kBorder;
  for (const MappedRegisters& each : mappings_with("", maps))  // in ascending order
    if (each.begin < place + bytes && each.begin + each.bytes > place)
      place = (each.begin + each.bytes + kBorder - 1) / kBorder * kBorder;
  return place + bytes <= kLimit ? place : 0;
}

}  // namespace bypass::dpdk
