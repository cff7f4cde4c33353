// Streams: libc's FILEs read, write and close their numbers inside libc, where no name of ours is called. They do it
// through tables of functions (docs/calls.md). This library puts functions of its own into those tables.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace bypass::preload {

/// Puts them there; called before the process has its first socket of ours. If that cannot be done, streams do not
/// reach sockets of ours, and `bypass why` says so.
void catch_streams();
/// Whether every stream whose number is a socket of ours reads and writes that socket.
[[nodiscard]] bool are_streams_caught();
/// Notes for `bypass why` that a stream uses the number past this library.
void note_uncaught_stream(int fd);

/// Writes all of it, in pieces if need be; how much was written before an error.
ssize_t write_all(int fd, const char* from, std::size_t length);
/// Writes what the streams over sockets of ours still hold. To be called before the process releases its sockets:
/// libc writes it after that.
void flush_streams();

}  // namespace bypass::preload
