// Which of DPDK's drivers is made for a card. The table is made when the library is built, of what each archive says of
// itself (PMD_INFO_STRING, as dpdk-pmdinfo reads it).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "backends/pci_card.h"

namespace bypass {

struct CardDriver {
  std::string_view name;     // DPDK's: net_e1000_em
  std::string_view archive;  // net_e1000, of librte_net_e1000.a
  bool is_linked;            // into libbypass-cards.so
  std::string_view kernel;   // the kernel modules that it works with, as DPDK writes them
};

/// Where the kernel's own driver stays bound and the frames pass beside it (mlx5).
bool works_beside_kernel(const CardDriver& driver);

/// Null: no driver of this DPDK knows the card.
const CardDriver* driver_of_card(const PciDevice& card);

/// Whether the build has had a DPDK to read the table from.
bool knows_card_drivers();

/// "22.11.11"; empty: this build has none.
std::string_view dpdk_version();

}  // namespace bypass
