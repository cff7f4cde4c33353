#include "backends/card_drivers.h"

#include <algorithm>
#include <array>

namespace bypass {
namespace {

// A card's numbers, and the index of its driver in kDrivers.
struct CardId {
  std::uint16_t vendor, device, driver;
};

// kDpdkVersion, kDrivers and kIds are made by cmake/dpdk.cmake.
#include "card_drivers.inc"

}  // namespace

bool works_beside_kernel(const CardDriver& driver) {
  return driver.kernel.find("ib_uverbs") != std::string_view::npos;
}

const CardDriver* driver_of_card(const PciDevice& card) {
  const auto is_card = [&](const CardId& id) { return id.vendor == card.vendor && id.device == card.device; };
  // Two drivers may know a card (a crypto half, a stand-in). One that is linked takes precedence.
  const CardDriver* found = nullptr;
  for (const CardId& id : kIds) {
    if (!is_card(id)) continue;
    const CardDriver& driver = kDrivers[id.driver];
    if (driver.is_linked) return &driver;
    if (found == nullptr) found = &driver;
  }
  return found;
}

bool knows_card_drivers() {
  return !kDpdkVersion.empty();
}

std::string_view dpdk_version() {
  return kDpdkVersion;
}

}  // namespace bypass
