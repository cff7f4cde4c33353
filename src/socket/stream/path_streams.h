// A stream's calls on each path except shared memory's (shared/local.h): the rows of PathCalls (path_calls.h).
// Tests: tests/socket/path_calls_test.cc.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "socket/socket.h"

namespace bypass::socket {

// --- The stack has the connection.
long receive_on_wire(Socket& socket, int fd, Message& message, int flags);
long send_on_wire(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
long send_file_on_wire(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
long shutdown_on_wire(Socket& socket, int fd, int how);
std::optional<long> number_on_wire(Socket& socket, int fd, unsigned long request);
/// tcp_poll() of Linux.
[[nodiscard]] std::uint32_t bits_on_wire(const Socket& socket);

// --- The kernel answers: the socket is undecided, or given to it. What an earlier connection left is told first.
long receive_unconnected(Socket& socket, int fd, Message& message, int flags);
long send_unconnected(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
/// Returns EPIPE.
long send_file_unconnected(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
long send_file_in_kernel(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
/// Returns ENOTCONN, but still marks the socket shut, and waiters wake (inet_shutdown).
long shutdown_unconnected(Socket& socket, int fd, int how);
long shutdown_in_kernel(Socket& socket, int fd, int how);

}  // namespace bypass::socket
