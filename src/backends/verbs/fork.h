// What a program that forks needs of libibverbs. The software library's devices need nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

/// Before anything is registered. `device` for what is said when it does not work.
void prepare_for_fork(const Verbs& verbs, const std::string& device);

/// After registering shared memory: it stays the device's over a fork, and children go on with it.
void keep_in_children(std::span<const std::byte> memory);

}  // namespace bypass::verbs
