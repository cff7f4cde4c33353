// What the process's events mean for the tables: used by process.cc, and by raw.cc for the same calls by number.
#pragma once

namespace bypass::preload {

void before_fork();
/// clone(2) with CLONE_NEWNET.
void before_fork_to_new_network();
/// `child`: its pid; negative: there is no child; 0: not known.
void after_fork_in_parent(int child);
void after_fork_in_child();

/// This thread's next calls may be a vfork child's.
void note_vfork();

/// Delivers unsent data, and notes what the new program would inherit; a forked child releases everything. Does nothing
/// for a program that cannot be run. Null: the program has no path.
void before_exec(const char* program);

/// The exec has failed: the program continues with the kernel's sockets.
void after_failed_exec();

/// The calling thread is about to end. If it is the program's last thread, the process ends, too.
void before_thread_ends();

/// To be called once, when the process starts to accelerate.
void prepare_quick_exit();

}  // namespace bypass::preload
