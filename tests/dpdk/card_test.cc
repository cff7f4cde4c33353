// What is known about a card before it is opened, and what the kernel's answers about it mean.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "backends/dpdk/card/card_memory.h"
#include "backends/dpdk/card/card_rules.h"
#include "backends/dpdk/card/iova.h"
#include "backends/dpdk/card/lost_frames.h"
#include "backends/pci_card.h"

namespace bypass::dpdk {
namespace {

namespace fs = std::filesystem;

/// A folder that stands for /sys.
class Sysfs : public ::testing::Test {
 protected:
  Sysfs() {
    std::string pattern = fs::temp_directory_path() / "bypass-sysfs-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~Sysfs() override { fs::remove_all(root_); }

  /// A card that is bound to a driver, in an IOMMU group; empty: in no group.
  void add(const std::string& address, const std::string& driver, const std::string& group,
           const std::string& name = "") {
    const fs::path device = root_ / "sys/bus/pci/devices" / address;
    fs::create_directories(device);
    if (!driver.empty()) fs::create_symlink("../../../bus/pci/drivers/" + driver, device / "driver");
    if (group.empty()) return;
    fs::create_symlink("../../../kernel/iommu_groups/" + group, device / "iommu_group");
    fs::create_directories(root_ / "sys/kernel/iommu_groups" / group);
    if (!name.empty()) std::ofstream(root_ / "sys/kernel/iommu_groups" / group / "name") << name << '\n';
  }
  Iova ask(const std::vector<std::string>& cards) { return iova_of_cards(cards, first_, root_); }

  fs::path root_;
  std::string first_;
};

TEST_F(Sysfs, AnIommuTranslatesVirtualAddresses) {
  add("0000:01:00.0", "vfio-pci", "7");
  EXPECT_EQ(ask({"0000:01:00.0"}), Iova::kVirtual);
}

TEST_F(Sysfs, UioNeedsPhysicalAddresses) {
  add("0000:01:00.0", "uio_pci_generic", "7");
  EXPECT_EQ(ask({"0000:01:00.0"}), Iova::kPhysical);
  EXPECT_EQ(first_, "0000:01:00.0");
}

TEST_F(Sysfs, SoDoesVfioWithoutAnIommu) {
  add("0000:01:00.0", "vfio-pci", "0", "vfio-noiommu");
  EXPECT_EQ(ask({"0000:01:00.0"}), Iova::kPhysical);
}

TEST_F(Sysfs, OneCardDecidesForAll) {
  add("0000:01:00.0", "vfio-pci", "7");
  add("0000:02:00.0", "uio_pci_generic", "");
  EXPECT_EQ(ask({"0000:01:00.0", "0000:02:00.0"}), Iova::kPhysical);
  EXPECT_EQ(first_, "0000:02:00.0");
}

TEST_F(Sysfs, ACardOnTheKernelsOwnDriverDecidesNothing) {
  add("0000:01:00.0", "mlx5_core", "");
  EXPECT_EQ(ask({"0000:01:00.0"}), Iova::kVirtual);
  EXPECT_EQ(ask({}), Iova::kVirtual);
}

TEST_F(Sysfs, ACardThatComesBackOnUioIsRefusedWhereMemoryIsMadeForAnIommu) {
  add("0000:01:00.0", "uio_pci_generic", "");
  add("0000:02:00.0", "vfio-pci", "7");
  const PciCard uio = read_pci_card("0000:01:00.0", root_), vfio = read_pci_card("0000:02:00.0", root_);
  EXPECT_EQ(iova_problem(uio, Iova::kVirtual),
            "the card is on uio_pci_generic now, without an IOMMU, and this process's memory is not made for that; "
            "accepted is the driver of before, or a new start of the program");
  EXPECT_EQ(iova_problem(uio, Iova::kPhysical), "");
  EXPECT_EQ(iova_problem(vfio, Iova::kVirtual), "");
  EXPECT_EQ(iova_problem(vfio, Iova::kPhysical), "") << "EAL maps the physical ones for it";
}

TEST_F(Sysfs, ACardThatLeavesLosesItsDriverFirst) {
  add("0000:01:00.0", "vfio-pci", "7");
  EXPECT_EQ(kernel_driver_of("0000:01:00.0", root_), "vfio-pci");
  fs::remove(root_ / "sys/bus/pci/devices/0000:01:00.0/driver");
  EXPECT_EQ(kernel_driver_of("0000:01:00.0", root_), "");
  EXPECT_EQ(kernel_driver_of("0000:02:00.0", root_), "") << "no such device";
}

vfio_irq_info told(unsigned index, unsigned count) {
  vfio_irq_info info{sizeof info, VFIO_IRQ_INFO_EVENTFD, index, count};
  correct_irq_info(info);
  return info;
}

TEST(CardRules, AKindOfInterruptThatACardHasNotIsNotTaken) {
  EXPECT_EQ(told(VFIO_PCI_MSIX_IRQ_INDEX, 0).flags, 0U);
  EXPECT_EQ(told(VFIO_PCI_MSI_IRQ_INDEX, 0).flags, 0U);
  EXPECT_NE(told(VFIO_PCI_MSIX_IRQ_INDEX, 3).flags, 0U);
  EXPECT_NE(told(VFIO_PCI_INTX_IRQ_INDEX, 0).flags, 0U) << "the last one: EAL refuses the card itself";
}

TEST(CardRules, WhereMsiXIsSilentMsiIsTaken) {
  ask_for_msi(true);
  EXPECT_EQ(told(VFIO_PCI_MSIX_IRQ_INDEX, 5).flags, 0U);
  EXPECT_NE(told(VFIO_PCI_MSI_IRQ_INDEX, 1).flags, 0U);
  ask_for_msi(false);
  EXPECT_NE(told(VFIO_PCI_MSIX_IRQ_INDEX, 5).flags, 0U);
}

TEST(CardMemory, TheRegistersOfACardOnUioAreTheMappedFilesOfItsResources) {
  constexpr const char* kMaps =
      "55d0c0a00000-55d0c0a02000 r--p 00000000 fe:01 1234   /usr/bin/redis-server\n"
      "1100020000-1100040000 rw-s 00000000 00:16 9876   /sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/resource0\n"
      "1100040000-1100060000 rw-s 00000000 00:16 9877   /sys/devices/pci0000:00/0000:00:03.0/0000:02:00.0/resource0\n"
      "1100060000-1100064000 rw-s 00000000 00:16 9878   /sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/resource3\n"
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0";
  const std::vector<MappedRegisters> expected{{0x1100020000, 0x20000}, {0x1100060000, 0x4000}};
  EXPECT_EQ(mapped_registers(kMaps, "0000:01:00.0"), expected);
  EXPECT_TRUE(mapped_registers(kMaps, "0000:03:00.0").empty());
  EXPECT_TRUE(mapped_registers("", "0000:01:00.0").empty());
}

TEST(CardMemory, OnVfioTheyHaveNoNameOfTheCards) {
  constexpr const char* kMaps =
      "1100020000-1100040000 rw-s 8000000000 00:0e 3   anon_inode:[vfio-device]\n"
      "1100040000-1100041000 ---p 00000000 00:00 0\n"
      "7f0000000000-7f0000001000 rw-s 00000000 00:0e 3   anon_inode:[eventfd]\n";
  EXPECT_EQ(mapped_by_vfio(kMaps), (std::vector<MappedRegisters>{{0x1100020000, 0x20000}}));
}

TEST(CardMemory, AddressesAreTakenBelowWhatAnIommuTranslates) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  EXPECT_EQ(free_below_iommu_limit("", 160 * kGiB), 4 * kGiB);
  constexpr const char* kParents =
      "00400000-00500000 r-xp 00000000 fe:01 1 /usr/sbin/nginx\n"
      "100000000-2280000000 rw-p 00000000 00:00 0\n"
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n";
  EXPECT_EQ(free_below_iommu_limit(kParents, 160 * kGiB), 138 * kGiB);
  EXPECT_EQ(free_below_iommu_limit(kParents, 400 * kGiB), 0U) << "no room is left";
}

TEST(CardMemory, AForkedChildHasNone) {
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  keep_from_children({{reinterpret_cast<std::uintptr_t>(page), 4096}});
  const pid_t child = fork();
  if (child == 0) _exit(msync(page, 4096, MS_ASYNC) == 0 ? 1 : errno == ENOMEM ? 0 : 2);  // ENOMEM: not mapped
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  munmap(page, 4096);
}

TEST(CardRules, UioHasNoInterruptWorthWaitingFor) {
  PciCard card;
  card.driver = "uio_pci_generic";
  EXPECT_FALSE(binding_of(card).interrupts);
  card.driver = "vfio-pci";
  EXPECT_TRUE(binding_of(card).interrupts);
}

TEST(CardRules, OnlyThe82574IsOpenedByMsi) {
  PciCard card;
  card.vendor = 0x8086, card.device = 0x10d3;
  EXPECT_TRUE(binding_of(card).msi);
  card.device = 0x10c9;  // 82576, which igb serves
  EXPECT_FALSE(binding_of(card).msi);
  card.vendor = 0x15ad, card.device = 0x10d3;
  EXPECT_FALSE(binding_of(card).msi);
}

constexpr std::uintptr_t kPage = kHugePage, kHidden = 6 * kPage;

std::uint64_t physical_address_of(std::uintptr_t place) {
  return place / kPage * kPage == kHidden ? kNoCardAddress : 1000 * kPage - place / kPage * kPage + place % kPage;
}

TEST(CardMemory, WithPhysicalAddressesEachHugePageIsAPart) {
  const auto parts = reachable_parts(4 * kPage + 100, kPage, Iova::kPhysical, physical_address_of);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].offset, 0U);
  EXPECT_EQ(parts[0].bytes, kPage - 100);
  EXPECT_EQ(parts[0].address, 996 * kPage + 100);
  EXPECT_EQ(parts[1].offset, kPage - 100);
  EXPECT_EQ(parts[1].bytes, 100U);
  EXPECT_EQ(parts[1].address, 995 * kPage);
}

