// Signals for I/O (fcntl(2): O_ASYNC, F_SETOWN, F_SETSIG) of the stack's side. The kernel keeps who is told, with the
// number's open file; what Socket::details has is a copy for the one that finds the event.
#pragma once

#include <cstdint>

#include "socket/file.h"

namespace bypass::socket {

/// After fcntl() has said who is told and how (set_async()), or a change of O_ASYNC: what the kernel has now for `fd`.
/// Lock held.
void note_async(File& file, int fd);
/// Something has come up. Lock held.
void send_async(File& file, std::uint32_t bits);

}  // namespace bypass::socket
