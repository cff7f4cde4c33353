// PciCard: what the kernel tells, in /sys and /proc, of a PCI device and of what stands around it. Nothing is changed,
// and no driver is asked.
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
  std::string driver;            // the kernel's that is bound to it; empty: none
};

struct PciCard : PciDevice {
  bool is_there = false;
  bool has_sysfs = false;               // the folder of the PCI bus itself
  std::vector<std::string> interfaces;  // in this process's network namespace
  std::string default_route;            // that interface of these which carries it; empty: none
  std::string above;                    // … through this one (a bridge, a bond, a VLAN); empty: itself
  std::string group;                    // the number of its IOMMU group; empty: the machine translates no addresses
  bool is_without_iommu = false;        // … a group of vfio's mode without an IOMMU
  std::vector<PciDevice> neighbours;    // the other devices of that group, bridges left out
  std::string uio;                      // its device of uio's: uio0; empty: none
  std::string lockdown;                 // lockdown(7): none, integrity, confidentiality; empty: not known
  bool has_uverbs = false;              // the RDMA half of its kernel driver is there
};

/// 0000:3b:00.0 of 3B:00.0 as well. Nothing: no PCI address.
std::optional<std::string> full_pci_address(std::string_view text);

/// `root` is put in front of /sys and /proc: empty but in tests.
PciCard read_pci_card(const std::string& address, const std::string& root = "");

/// The device file by which a process has the card: /dev/vfio/14, which the kernel gives to one at a time, or
/// /dev/uio0, which it gives to any number. Empty: there is none, as on the kernel's drivers.
std::string device_file(const PciCard& card);

/// Huge pages of 2 MiB that nobody has yet.
std::uint64_t free_huge_pages(const std::string& root = "");

/// Vendor and model as pci.ids(5) has them, followed by the numbers: "Intel Corporation 82574L (8086:10d3)". Without
/// that file the numbers alone.
std::string pci_name(const PciDevice& device, const std::string& root = "");

}  // namespace bypass
