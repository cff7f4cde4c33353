// Whether this thread does the library's own work or the program's. libc calls of our own work go directly to the
// kernel.
//
// In two cases a call is not the program's. Our own work (a backend that opens a socket, the resolver, a thread of
// ours) counts a depth. A vfork child runs in its parent's memory on its parent's thread, and must leave the parent's
// tables alone.
// Header only, so that every room can mark its work; src/preload checks it.
#pragma once

#include <sys/types.h>

namespace bypass::runtime {

struct ThreadPath {
  int depth = 0;           // > 0: our own work
  int least = 0;           // the depth that a handler of the program starts with
  pid_t vfork_parent = 0;  // the process that last called vfork on this thread; 0: none, or it has returned
};
inline thread_local constinit ThreadPath thread_path;

/// Marks a scope. A program's handler that interrupts it, or a jump out of it, resets the depth.
class Inside {
 public:
  Inside() { thread_path.depth++; }
  ~Inside() { thread_path.depth--; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/// For a thread that we started: all its work is our own.
inline void stay_inside() {
  thread_path.depth = 1;
}

/// For the program's own calls after exec has begun, until exec has failed: the sockets have ended, so the calls go to
/// the kernel.
inline void stay_outside() {
  thread_path.depth = thread_path.least = 1;
}

}  // namespace bypass::runtime
