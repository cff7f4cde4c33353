// Whether another process has a port that only one process can have. It is checked before this process opens the port,
// so that the user is told before a call fails. The sources are the kernel's list of Unix sockets (/proc/net/unix) in
// this network namespace, and a card's device file.
#pragma once

#include <string>

#include "config/config.h"

namespace bypass::runtime {

/// What has the port, without the port's name. Empty: nothing that this process can see. Allocates.
std::string port_in_use(const Config& config, const PortConfig& port);

}  // namespace bypass::runtime
