// Whether the calling thread is in a signal handler.
//
// A handler may have interrupted malloc, dlopen or any other function of libc, whose locks are then held. POSIX still
// lets it call socket, connect, accept, fork and similar functions (signal-safety(7)). So what such a call sets up once
// for a process (the decision, a thread, a port) is left for a later call if a handler makes it.
#pragma once

namespace bypass::socket {

/// For rare calls: it costs about 70 system calls and a scan of the whole stack above the caller. It does not
/// matter who installed a handler, or whether one of ours is installed. A frame that a finished handler left on the
/// stack may be taken for a running one.
[[nodiscard]] bool is_in_handler();

}  // namespace bypass::socket
