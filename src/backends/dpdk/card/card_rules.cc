#include "backends/dpdk/card/card_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "backends/pci_card.h"

namespace bypass::dpdk {
namespace {

struct Row {
  std::string_view driver;
  CardRules rules;
};
// net_virtio chains buffers (VIRTIO_NET_F_MRG_RXBUF) for frames that its peer joined. vmxnet3 loses joined frames. It
// also drops each frame of more than 16 parts, whatever limits it reports (VMXNET3_MAX_TXD_PER_PKT). With an MTU of
// 9,000 bulk that it receives stalls.
constexpr std::array<Row, 2> kRows{
    {{"net_virtio", {.lro = true}}, {"net_vmxnet3", {.most_segments = 16, .most_mtu = 1500}}}};

constexpr std::uint16_t kIntel = 0x8086;
// Cards of the em driver that have MSI-X: 82574L and 82574LA.
constexpr std::array<std::uint16_t, 2> kSilentByMsix{0x10d3, 0x10f6};

bool msi_alone = false;

}  // namespace

CardRules rules_of_driver(const char* driver) {
  const std::string_view name = driver == nullptr ? "" : driver;
  const auto* const found =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.driver == name; });
  return found == kRows.end() ? CardRules{} : found->rules;
}

void shorten_tso(PortCaps& caps, std::uint32_t refused_bytes) {
  if (refused_bytes > caps.tso_max_bytes) return;
  caps.tso_max_bytes = refused_bytes / 2;
  caps.tso = caps.tso && caps.tso_max_bytes >= 2 * caps.mtu;
}

CardBinding binding_of(const PciCard& card) {
  const bool is_silent = std::find(kSilentByMsix.begin(), kSilentByMsix.end(), card.device) != kSilentByMsix.end();
  return {.msi = card.vendor == kIntel && is_silent, .interrupts = card.driver != "uio_pci_generic"};
}

CardBinding rules_of_card(const std::string& pci_address) {
  return binding_of(read_pci_card(pci_address));
}

void ask_for_msi(bool on) {
  msi_alone = on;
}

void correct_irq_info(vfio_irq_info& info) {
  const bool is_msix = info.index == VFIO_PCI_MSIX_IRQ_INDEX;
  const bool has_none = info.count == 0 && (is_msix || info.index == VFIO_PCI_MSI_IRQ_INDEX);
  if (has_none || (is_msix && msi_alone)) info.flags &= ~static_cast<__u32>(VFIO_IRQ_INFO_EVENTFD);
}

}  // namespace bypass::dpdk
