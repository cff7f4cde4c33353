// The process's descriptors that are ours and not the program's, whose close must not reach them. Any thread, also in a
// signal handler.
#pragma once

namespace bypass::runtime {

/// Registers or forgets one.
void own_descriptor(int fd, bool add);
bool owns_descriptor(int fd);
/// Closes all of them but `kept` (-1: none), and protects none any more: a forked child lets go of what it
/// inherited.
void close_own_descriptors(int kept);

}  // namespace bypass::runtime
