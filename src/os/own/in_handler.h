// Whether the calling thread is in a signal handler.
//
// A handler may have interrupted malloc, dlopen or any other function of libc, whose locks are then held below it.
// POSIX lets it call socket, connect, accept, fork and their like all the same (signal-safety(7)). So what such a call
// sets up once a process (the decision, a thread, a port) is left for a later call when a handler makes it.
#pragma once

namespace bypass::socket {

/// For rare calls: it costs some 70 system calls, and a look at the whole stack above the caller. It does not matter
/// who installed the handler, and before any of ours. A frame that a handler left behind on the stack may be taken for
/// one that runs.
[[nodiscard]] bool is_in_handler();

}  // namespace bypass::socket
