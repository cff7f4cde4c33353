// The drivers of this plugin. The two plugins have the same sources and different drivers, so each has a source of its
// own for this, which cmake/dpdk.cmake makes.
#pragma once

#include <span>
#include <string_view>

namespace bypass::dpdk {

/// Those that `dpdk:` may name: "net_ring".
std::span<const std::string_view> virtual_drivers();

/// Those that find a card by its PCI address and have no names there; by their archives, separated by blanks.
std::string_view card_drivers();

/// Buses that the drivers bring along and whose devices nobody asks for, as EAL is to be told of them (--allow=…): each
/// names a device that does not exist, so that no other is tried.
std::span<const std::string_view> closed_buses();

}  // namespace bypass::dpdk
