// Iova: by which addresses a process's cards read and write memory. EAL has one mode for all cards, from its start on.
#pragma once

#include <string>
#include <vector>

namespace bypass {
struct PciCard;
}

namespace bypass::dpdk {

enum class Iova {
  kVirtual,   // the process's own; an IOMMU translates, or the peer has the memory mapped (vhost, virtio)
  kPhysical,  // no IOMMU stands between: uio, or vfio's no-IOMMU mode
};

/// The mode that a process's cards need, by the drivers that they are bound to. `cards`: PCI addresses. `first` becomes
/// the address of the first card that needs physical addresses. `root` is put in front of /sys; it is empty except in
/// tests.
Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& root = "");

/// Why a card that comes back cannot be had in this mode. Empty: it can.
std::string iova_problem(const PciCard& card, Iova mode);

}  // namespace bypass::dpdk
