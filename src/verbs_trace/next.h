// The next definition of a verb behind ours: the software devices' library, or libibverbs.
#pragma once

namespace bypass::verbs_trace {

/// If no library has the verb, the process ends with a message. The program refers to a verb that its libibverbs lacks.
void* next_function(const char* name);

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(next_function(name));
}

}  // namespace bypass::verbs_trace
