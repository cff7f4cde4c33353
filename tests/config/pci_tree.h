// PciTree: a folder with the files of /sys and /proc about PCI devices, as a machine with such devices has them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace bypass::test {

class PciTree {
 public:
  PciTree() {
    std::string pattern = std::filesystem::temp_directory_path() / "bypass-pci-XXXXXX";
    root_ = mkdtemp(pattern.data());
    std::filesystem::create_directories(root_ + "/sys/bus/pci/devices");
    write("/proc/net/route", "Iface\tDestination\tGateway\n");
    write("/usr/share/misc/pci.ids",
          "# comment\n8085  Another\n\t10d3  Not this one\n8086  Intel Corporation\n\t10d2  Not this one\n"
          "\t10d3  82574L Gigabit Network Connection\n\t\t8086 1  subsystem\n144d  Samsung\n\ta808  NVMe SSD\n");
  }
  PciTree(const PciTree&) = delete;
  PciTree& operator=(const PciTree&) = delete;
  ~PciTree() { std::filesystem::remove_all(root_); }

  [[nodiscard]] const std::string& root() const { return root_; }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(root_ + path); }
  void link(const std::string& target, const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }

  /// `numbers`: "8086:10d3".
  void add(const std::string& address, const std::string& numbers, const std::string& class_code,
           const std::string& driver) const {
    const std::string device = "/sys/bus/pci/devices/" + address;
    write(device + "/vendor", "0x" + numbers.substr(0, 4) + "\n");
    write(device + "/device", "0x" + numbers.substr(5) + "\n");
    write(device + "/class", "0x" + class_code + "\n");
    if (!driver.empty()) link("../../../../bus/pci/drivers/" + driver, device + "/driver");
  }
  void set_group(const std::string& address, const std::string& group) const {
    link("../../../kernel/iommu_groups/" + group, "/sys/bus/pci/devices/" + address + "/iommu_group");
    link("../../../../devices/" + address, "/sys/kernel/iommu_groups/" + group + "/devices/" + address);
  }
  void set_interface(const std::string& address, const std::string& name) const {
    folder("/sys/bus/pci/devices/" + address + "/net/" + name);
  }
  void set_default_route(const std::string& interface) const {
    write("/proc/net/route", "Iface\tDestination\tGateway\n" + interface + "\t0002A8C0\t00000000\n" + interface +
                                 "\t00000000\t0102A8C0\n");
  }

 private:
  std::string root_;
};

}  // namespace bypass::test
