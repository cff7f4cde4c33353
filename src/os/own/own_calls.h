// The system calls that the library makes by itself and cannot do without: a filter of them (seccomp) that knows the
// program's calls may answer ours with an errno.
#pragma once

#include <span>

namespace bypass::runtime {

struct OwnCall {
  long number;
  const char* name;
  long second = 0;  // argument, as we use it: filters look at that, too
};

std::span<const OwnCall> own_calls();

/// The first of them that a filter answers, or nobody is there to: null where all are the kernel's to answer. A system
/// call where the process has no filter, else one each.
const OwnCall* find_refused_call();

}  // namespace bypass::runtime
