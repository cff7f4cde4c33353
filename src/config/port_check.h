// The cheap check of a port, made before `bypass run` starts a program and at the program's first internet socket. It
// finds what can be found without opening the port and without loading its plugin: a program that never uses an
// accelerated address shall not pay for those.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/config.h"

namespace bypass::runtime {

/// Whether a port of this kind is an existing network interface.
bool is_interface_kind(std::string_view kind);

/// The PCI address of a port's card: of pci:ADDRESS, and of dpdk:ADDRESS with the driver's arguments behind it.
/// Nothing: the port is on no card.
std::optional<std::string> card_of(const PortConfig& port);

/// What is wrong with the port, and what would be accepted, without the port's name. Empty: no problem is visible.
std::string quick_check(const PortConfig& port);
/// The same, and checks what is below the port: a port on a software device needs the device's wire.
std::string quick_check(const Config& config, const PortConfig& port);
/// "BYPASS_SOFT=vhost:/run/a.sock: " and the problem.
std::string soft_problem(const PortConfig& wire, const std::string& problem);

/// "BYPASS_PORT=vhost:/run/a.sock: " (or the file's key) and the problem; a text that begins with the port's name
/// or with a variable is not prefixed again.
std::string named_problem(const Config& config, const PortConfig& port, const std::string& problem);

}  // namespace bypass::runtime
