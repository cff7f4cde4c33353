// The kernel's half of a transfer: Message to msghdr and back.
// Tests: tests/socket/local_kernel_test.cc, tests/system/local_faults.py.
#pragma once

#include "socket/api.h"

namespace bypass::socket {

long kernel_receive(int fd, Message& message, int flags);
/// The kernel itself raises SIGPIPE where it is due.
long kernel_send(int fd, const Message& message, int flags);
/// The same of a stream's bytes. What read() and write() can do is done by them: a filter of system calls (seccomp(2))
/// may allow the program nothing else.
long kernel_read(int fd, Message& message, int flags);
long kernel_write(int fd, const Message& message, int flags);

}  // namespace bypass::socket
