// The numbers that our descriptors take: above the soft RLIMIT_NOFILE, where the kernel gives the program none, so that
// the program has as many as without us.
//
// The kernel compares the limit with a number as it gives it out, and with no other. So the limit is raised for one
// fcntl(F_DUPFD) as far as the hard one allows: in the process, where nobody can see it (its only thread is the
// caller's), else in a child that shares memory and descriptors with it and has limits of its own (clone(2),
// CLONE_FILES without CLONE_THREAD). Where the hard limit is the soft one, where a filter of system calls may end who
// makes a call (seccomp(2)), in a handler beside other threads, and above 4,096, ours are the highest below the limit.
#pragma once

#include <sys/resource.h>

namespace bypass::runtime {

/// From where ours are below the limit: a program's own seldom get there, and the kernel's table of descriptors stays
/// small. Reads the soft limit anew each time.
int descriptor_base();
/// The soft RLIMIT_NOFILE.
rlim_t soft_limit();

/// A duplicate of one of ours, CLOEXEC, at a number as above; the caller closes `fd`. -1: there is no room. Leaves
/// errno.
int copy_high(int fd);
/// The same below the limit, at less cost: for what comes and goes with the program's connections, and is given up when
/// it has no number left.
int copy_within_limit(int fd);

}  // namespace bypass::runtime
