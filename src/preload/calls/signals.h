// The program's signal handlers, through a trampoline, in a process that accelerates something.
//
// The trampoline counts handlers, so that a spinning call knows that it was interrupted, and puts off
// asynchronous signals that arrive while the thread holds a shard's lock: they are queued to the thread again,
// blocked, and unblocked when the lock is left. What the program asks for (sigaction's `old`) is its own.
#pragma once

namespace bypass::preload {

/// Puts every handler of the program that is installed now behind the trampoline; later ones go there at once.
void wrap_signal_handlers();

/// Of the calling thread, after the end of its sockets (runtime::before_exec): what was held back meanwhile.
void let_handlers_run();

}  // namespace bypass::preload