TEST(CardMemory, NoCardIsGivenAPartThatHasNoAddress) {
  const auto parts = reachable_parts(5 * kPage, 3 * kPage, Iova::kPhysical, physical_address_of);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].offset, 0U);
  EXPECT_EQ(parts[1].offset, 2 * kPage);
  EXPECT_TRUE(reachable_parts(kHidden, kPage, Iova::kPhysical, physical_address_of).empty());
}

TEST(CardMemory, BehindAnIommuMemoryIsOnePart) {
  const auto parts = reachable_parts(4 * kPage + 100, 3 * kPage, Iova::kVirtual, [](std::uintptr_t p) { return p; });
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].bytes, 3 * kPage);
  EXPECT_EQ(parts[0].address, 4 * kPage + 100);
}

PortCaps caps_of_tso(std::uint32_t bytes) {
  PortCaps caps;
  caps.tso = true;
  caps.tso_max_bytes = bytes;
  return caps;
}

TEST(CardRules, RefusedFramesEndInNoTso) {
  PortCaps caps = caps_of_tso(30'000);
  shorten_tso(caps, 30'000);
  EXPECT_TRUE(caps.tso);
  EXPECT_EQ(caps.tso_max_bytes, 15'000U);
  for (int i = 0; i < 4; i++) shorten_tso(caps, caps.tso_max_bytes);
  EXPECT_FALSE(caps.tso);
}

TEST(CardRules, ABurstOfRefusedFramesIsOneRefusal) {
  PortCaps caps = caps_of_tso(60'000);
  for (int i = 0; i < 32; i++) shorten_tso(caps, 40'000);
  EXPECT_TRUE(caps.tso);
  EXPECT_EQ(caps.tso_max_bytes, 20'000U);
}

TEST(CardRules, JoinedFramesOnlyWhereTheyArriveWhole) {
  EXPECT_TRUE(rules_of_driver("net_virtio").lro);
  EXPECT_FALSE(rules_of_driver("net_vmxnet3").lro);
  EXPECT_EQ(rules_of_driver("net_vmxnet3").most_segments, 16);
  EXPECT_EQ(rules_of_driver("net_vmxnet3").most_mtu, 1500);
  EXPECT_EQ(rules_of_driver("net_virtio").most_mtu, 0);
  EXPECT_FALSE(rules_of_driver("net_unheard_of").lro);
  EXPECT_FALSE(rules_of_driver(nullptr).lro);
}

TEST(LostFrames, AreAddedUpOverOpenings) {
  LostFrames lost;
  EXPECT_EQ(lost.add(5), 5U);
  EXPECT_EQ(lost.add(7), 2U);
  EXPECT_EQ(lost.add(3), 3U) << "opened again";
}

TEST(LostFrames, WhatACardThatHasGoneReadsAsIsNoCount) {
  LostFrames lost;
  EXPECT_EQ(lost.add(10), 10U);
  EXPECT_EQ(lost.add(10 + std::uint64_t{UINT32_MAX}), 0U);
  EXPECT_EQ(lost.add(10 + 2 * std::uint64_t{UINT32_MAX}), 0U);
  EXPECT_EQ(lost.add(11), 1U);
}

}  // namespace
}  // namespace bypass::dpdk
