// OwnProcess: a process of our own, made of a copy of the program's: the driver's (driver.h), a pump (pump_process.h).
//
// It is made in a process of one thread, and is nobody's child: one in between makes it, and ends.
#pragma once

#include <sys/types.h>

namespace bypass::runtime {

/// Neither libc's nor ours are told of the fork: the process has one thread, so no lock is another's.
pid_t fork_plainly();
/// A child of ours that is at its end; the program is not told of it.
void reap(pid_t child);

/// As ps(1) shows it.
void name_process(const char* name);
/// No signal but SIGKILL ends the process, and it can wait for children.
void ignore_signals();

}  // namespace bypass::runtime
