#include "backends/dpdk/card_rules.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "backends/dpdk/libc.h"

namespace bypass::dpdk {
namespace {

struct Row {
  std::string_view driver;
  CardRules rules;
};
// net_virtio chains buffers (VIRTIO_NET_F_MRG_RXBUF) for what its peer joined. vmxnet3 loses joined frames, and drops
// frames of more than 16 parts, cut ones, too, whatever its limits say (VMXNET3_MAX_TXD_PER_PKT).
constexpr std::array<Row, 2> kRows{{{"net_virtio", {.lro = true}}, {"net_vmxnet3", {.most_segments = 16}}}};

constexpr unsigned long kIntel = 0x8086;
// Cards of the em driver that have MSI-X: 82574L and 82574LA.
constexpr std::array<unsigned long, 2> kSilentByMsix{0x10d3, 0x10f6};

unsigned long read_id(const std::string& path) {
  const int fd = libc.open64(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[16] = {};
  const ssize_t got = libc.read(fd, text, sizeof text - 1);
  libc.close(fd);
  return got > 0 ? std::strtoul(text, nullptr, 16) : 0;
}

bool msi_alone = false;

}  // namespace

CardRules rules_of_driver(const char* driver) {
  const std::string_view name = driver == nullptr ? "" : driver;
  const auto* const found =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.driver == name; });
  return found == kRows.end() ? CardRules{} : found->rules;
}

bool needs_msi(const std::string& pci_address) {
  const std::string folder = "/sys/bus/pci/devices/" + pci_address;
  if (read_id(folder + "/vendor") != kIntel) return false;
  const unsigned long device = read_id(folder + "/device");
  return std::find(kSilentByMsix.begin(), kSilentByMsix.end(), device) != kSilentByMsix.end();
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
