// PciCard: what the kernel tells, in /sys and /proc, about a PCI device and what surrounds it. Nothing is changed, and
// no driver is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bypass {

struct PciDevice {
  std::string address;  // 0000:3b:00.0
  std::uint16_t vendor = 0, device = 0;
  std::uint32_t class_code = 0;  // 24 bits: class, subclass, programming interface (PCI 3.0, appendix D)
  std::string driver;            // the kernel's driver that is bound to the device; empty: none
};

struct PciCard : PciDevice {
  bool is_there = false;
  bool has_sysfs = false;               // the folder of the PCI bus itself is there
  std::vector<std::string> interfaces;  // in this process's network namespace
  std::string default_route;            // which of `interfaces` carries the default route; empty: none does
  std::string above;                    // … through this interface on top (a bridge, a bond, a VLAN); empty: directly
  std::string group;                    // the number of the IOMMU group; empty: the machine has no IOMMU in use
  bool is_without_iommu = false;        // … the group is one of vfio's mode without an IOMMU
  std::vector<PciDevice> neighbours;    // the other devices in the IOMMU group, without bridges
  std::string uio;                      // the card's uio device, such as uio0; empty: none
  std::string lockdown;                 // lockdown(7): none, integrity, confidentiality; empty: not known
  bool has_uverbs = false;              // the RDMA part of the kernel's driver is there
};

/// The full form of an address: 0000:3b:00.0, also for "3B:00.0". Nothing: the text is no PCI address.
std::optional<std::string> full_pci_address(std::string_view text);

/// `root` is put in front of /sys and /proc. It is empty except in tests.
PciCard read_pci_card(const std::string& address, const std::string& root = "");

/// The kernel's driver that has the device now; empty: none has, or there is no such device. One readlink(2).
std::string kernel_driver_of(const std::string& address, const std::string& root = "");

/// Whether cards can be seen at all. After chroot(2) there is no /sys, and nothing is known of a card by its absence.
bool sees_cards(const std::string& root = "");

/// The device file by which a process has the card: /dev/vfio/14, which the kernel gives to one process at a time, or
/// /dev/uio0, which it gives to any number. Empty: there is no such file, as with the kernel's own drivers.
std::string device_file(const PciCard& card);

/// Whether the card would reach memory by physical addresses. Of the kernel's drivers that DPDK's use, uio's know no
/// IOMMU, and vfio-pci has a mode without one. A driver of another kind (mlx5's) translates itself.
bool needs_physical_addresses(const PciCard& card);

inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
/// How many huge pages hold so many bytes.
constexpr std::uint64_t huge_pages_for(std::uint64_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage;
}
/// Huge pages of 2 MiB that are free.
std::uint64_t free_huge_pages(const std::string& root = "");

/// The names of vendor and model in pci.ids(5), followed by the numbers: "Intel Corporation 82574L (8086:10d3)".
/// Without that file, only the numbers.
std::string pci_name(const PciDevice& device, const std::string& root = "");

}  // namespace bypass
