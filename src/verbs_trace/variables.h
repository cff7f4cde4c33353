// What `bypass verbs-trace` tells the library in the program, and in what the program executes.
#pragma once

namespace bypass::verbs_trace {

inline constexpr const char* kFormVariable = "VERBS_TRACE";       // text, json or summary
inline constexpr const char* kFileVariable = "VERBS_TRACE_FILE";  // an absolute path; without it standard error

}  // namespace bypass::verbs_trace
