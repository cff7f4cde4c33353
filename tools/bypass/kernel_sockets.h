// The sockets of a process that are the kernel's, as /proc shows them. `bypass ss` shows them beside our own.
#pragma once

#include <vector>

#include "observe/reader.h"

namespace bypass::tool {

/// Adds the sockets that a process's stats file does not have, with path `kernel`. It also fills in what only the
/// kernel knows, for two kinds of sockets in the file: those whose bytes the kernel carries (path `kernel`), and those
/// on shared memory with a connection of the kernel's beneath. Where /proc cannot be read, it adds nothing: for another
/// user's process, or in another pid namespace.
void add_kernel_sockets(std::vector<observe::Snapshot>& processes);

}  // namespace bypass::tool
