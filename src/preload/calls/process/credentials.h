// Calls by which a process gives up rights: credentials.cc, and raw.cc for the same calls by number.
#pragma once

namespace bypass::preload {

/// Whether the system call with that number may change what the process may do to others.
[[nodiscard]] bool changes_rights(long number);
/// syscall(2) with such a number and its arguments. It changes only the calling thread. If the program has other
/// threads, they keep their rights, and what the process shares stays as it is.
long change_rights_by_number(long number, const long (&words)[6]);

/// In a forked child, which does not have its parent's threads.
void forget_changes_after_fork();

/// Makes `call`, which puts the process into another user namespace.
int change_user_namespace(int (*call)(const void* argument), const void* argument);

}  // namespace bypass::preload
