// What a process has before it starts anything: its configuration, its log, and the stats file that says what
// became of the port that was asked for. Private to src/runtime.
#pragma once

#include <string>

#include "config/config.h"
#include "observe/region.h"

namespace bypass::runtime {

/// When the library is loaded: copies what the environment says to us, and does nothing else.
void keep_environment(const char* const* environment);

/// Read at the first call (the first internet socket or epoll set, one thread), then constant. A problem has been
/// logged, stands in the stats file, and has ended the program when that was asked for.
const Config& configuration();

/// The process's stats file; inactive where nobody asked for a port. After configuration().
observe::Region& region();
/// In a forked child that uses the bypass: a file of its own.
void renew_region();
/// At the process's end, also of one that never started. Async-signal-safe.
void remove_region();
/// Nobody here removes it: a filter may end the process for that. Those that look for the dead do.
void leave_region();

inline constexpr const char* kOnKernelSockets = "the program runs on the kernel's sockets";

/// Something about the process as a whole is not as it was asked for: says so in the log and to `bypass why`. `outcome`
/// is what becomes of the program, unless end_if_strict() follows. Told at `info` where nobody asked for anything.
void report_problem(observe::Reason reason, const std::string& text, const char* outcome = kOnKernelSockets);

/// Under BYPASS_STRICT: ends the process with 78. Else nothing.
void end_if_strict();

const char* profile_name(Profile profile);

}  // namespace bypass::runtime
