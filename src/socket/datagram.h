// Datagram sockets: the kernel's half is always there, the bypass half (a udp::Binding) from the moment that an
// address or a peer asks for one. Until then Socket::path is kUndecided and every call is the kernel's.
#pragma once

#include "socket/socket.h"

namespace bypass::socket {

/// Where one datagram goes.
enum class Way : std::uint8_t { kKernel, kBypass };
[[nodiscard]] Way way_to(const Endpoint& remote, const sockaddr* name);

/// Gives the socket its bypass half under the kernel half's port, which is chosen now if it has none. A failure
/// leaves the socket the kernel's.
long ensure_binding(Socket& socket, int fd);
[[nodiscard]] inline bool has_binding(const Socket& socket) {
  return socket.path.load(std::memory_order_relaxed) == Path::kDual;
}
[[nodiscard]] inline bool connected_to_bypass(const Socket& socket) {
  return !socket.details->peer.address.is_any() && !socket.details->peer_is_kernel;
}

}  // namespace bypass::socket
