// Filters of system calls (seccomp(2)) that a process installs for itself.
#pragma once

namespace bypass::preload {

/// Whether syscall(2) with this number may install a filter.
[[nodiscard]] bool concerns_filters(long number);
void before_filter_call(long number, long a, long b, long c);

/// Whether the process is under a filter that may kill it for a call which the program does not make, and still
/// accelerates its sockets on a port.
[[nodiscard]] bool is_filtered();

}  // namespace bypass::preload
