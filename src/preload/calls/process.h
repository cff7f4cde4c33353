// What the process's turns mean for the tables; process.cc, and raw.cc for the same turns by number.
#pragma once

namespace bypass::preload {

void before_fork();
/// `child`: its pid, negative: there is none, 0: not known.
void after_fork_in_parent(int child);
void after_fork_in_child();

/// This thread's next calls may be a vfork child's.
void note_vfork();

/// Unsent data is delivered, what the new image would inherit is noted; a forked child lets go of everything.
/// Nothing happens for a program that cannot be run. Null: one that has no path.
void before_exec(const char* program);

/// The program goes on, with the kernel's sockets.
void after_failed_exec();

/// The calling thread is about to end, and the process with it if it is the last of the program's.
void before_thread_ends();

/// Once, when the process starts to accelerate.
void prepare_quick_exit();

}  // namespace bypass::preload
