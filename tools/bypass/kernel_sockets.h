// The sockets of a process that are the kernel's, as /proc tells of them: `bypass ss` shows them beside our own.
#pragma once

#include <vector>

#include "observe/reader.h"

namespace bypass::tool {

/// Adds those that a process's stats file does not have, with path `kernel`; of those that it has and whose bytes the
/// kernel carries (path `kernel`), or that are on shared memory with the kernel's connection beneath, what the kernel
/// knows better. Nothing, where /proc is not to be read: another user's process, or another pid namespace's.
void add_kernel_sockets(std::vector<observe::Snapshot>& processes);

}  // namespace bypass::tool
