// OwnProcess: a process of our own, made from a copy of the program's: one of the driver's (driver.h), or a pump
// (pump_process.h).
//
// A process of one thread makes it. It is a child of init, because a process in between forks it and ends.
#pragma once

#include <sys/types.h>

namespace bypass::runtime {

/// Forks without telling libc or our own fork handlers. The process has one thread, so no other thread holds a lock.
pid_t fork_plainly();
/// The same of the one in between, of which the program hears nothing: its end sends no signal, and wait(2) passes it
/// over. It may only call fork_plainly(), and end.
pid_t fork_unheard();
/// Such a child, which is at its end.
void reap(pid_t child);

/// Sets the name that ps(1) shows.
void name_process(const char* name);
/// Sets the command line that ps(1) and pgrep(1) show, in place of the program's. Its own copy of that is overwritten.
/// The name is cut where the program's command line was shorter. Nothing, without /proc.
void name_command_line(const char* name);
/// What is done to the program's group or session, or to its terminal, is not done to the process (setsid(2)).
void leave_group();
/// Makes sure that only SIGKILL ends the process, and that it can wait for children.
void ignore_signals();

}  // namespace bypass::runtime
