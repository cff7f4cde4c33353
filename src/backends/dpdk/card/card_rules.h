// What is known of single drivers of cards, beyond what they say of themselves (docs/card.md has the table).
#pragma once

#include <linux/vfio.h>

#include <cstdint>
#include <string>

#include "stack/frame/port.h"

namespace bypass {
struct PciCard;
}

namespace bypass::dpdk {

struct CardRules {
  /// Frames that the card has joined arrive whole. Otherwise it is not asked to join any.
  bool lro = false;
  /// Of one frame to send; what is longer the driver drops, or refuses. 0: as it says itself.
  std::uint16_t most_segments = 0;
  /// The largest MTU, in bytes, that it is known to receive. 0: as it says itself.
  std::uint16_t most_mtu = 0;
};

/// By the driver's name in rte_eth_dev_info.
CardRules rules_of_driver(const char* driver);

/// A driver has refused a TSO frame of so many payload bytes: half as long ones from now on, none at last. A frame that
/// is longer than what is allowed by now was made before an earlier refusal, and changes nothing.
void shorten_tso(PortCaps& caps, std::uint32_t refused_bytes);

/// How a card's interrupts are to be had, which is asked before it is opened.
struct CardBinding {
  /// By MSI though it has MSI-X: DPDK's em driver never tells such a card (82574, e1000e) which vector is whose, so by
  /// MSI-X it is silent (data sheet of the 82574, register IVAR).
  bool msi = false;
  /// Not at all on uio_pci_generic: it has the card's line interrupt alone, which it masks at each one, and a card
  /// whose cause DPDK's driver has not cleared yet raises it again at once (e1000e of QEMU's).
  bool interrupts = true;
};
CardBinding binding_of(const PciCard& card);
CardBinding rules_of_card(const std::string& pci_address);

/// The next card that is opened is asked for MSI alone. Control thread.
void ask_for_msi(bool on);

/// What the kernel says of a kind of interrupt of a card's. EAL takes the first kind that has an eventfd, MSI-X to
/// begin with, and does not see that the card has none of them.
void correct_irq_info(vfio_irq_info& info);

}  // namespace bypass::dpdk
