// OwnProcess: a process of our own, made of a copy of the program's: the driver's (driver.h), a pump (pump_process.h).
//
// It is made in a process of one thread, and is nobody's child: one in between makes it, and ends.
#pragma once

#include <sys/types.h>

namespace bypass::runtime {

/// Neither libc's nor ours are told of the fork: the process has one thread, so no lock is another's.
pid_t fork_plainly();
/// The same of the one in between, of which the program hears nothing: its end sends no signal, and wait(2) passes it
/// over. It may only call fork_plainly(), and end.
pid_t fork_unheard();
/// Such a child, which is at its end.
void reap(pid_t child);

/// As ps(1) shows it.
void name_process(const char* name);
/// No signal but SIGKILL ends the process, and it can wait for children.
void ignore_signals();

}  // namespace bypass::runtime
