// The cheap check of a port, before `bypass run` starts a program and at its first internet socket: what can be found
// out without opening the port and without loading its plugin, which a program that never touches an accelerated
// address shall not pay for.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"

namespace bypass::runtime {

/// A wire that is an existing network interface.
bool is_interface_kind(std::string_view kind);

/// Empty: nothing wrong that can be seen. Else what is, and what would be accepted; without the port's name.
std::string quick_check(const PortConfig& port);
/// The same with what is below it: a software device's port is as good as the device's wire.
std::string quick_check(const Config& config, const PortConfig& port);
/// "BYPASS_SOFT=vhost:/run/a.sock: " and the problem.
std::string soft_problem(const PortConfig& wire, const std::string& problem);

/// "BYPASS_PORT=vhost:/run/a.sock: " (or the file's key) and the problem; a text that begins with the port's name
/// or with a variable of its own is not named twice.
std::string named_problem(const Config& config, const PortConfig& port, const std::string& problem);

}  // namespace bypass::runtime
