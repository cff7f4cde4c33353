// The real libibverbs: whatever is no device of ours goes on to it.
#pragma once

namespace bypass::softverbs {

/// libibverbs' own function of that name: the next one after ours, or that of a libibverbs that nothing has loaded yet.
/// Null where none is installed; no program has a real device then.
void* real_function(const char* name);

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(real_function(name));
}

// The real function behind one of libibverbs' that we define.
#define BYPASS_REAL(function) (::bypass::softverbs::real<decltype(function)>(#function))

}  // namespace bypass::softverbs
