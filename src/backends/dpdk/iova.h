// Which addresses a process's cards read and write memory by. EAL has one mode for all of them, from its start on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bypass::dpdk {

enum class Iova {
  kVirtual,   // the process's own; an IOMMU translates, or the peer has the memory mapped (vhost, virtio)
  kPhysical,  // no IOMMU stands between: uio, or vfio's no-IOMMU mode
};

/// Of the cards of a process (PCI addresses), by the drivers that they are bound to; `root` is put in front of /sys:
/// empty but in tests. `first` becomes the address of one that needs physical addresses.
Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& root = "");

/// Whether this process can have physical addresses; `problem` says what to do where it cannot.
bool can_have_physical(const std::string& card, bool huge_pages, std::size_t bytes, std::string& problem);

}  // namespace bypass::dpdk
