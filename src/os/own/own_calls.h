// The system calls that the library makes itself and cannot do without. A filter of calls (seccomp) that was made for
// the program's calls may answer ours with an errno.
#pragma once

#include <span>

namespace bypass::runtime {

struct OwnCall {
  long number;
  const char* name;
  long second = 0;  // second argument as we use it, because filters look at it, too
};

std::span<const OwnCall> own_calls();

/// The first of our calls that a filter answers, or that the kernel does not have; null: the kernel answers all. Costs
/// one system call if the process has no filter, otherwise one for each.
const OwnCall* find_refused_call();

}  // namespace bypass::runtime
