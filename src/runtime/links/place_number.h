// A number for the place where a process runs, by which stacks find out whether they may share memory.
#pragma once

#include <cstdint>

namespace bypass::runtime {

/// LinksConfig::kPlaceBits bits. They are the same for all processes of one user, under one boot of a kernel, that use
/// this run directory (`folder`, a descriptor), whatever containers they are in. For others they are equal only by
/// chance. 0: it cannot be determined.
std::uint32_t place_number(int folder);

}  // namespace bypass::runtime
