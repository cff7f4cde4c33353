// Iova: by which addresses a process's cards read and write memory. EAL has one mode for all cards, from its start on.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// A part of a piece of memory that is contiguous to a card.
struct CardMemory {
  std::size_t offset = 0, bytes = 0;
  std::uint64_t address = 0;  // by which the card reaches it
};

/// What address_of() says of memory that no card can be told of: RTE_BAD_IOVA.
inline constexpr std::uint64_t kNoCardAddress = UINT64_MAX;

/// The parts of `bytes` at `memory` that a card can reach. Physical addresses are contiguous within a huge page only,
/// so there each page is a part. A part without an address is left out: a card would write to any place by it.
std::vector<CardMemory> reachable_parts(std::uintptr_t memory, std::size_t bytes, Iova mode,
                                        std::uint64_t (*address_of)(std::uintptr_t));

}  // namespace bypass::dpdk
