// Iova: by which addresses a process's cards read and write memory. EAL has one mode for all cards, from its start on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bypass::dpdk {

enum class Iova {
  kVirtual,   // the process's own; an IOMMU translates, or the peer has the memory mapped (vhost, virtio)
  kPhysical,  // no IOMMU stands between: uio, or vfio's no-IOMMU mode
};

/// The mode that a process's cards need, by the drivers that they are bound to. `cards`: PCI addresses. `first` becomes
/// the address of the first card that needs physical addresses. `root` is put in front of /sys; it is empty except in
/// tests.
Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& root = "");

/// Whether this process can have physical addresses. If it cannot, `problem` says what to do.
bool can_have_physical(const std::string& card, bool huge_pages, std::size_t bytes, std::string& problem);

}  // namespace bypass::dpdk
