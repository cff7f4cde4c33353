#include "backends/dpdk/iova.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

#include "backends/pci_card.h"

namespace bypass::dpdk {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Whether the card's kernel driver leaves the IOMMU unused: uio's drivers do, and vfio-pci in its mode without one. A
/// driver that stays bound beside DPDK (mlx5's) translates addresses itself.
bool needs_physical(const PciCard& card) {
  if (card.driver == "uio_pci_generic" || card.driver == "igb_uio") return true;
  return card.driver == "vfio-pci" && (card.group.empty() || card.is_without_iommu);
}

/// Whether this process has CAP_SYS_ADMIN. With it, /proc/self/pagemap shows page frames (proc_pid_pagemap(5)).
bool may_see_page_frames() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  return ::syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective >> CAP_SYS_ADMIN & 1) != 0;
}

}  // namespace

Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& root) {
  for (const std::string& card : cards) {
    if (!needs_physical(read_pci_card(card, root))) continue;
    first = card;
    return Iova::kPhysical;
  }
  return Iova::kVirtual;
}

bool can_have_physical(const std::string& card, bool huge_pages, std::size_t bytes, std::string& problem) {
  const bool sees = may_see_page_frames();
  if (huge_pages && sees) return true;
  problem = "pci:" + card + ": its kernel driver works without an IOMMU, so the card needs physical addresses: ";
  if (!huge_pages)
    problem += std::to_string(bytes / kHugePage) +
               " free huge pages of 2 MiB (sysctl vm.nr_hugepages=" + std::to_string(bytes / kHugePage) +
               ", and BYPASS_HUGEPAGES not off)";
  if (!huge_pages && !sees) problem += " and ";
  if (!sees) problem += "the right to see them (root, or CAP_SYS_ADMIN)";
  problem +=
      ". With an IOMMU neither is needed: switch it on (intel_iommu=on, or the machine's firmware), and "
      "echo vfio-pci > /sys/bus/pci/devices/" +
      card + "/driver_override; echo " + card + " > /sys/bus/pci/devices/" + card + "/driver/unbind; echo " + card +
      " > /sys/bus/pci/drivers_probe";
  return false;
}

}  // namespace bypass::dpdk
