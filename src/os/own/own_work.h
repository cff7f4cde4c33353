// Whether what this thread does is our own work or the program's: the libc calls of our own work go straight to the
// kernel.
//
// Two cases are not the program's. Our own work (a backend that opens a socket, the resolver, a thread of ours) counts
// a depth. A vfork child runs in its parent's memory on its parent's thread and must leave the parent's tables alone.
// Header only, so that every room can mark its work; src/preload asks.
#pragma once

#include <sys/types.h>

namespace bypass::runtime {

struct ThreadPath {
  int depth = 0;           // > 0: our own work
  int least = 0;           // what a handler of the program finds it at
  pid_t vfork_parent = 0;  // process that last called vfork on this thread, 0: none since it was seen back
};
inline thread_local constinit ThreadPath thread_path;

/// Marks a scope. A handler of the program that runs on top of it, or a jump out of it, resets the depth.
class Inside {
 public:
  Inside() { thread_path.depth++; }
  ~Inside() { thread_path.depth--; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/// For good: a thread that we started.
inline void stay_inside() {
  thread_path.depth = 1;
}

/// Of the program's own calls, until the next one of the kind that ended (exec) has failed: they find sockets that have
/// ended, and are the kernel's.
inline void stay_outside() {
  thread_path.depth = thread_path.least = 1;
}

}  // namespace bypass::runtime
