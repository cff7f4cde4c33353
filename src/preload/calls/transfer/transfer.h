// Transfers on a socket of ours as libc's calls need them: with SA_RESTART, SIGPIPE and errno.
#pragma once

#include <sys/socket.h>

#include <algorithm>

#include "os/io_cursor.h"
#include "preload/uses.h"

namespace bypass::preload {

/// `message` as for recvmsg(); results are as libc's.
ssize_t receive_message(const Use& use, int fd, msghdr& message, int flags);
ssize_t send_message(const Use& use, int fd, const msghdr& message, int flags);

/// A buffer as a vector of one.
inline iovec buffer_of(const void* buffer, size_t length) {
  return {.iov_base = const_cast<void*>(buffer), .iov_len = std::min(length, socket::kMostOfACall)};
}

/// SIGPIPE goes to the thread that wrote, as the kernel sends it.
[[gnu::cold]] void raise_sigpipe();

/// Sets errno for a failed check, whose result is `problem`, a negative errno. Returns -1.
ssize_t refused(long problem);

}  // namespace bypass::preload
