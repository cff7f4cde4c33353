// What a program's settings name and is not there, as far as that can be seen without opening anything: what the
// library looks at when the program makes its first socket, and would then have to leave to the kernel.
#pragma once

#include <vector>

#include "config/config.h"

namespace bypass::tool {

/// Of a configuration that is right in itself. Looked at where the command runs: as its user, in its network namespace.
std::vector<runtime::ConfigProblem> start_problems(const runtime::Config& config);

}  // namespace bypass::tool
