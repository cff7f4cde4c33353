// Signals for I/O (fcntl(2): O_ASYNC, F_SETOWN, F_SETSIG) of the stack's sockets. The kernel stores the owner with the
// number's open file. Socket::details has a copy for the thread that finds the event.
// Tests: tests/socket/report_test.cc.
#pragma once

#include <cstdint>

#include "socket/file.h"

namespace bypass::socket {

/// To be called after fcntl() has set the owner or the signal (set_async()), or O_ASYNC has changed: copies what the
/// kernel has now for `fd`. Lock held.
void note_async(File& file, int fd);
/// Signals that something has happened. Lock held.
void send_async(File& file, std::uint32_t bits);

}  // namespace bypass::socket
