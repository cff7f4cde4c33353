// The process's descriptors that belong to the library, not to the program. The program's close must not reach them.
// Any thread may call these, also in a signal handler.
#pragma once

namespace bypass::runtime {

/// Registers a descriptor (add), or forgets it.
void own_descriptor(int fd, bool add);
bool owns_descriptor(int fd);
/// Closes all of them but `kept` (-1: none), and protects none afterwards: a forked child releases what it inherited.
void close_own_descriptors(int kept);
/// Closes all descriptors of the process but these: a process of the library's own, made of a copy of the program's.
void close_others_descriptors();

}  // namespace bypass::runtime
