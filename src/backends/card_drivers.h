// Tells which of DPDK's drivers is made for a card. The table is made when the library is built, from what each archive
// says about itself (PMD_INFO_STRING, as dpdk-pmdinfo reads it).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "backends/pci_card.h"

namespace bypass {

struct CardDriver {
  std::string_view name;     // DPDK's name of the driver: net_e1000_em
  std::string_view archive;  // net_e1000 for librte_net_e1000.a
  bool is_linked;            // it is linked into libbypass-cards.so
  std::string_view kernel;   // the kernel modules that the driver works with, as DPDK writes them
};

/// Whether the kernel's own driver stays bound, and DPDK's driver works beside it (mlx5).
bool works_beside_kernel(const CardDriver& driver);

/// The driver for a card. Null: no driver of this DPDK knows the card.
const CardDriver* driver_of_card(const PciDevice& card);

/// Whether there was a DPDK at build time to read the table from.
bool knows_card_drivers();

/// Such as "22.11.11"; empty: this build has no DPDK.
std::string_view dpdk_version();

}  // namespace bypass
