// Filters of system calls (seccomp(2)), and rules (landlock(7)), that a process installs for itself.
#pragma once

namespace bypass::preload {

/// Whether syscall(2) with this number may install a filter or rules.
[[nodiscard]] bool concerns_filters(long number);
void before_filter_call(long number, long a, long b, long c);

/// Whether the process is under a filter that may kill it for a call which the program does not make, and still
/// accelerates its sockets on a port.
[[nodiscard]] bool is_filtered();

/// Whether no filter that the process has installed may end it for getsockname(2) and getpeername(2); for socket(2) of
/// the internet and of netlink(7), with what such a socket is asked by.
[[nodiscard]] bool may_ask_names();
[[nodiscard]] bool may_make_sockets();

}  // namespace bypass::preload
