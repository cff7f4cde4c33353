// Whether system calls that a program makes without libc are caught: BYPASS_RAW_CALLS.
#pragma once

namespace bypass::runtime {

/// To be asked when the library is loaded. Reads the configuration's file, if there may be one that says so.
[[nodiscard]] bool may_catch_raw_calls();

/// The program makes such calls, and they are not caught, because they cannot be, or because they may not: `problem` is
/// null then. Tells the log and `bypass why`. Under BYPASS_STRICT a problem ends the program.
void report_uncaught_calls(const char* problem);

}  // namespace bypass::runtime
