// What the socket layer asks the runtime (socket/policy.h): which way an address goes, whether the wire is there, and
// where a reason is noted. The answers come from the configuration, the ports and the kernel's network.
#pragma once

#include "config/config.h"

namespace bypass::runtime {

struct Process;

/// Called once, when the process's graph exists and no socket is made yet.
void fill_policy(const Config& config);
/// The same for connections within the host: opens the directory of ports, too.
void fill_local_policy(Process& p);

}  // namespace bypass::runtime
