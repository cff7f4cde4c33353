// Finds what a program's settings name and what does not exist, as far as that can be seen without opening anything.
// The library looks at the same things when the program makes its first socket; then it would have to leave the socket
// to the kernel.
#pragma once

#include <vector>

#include "config/config.h"

namespace bypass::tool {

/// For a configuration that is right in itself. It looks where the command runs: as its user, in its network namespace.
std::vector<runtime::ConfigProblem> start_problems(const runtime::Config& config);

}  // namespace bypass::tool
