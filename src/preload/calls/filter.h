// Filters of system calls (seccomp(2)) that a process puts itself under.
#pragma once

namespace bypass::preload {

/// Of syscall(2): one that may install a filter, with its words.
[[nodiscard]] bool concerns_filters(long number);
void before_filter_call(long number, long a, long b, long c);

/// Whether the process is under a filter that may end it for a call that the program does not make, and accelerates all
/// the same, for its sockets on a port.
[[nodiscard]] bool is_filtered();

}  // namespace bypass::preload
