// Datagram sockets. The kernel's half is always there. The bypass half (a udp::Binding) exists once an address or a
// peer needs it. Until then Socket::path is kUndecided and every call is the kernel's.
#pragma once

#include "socket/socket.h"

namespace bypass::socket {

/// UDP's longest payload over IPv4.
inline constexpr std::size_t kMostPayload = 65507;

/// The decision for one datagram's destination.
[[nodiscard]] Decision way_to(const Endpoint& remote, const sockaddr* name);

/// The stack's half of a socket with this local address and the socket's options. Lock held.
[[nodiscard]] Result<udp::Binding*> open_datagram_half(Socket& socket, const Endpoint& local);
/// Gives the socket its bypass half, under the kernel half's port, which is chosen now if it has none. False: the
/// socket stays with the kernel, and the reason is recorded for `bypass why`.
bool ensure_binding(Socket& socket, int fd);

/// The error that a call returns before everything else (sock_error), once; 0: no error. Lock held.
[[nodiscard]] long pending_error_of(Socket& socket);

/// Sends the message as one datagram, or as several (UDP_SEGMENT). Returns the bytes sent, or a failure.
long send_on_wire(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote);
/// MSG_MORE and UDP_CORK: adds the message to the datagram that is being assembled.
long send_corked(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote);
/// Sends bytes of a file as one datagram to the peer, as sendfile(2) does.
long datagram_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count);
[[nodiscard]] inline bool has_binding(const Socket& socket) {
  return socket.path.load(std::memory_order_relaxed) == Path::kDual;
}
[[nodiscard]] inline bool connected_to_bypass(const Socket& socket) {
  return !socket.details->peer.address.is_any() && !socket.details->peer_is_kernel;
}

}  // namespace bypass::socket
