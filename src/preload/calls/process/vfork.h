// Vfork: a child whose program is to go on with sockets needs memory and numbers of its own.
//
// A child of vfork(2) has its parent's memory, and so the parent's table of numbers: what it closes and duplicates is
// not seen there. In a process that has sockets on a port, vfork() therefore makes a forked child, which belongs to the
// family. POSIX allows that. The parent still waits until the child has executed a program or has ended.
#pragma once

#include <sys/types.h>

namespace bypass::preload {

/// Whether the process has something on a port that a child's program may go on with.
[[nodiscard]] bool has_sockets_for_children();
/// fork(), but it returns in the parent only when the child has executed a program, or has ended. No signal handler
/// runs in the parent meanwhile. Unlike vfork(2), it runs the handlers of pthread_atfork(3).
[[nodiscard]] pid_t fork_and_wait_for_exec();

}  // namespace bypass::preload
