// What is known of single drivers of cards, beyond what they say of themselves (docs/card.md has the table).
#pragma once

#include <linux/vfio.h>

#include <cstdint>
#include <string>

namespace bypass::dpdk {

struct CardRules {
  /// Frames that the card has joined arrive whole. Otherwise it is not asked to join any.
  bool lro = false;
  /// Of one frame to send; what is longer the driver drops, or refuses. 0: as it says itself.
  std::uint16_t most_segments = 0;
};

/// By the driver's name in rte_eth_dev_info.
CardRules rules_of_driver(const char* driver);

/// Whether a card's one vector is to be MSI's though it has MSI-X: DPDK's em driver never tells such a card (82574,
/// e1000e) which vector is whose, so by MSI-X it is silent (data sheet of the 82574, register IVAR).
bool needs_msi(const std::string& pci_address);

/// The next card that is opened is asked for MSI alone. Control thread.
void ask_for_msi(bool on);

/// What the kernel says of a kind of interrupt of a card's. EAL takes the first kind that has an eventfd, MSI-X to
/// begin with, and does not see that the card has none of them.
void correct_irq_info(vfio_irq_info& info);

}  // namespace bypass::dpdk
