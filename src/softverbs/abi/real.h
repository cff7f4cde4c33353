// The real libibverbs: it gets every call that concerns no device of ours.
#pragma once

namespace bypass::softverbs {

/// libibverbs' own function of that name: the next one after ours, or that of a libibverbs that was not loaded yet.
/// Null if none is installed; then no program has a real device.
void* real_function(const char* name);

}  // namespace bypass::softverbs

/// From now on the real library is this one (a handle of dlopen); null: none is installed.
extern "C" void bypass_softverbs_use_library(void* library);

namespace bypass::softverbs {

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(real_function(name));
}

// The real function behind a function of libibverbs that we define.
#define BYPASS_REAL(function) (::bypass::softverbs::real<decltype(function)>(#function))

}  // namespace bypass::softverbs
