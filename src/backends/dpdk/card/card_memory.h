// The registers of a card as they are mapped into this process, by what /proc tells of the mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bypass::dpdk {

struct MappedRegisters {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool operator==(const MappedRegisters&) const = default;
};

/// Those of a card on uio: the mapped files /sys/…/ADDRESS/resource0 and on. `maps` is the text of /proc/PID/maps
/// (os/memory_maps.h). On vfio a card's registers stay until the card is closed, and have no name of the card's.
std::vector<MappedRegisters> mapped_registers(std::string_view maps, const std::string& address);

/// Those of all cards on vfio.
std::vector<MappedRegisters> mapped_by_vfio(std::string_view maps);

/// Leaves them out of forked children. A child could else use the card, with whatever rights it has left, and the
/// kernel would count the card as open for as long as the child lives.
void keep_from_children(const std::vector<MappedRegisters>& registers);

/// Where so many bytes of addresses are free: the lowest such place from 4 GiB on, on a border of 1 GiB. 0: there is
/// none below 2^39, the least that an IOMMU translates.
std::uintptr_t free_below_iommu_limit(std::string_view maps, std::size_t bytes);

}  // namespace bypass::dpdk
