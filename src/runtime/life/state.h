// What the parts of a process's life know of each other. Private to src/runtime/life.
#pragma once

namespace bypass::runtime {

/// leave() has been called.
extern bool g_left;
/// The process is the child of one that had started, and it could share nothing: its sockets are the kernel's.
extern bool g_forked_child;

}  // namespace bypass::runtime
