// A number of where a process is, for stacks that want to know whether they may share memory.
#pragma once

#include <cstdint>

namespace bypass::runtime {

/// Of LinksConfig::kPlaceBits: the same for all processes of one user under one kernel, until it is booted again, whose
/// run directory this is (`folder`, a descriptor), whatever containers they are in; for others by chance. 0: it cannot
/// be told.
std::uint32_t place_number(int folder);

}  // namespace bypass::runtime
