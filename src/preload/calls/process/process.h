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

struct Program {
  const char* name;          // null: it has no path
  bool is_searched = false;  // in the folders of PATH, as execvp() does
};
/// Hands the sockets on that the new program inherits, if it can go on with them (hand_on.h). Otherwise delivers unsent
/// data, and notes what the new program would inherit; a forked child releases everything. Does nothing for a program
/// that cannot be run. Returns the environment for the exec.
char* const* before_exec(const Program& program, char* const* environment);

/// The exec has failed: the program continues with its sockets, if they were handed on, or with the kernel's.
void after_failed_exec();

/// The calling thread is about to end. If it is the program's last thread, the process ends, too.
void before_thread_ends();

/// To be called once, when the process starts to accelerate.
void prepare_quick_exit();

}  // namespace bypass::preload
