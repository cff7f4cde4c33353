// Bytes in and out of a socket of ours, as the transfer calls need them: with SA_RESTART, SIGPIPE and errno.
#pragma once

#include <sys/socket.h>

#include "preload/uses.h"

namespace bypass::preload {

/// `message` as recvmsg has it; results are libc's.
ssize_t receive_message(const Use& use, int fd, msghdr& message, int flags);
ssize_t send_message(const Use& use, int fd, const msghdr& message, int flags);

/// As of a vector of one; the kernel takes no more at once (MAX_RW_COUNT, read(2)).
inline iovec buffer_of(const void* buffer, size_t length) {
  constexpr size_t kMost = 0x7ffff000;
  return {.iov_base = const_cast<void*>(buffer), .iov_len = length < kMost ? length : kMost};
}

}  // namespace bypass::preload
