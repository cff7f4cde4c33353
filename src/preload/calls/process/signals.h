// The program's signal handlers, through a trampoline, in a process that accelerates something.
//
// The trampoline counts handlers, so that a spinning call knows that it was interrupted. It delays asynchronous signals
// that arrive while the thread holds a shard's lock: they are queued to the thread again, blocked, and unblocked when
// the lock is left. The program sees its own settings (in sigaction's `old`).
#pragma once

namespace bypass::preload {

/// Puts the trampoline before every handler that the program has installed; for later handlers this happens at once.
void wrap_signal_handlers();

/// For the calling thread, after the end of its sockets (runtime::before_exec()): runs the handlers that were held
/// back.
void let_handlers_run();

}  // namespace bypass::preload
