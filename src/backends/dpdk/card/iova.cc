#include "backends/dpdk/card/iova.h"

#include <algorithm>

#include "backends/pci_card.h"

namespace bypass::dpdk {

Iova iova_of_cards(const std::vector<std::string>& cards, std::string& first, const std::string& root) {
  for (const std::string& card : cards) {
    if (!needs_physical_addresses(read_pci_card(card, root))) continue;
    first = card;
    return Iova::kPhysical;
  }
  return Iova::kVirtual;
}

std::string iova_problem(const PciCard& card, Iova mode) {
  if (mode == Iova::kPhysical || !needs_physical_addresses(card)) return "";
  return "the card is on " + card.driver +
         " now, without an IOMMU, and this process's memory is not made for that; accepted is the driver of before, or "
         "a new start of the program";
}

std::vector<CardMemory> reachable_parts(std::uintptr_t memory, std::size_t bytes, Iova mode,
                                        std::uint64_t (*address_of)(std::uintptr_t)) {
  std::vector<CardMemory> parts;
  for (std::size_t done = 0, part; done < bytes; done += part) {
    const std::size_t to_border = kHugePage - (memory + done) % kHugePage;
    part = mode == Iova::kPhysical ? std::min(to_border, bytes - done) : bytes;
    const std::uint64_t address = address_of(memory + done);
    if (address != kNoCardAddress) parts.push_back({done, part, address});
  }
  return parts;
}

}  // namespace bypass::dpdk
