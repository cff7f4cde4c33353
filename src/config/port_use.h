// Whether another process has a port that only one can have: before this one opens it, so that it can be said before a
// call fails by it. The kernel's list of Unix sockets (/proc/net/unix) tells it of this network
// namespace; of a card, its device file.
#pragma once

#include <string>

#include "config/config.h"

namespace bypass::runtime {

/// Empty: nobody that can be seen. Else what is, without the port's name. Allocates.
std::string port_in_use(const Config& config, const PortConfig& port);

}  // namespace bypass::runtime
