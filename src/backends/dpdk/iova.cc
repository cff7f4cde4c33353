#include "backends/dpdk/iova.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <string_view>

#include "backends/dpdk/libc.h"

namespace bypass::dpdk {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// The last part of what a link points to; empty: there is none.
std::string name_behind(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t n = ::readlink(link.c_str(), target, sizeof target);
  if (n <= 0) return {};
  const std::string_view text(target, static_cast<std::size_t>(n));
  return std::string(text.substr(text.rfind('/') + 1));
}

/// vfio makes groups of its own where there is no IOMMU, and names them so (Documentation/driver-api/vfio.rst).
bool has_iommu(const std::string& sysfs, const std::string& device) {
  const std::string group = name_behind(device + "/iommu_group");
  if (group.empty()) return false;
  const int fd = libc.open64((sysfs + "/kernel/iommu_groups/" + group + "/name").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;  // most have no name
  char name[32] = {};
  const ssize_t got = libc.read(fd, name, sizeof name - 1);
  libc.close(fd);
  return got <= 0 || std::string_view(name).rfind("vfio-noiommu", 0) != 0;
}

/// Of the kernel's drivers that DPDK's use, uio's know no IOMMU. A driver of another kind (mlx5's) translates itself.
bool needs_physical(const std::string& sysfs, const std::string& card) {
  const std::string device = sysfs + "/bus/pci/devices/" + card;
  const std::string driver = name_behind(device + "/driver");
  if (driver == "uio_pci_generic" || driver == "igb_uio") return true;
  return driver == "vfio-pci" && !has_iommu(sysfs, device);
}

/// /proc/self/pagemap shows page frames to whoever has it (proc_pid_pagemap(5)).
bool may_see_page_frames() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  return ::syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective >> CAP_SYS_ADMIN & 1) != 0;
}

}  // namespace

Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& sysfs) {
  for (const std::string& card : cards) {
    if (!needs_physical(sysfs, card)) continue;
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
