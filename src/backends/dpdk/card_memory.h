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
/// (proc_pid_maps(5)). On vfio there are none: the kernel leaves a card's registers until the card is closed.
std::vector<MappedRegisters> mapped_registers(std::string_view maps, const std::string& address);

/// The text for this process. Empty: it cannot be read.
std::string maps_of_process();

}  // namespace bypass::dpdk
