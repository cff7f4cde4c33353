// The kernel's part of a transfer: converts a Message to msghdr and back.
// Tests: tests/socket/local_kernel_test.cc, tests/system/local_faults.py.
#pragma once

#include "socket/api.h"

namespace bypass::socket {

long kernel_receive(int fd, Message& message, int flags);
/// The kernel itself raises SIGPIPE if needed.
long kernel_send(int fd, const Message& message, int flags);
/// The same for a stream's bytes. It uses read() and write() where these suffice, as a filter of system calls
/// (seccomp(2)) may allow the program nothing else.
long kernel_read(int fd, Message& message, int flags);
long kernel_write(int fd, const Message& message, int flags);

}  // namespace bypass::socket
