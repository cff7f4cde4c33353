// Whether this thread's calls are ours and go straight to the kernel.
//
// Three cases: our own work (a backend that opens a socket, the resolver, a thread of ours) counts a depth;
// a vfork child runs in its parent's memory on its parent's thread and must leave the parent's tables alone;
// everything else is the program's. Header only, so that src/runtime can mark without linking src/preload.
#pragma once

#include <sys/types.h>

namespace bypass::preload {

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

/// The rare part of goes_straight(): process.cc.
bool is_straight_path();

inline bool goes_straight() {
  if ((thread_path.depth | thread_path.vfork_parent) == 0) [[likely]]
    return false;
  return is_straight_path();
}

}  // namespace bypass::preload
