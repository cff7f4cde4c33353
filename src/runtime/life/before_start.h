// What a process has before it starts anything: its configuration, its log, and the stats file. The stats file says
// what became of the port that was asked for. Private to src/runtime.
#pragma once

#include <string>

#include "config/config.h"
#include "observe/region.h"

namespace bypass::runtime {

/// Called when the library is loaded: copies what the environment says to us, and does nothing else.
void keep_environment(const char* const* environment);

/// What was copied.
const char* const* kept_environment();

/// The configuration. The first call reads it (the first internet socket or epoll set, one thread); then it is
/// constant. A problem has been logged and noted in the stats file. Under BYPASS_STRICT it has ended the program.
const Config& configuration();

/// The process's stats file; inactive where nobody asked for a port. Call it after configuration().
observe::Region& region();
/// Called in a forked child that uses the bypass: makes a stats file of its own.
void renew_region();
/// Called at the process's end, also of a process that never started. Async-signal-safe.
void remove_region();
/// This process does not remove the file: a filter may end it for that. A process that looks for dead ones removes it.
void leave_region();

inline constexpr const char* kOnKernelSockets = "the program runs on the kernel's sockets";

/// Says in the log and to `bypass why` that something about the whole process is not as it was asked for. `outcome`:
/// what becomes of the program, unless end_if_strict() follows. It is logged at `info` where nobody asked for anything.
void report_problem(observe::Reason reason, const std::string& text, const char* outcome = kOnKernelSockets);

/// Under BYPASS_STRICT: ends the process with status 78. Otherwise does nothing.
void end_if_strict();

const char* profile_name(Profile profile);

}  // namespace bypass::runtime
