// The numbers of the library's descriptors: above the soft RLIMIT_NOFILE, where the kernel gives the program none, so
// that the program has as many numbers as without libbypass.
//
// The kernel compares the limit with a number only when it gives the number out. So the limit is raised for one
// fcntl(F_DUPFD), as far as the hard limit allows. If the caller's thread is the process's only thread, this is done in
// the process, where nobody can see it. Otherwise it is done in a child that shares memory and descriptors with the
// process and has limits of its own (clone(2), CLONE_FILES without CLONE_THREAD). In some cases the library's numbers
// are the highest below the limit: if the hard limit equals the soft one; if a filter of system calls may kill a
// process that makes a call (seccomp(2)); in a handler beside other threads; and above 4,096.
#pragma once

#include <sys/resource.h>

namespace bypass::runtime {

/// The lowest number of the library's descriptors below the limit. Programs seldom get so high, and the kernel's table
/// of descriptors stays small. Reads the soft limit each time.
int descriptor_base();
/// The soft RLIMIT_NOFILE.
rlim_t soft_limit();

/// A duplicate of one of our descriptors, CLOEXEC, at such a number; the caller closes `fd`. -1: there is no room.
/// Keeps errno.
int copy_high(int fd);
/// The same below the limit, at less cost: for descriptors that come and go with the program's connections, and are
/// given up if the program has no number left.
int copy_within_limit(int fd);

}  // namespace bypass::runtime
