// Datagram sockets: the kernel's half is always there, the bypass half (a udp::Binding) from the moment that an
// address or a peer asks for one. Until then Socket::path is kUndecided and every call is the kernel's.
#pragma once

#include "socket/socket.h"

namespace bypass::socket {

/// UDP's longest payload over IPv4.
inline constexpr std::size_t kMostPayload = 65507;

/// Where one datagram goes.
[[nodiscard]] Decision way_to(const Endpoint& remote, const sockaddr* name);

/// Gives the socket its bypass half under the kernel half's port, which is chosen now if it has none. False: the
/// socket stays the kernel's, and `bypass why` is told.
bool ensure_binding(Socket& socket, int fd);

/// The error that comes before everything else (sock_error), once; 0: none. Lock held.
[[nodiscard]] long pending_error_of(Socket& socket);

/// The message as one datagram, or as several (UDP_SEGMENT): what was sent, or a failure.
long send_on_wire(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote);
/// MSG_MORE and UDP_CORK: adds the message to the datagram that is being put together.
long send_corked(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote);
/// Bytes of a file as one datagram to the peer, as sendfile(2) makes it.
long datagram_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count);
[[nodiscard]] inline bool has_binding(const Socket& socket) {
  return socket.path.load(std::memory_order_relaxed) == Path::kDual;
}
[[nodiscard]] inline bool connected_to_bypass(const Socket& socket) {
  return !socket.details->peer.address.is_any() && !socket.details->peer_is_kernel;
}

}  // namespace bypass::socket
