// Puts jumps in the places of system calls of the program's code, and the stubs where they lead.
#pragma once

#include <span>

#include "preload/raw/site.h"

namespace bypass::preload::raw {

/// Each of the system calls then goes to `entry` first (entry.h). To be called before the program's code runs. Returns
/// null, or why nothing was changed.
[[nodiscard]] const char* replace_calls(std::span<const Site> sites, const void* entry);

}  // namespace bypass::preload::raw
