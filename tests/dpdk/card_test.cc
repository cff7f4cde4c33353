// What is known about a card before it is opened, and what the kernel's answers about it mean.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "backends/dpdk/card_rules.h"
#include "backends/dpdk/iova.h"
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

TEST_F(Sysfs, WithoutHugePagesTheMessageSaysHowManyAndWhichDriverInstead) {
  std::string problem;
  ASSERT_FALSE(can_have_physical("0000:01:00.0", false, std::size_t{112} << 20, problem));
  EXPECT_NE(problem.find("56 free huge pages"), std::string::npos) << problem;
  EXPECT_NE(problem.find("echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override"), std::string::npos)
      << problem;
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

TEST(CardRules, ARefusedFrameEndsInNoTso) {
  PortCaps caps;
  caps.tso = true;
  caps.tso_max_bytes = 30'000;
  shorten_tso(caps);
  EXPECT_TRUE(caps.tso);
  EXPECT_EQ(caps.tso_max_bytes, 15'000U);
  for (int i = 0; i < 4; i++) shorten_tso(caps);
  EXPECT_FALSE(caps.tso);
}

TEST(CardRules, JoinedFramesOnlyWhereTheyArriveWhole) {
  EXPECT_TRUE(rules_of_driver("net_virtio").lro);
  EXPECT_FALSE(rules_of_driver("net_vmxnet3").lro);
  EXPECT_EQ(rules_of_driver("net_vmxnet3").most_segments, 16);
  EXPECT_FALSE(rules_of_driver("net_unheard_of").lro);
  EXPECT_FALSE(rules_of_driver(nullptr).lro);
}

}  // namespace
}  // namespace bypass::dpdk
