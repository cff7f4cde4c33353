// The next definition of a verb behind ours: the software devices' library, or libibverbs.
#pragma once

namespace bypass::verbs_trace {

/// Ends the process with a message if there is none: the program has a reference to a verb that its libibverbs does not
/// have.
void* next_function(const char* name);

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(next_function(name));
}

}  // namespace bypass::verbs_trace
