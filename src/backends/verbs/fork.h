// What a program that forks needs from libibverbs. The software library's devices need nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

/// Must come before anything is registered. `device`: its name, for the log if this fails.
void prepare_for_fork(const Verbs& verbs, const std::string& device);

/// Call it after registering shared memory: the memory stays the device's over a fork, and children go on using it.
void keep_in_children(std::span<const std::byte> memory);

}  // namespace bypass::verbs
