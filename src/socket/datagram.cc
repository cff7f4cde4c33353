#include "socket/datagram.h"

#include <netinet/in.h>
#include <sys/ioctl.h>

#include <cstring>

#include "observe/reasons.h"
#include "socket/errno_map.h"
#include "socket/wait.h"

namespace bypass::socket {

namespace {

/// net.core.rmem_default: what a socket queues whose program has said nothing.
constexpr std::uint32_t kReceiveBytes = 212992;

void tell_why(int fd, const char* detail) {
  if (environment.record_why != nullptr)
    environment.record_why(fd, static_cast<unsigned>(observe::Reason::kAddressNotOurs), detail);
}

// The kernel keeps the books of ports for both halves.
Endpoint bind_kernel_half(Socket& socket, int fd) {
  Endpoint local = kernel_name(fd);
  if (local.port != 0) return local;
  SocketName any;
  const socklen_t length = write_name(Endpoint{}, socket.domain, any);
  if (kernel->bind(fd, &any.base, length) != 0) return {};
  return kernel_name(fd);
}

long open_binding(Socket& socket, int fd, const Endpoint& local) {
  Guard guard(shard());
  if (socket.binding != nullptr) return 0;
  const std::uint32_t room = socket.details->receive_bytes != 0 ? socket.details->receive_bytes : kReceiveBytes;
  const auto made = udp_engine().open(local, room, socket.has(kReuseAddress | kReusePort), &socket);
  if (!made.ok()) return failure(made.error());
  socket.binding = *made;
  socket.path = Path::kDual;
  watch_kernel_half(socket, fd);
  signal_idle(socket);  // who waits looks at the wire from now on
  return 0;
}

// A bypass address is none of the kernel's: see bind_to_bypass in socket.cc.
bool wants_bypass(int fd, const Endpoint& local, int domain) {
  SocketName name;
  write_name(local, domain, name);
  return environment.decide_listen(fd, SOCK_DGRAM, &name.base) == Decision::kBypass;
}

long dissolve(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  {
    Guard guard(shard());
    socket.details->peer = {};
    socket.details->peer_is_kernel = false;
    if (socket.binding != nullptr) {
      udp_engine().connect(*socket.binding, {});
      watch_kernel_half(socket, fd);
    }
  }
  return kernel_result(kernel->connect(fd, address, length));
}

long connect_kernel_half(Socket& socket, int fd, const sockaddr* address, socklen_t length, const Endpoint& remote) {
  note_kernel_activity();
  const long r = kernel_result(kernel->connect(fd, address, length));
  if (r != 0) return r;
  Guard guard(shard());
  socket.details->peer = remote;
  socket.details->peer_is_kernel = true;
  if (socket.binding != nullptr) {
    udp_engine().connect(*socket.binding, remote);  // strangers on the wire are not heard any more
    watch_kernel_half(socket, fd);
  }
  return 0;
}

long connect_bypass_half(Socket& socket, int fd, const Endpoint& remote) {
  const bool was_kernel = socket.details->peer_is_kernel;
  if (const long r = ensure_binding(socket, fd); r != 0) return r;
  if (was_kernel) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    kernel->connect(fd, &none, sizeof none);
  }
  Guard guard(shard());
  udp_engine().connect(*socket.binding, remote);
  socket.details->peer = remote;
  socket.details->peer_is_kernel = false;
  // A connected socket hears its peer alone, and that is on the wire: the kernel need not be asked any more.
  unwatch_kernel_half(socket);
  return 0;
}

}  // namespace

Way way_to(const Endpoint& remote, const sockaddr* name) {
  return remote.address.is_v4() && environment.routes_to(name) ? Way::kBypass : Way::kKernel;
}

long ensure_binding(Socket& socket, int fd) {
  if (has_binding(socket)) return 0;
  if (environment.need_wire != nullptr && !environment.need_wire()) return failure(Error::kNetUnreachable);
  const Endpoint local = bind_kernel_half(socket, fd);
  if (local.port == 0) return failure(Error::kAddressNotAvailable);
  return open_binding(socket, fd, local);
}

long datagram_bind(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  long r = kernel_result(kernel->bind(fd, address, length));
  const std::optional<Endpoint> wanted = endpoint_of(address, length);
  if (r == failure(Error::kAddressNotAvailable) && wanted.has_value() && wants_bypass(fd, *wanted, socket.domain))
    r = bind_to_bypass(socket, fd, address, length);
  if (r != 0) return r;
  const Endpoint local = kernel_name(fd);
  {
    Guard guard(shard());
    socket.details->bound = local;
    socket.set(kBound);
  }
  if (socket.has(kV6Only | kForceKernel) || !wants_bypass(fd, local, socket.domain)) return 0;
  const bool own_address = !local.address.is_any();
  if (own_address && environment.need_wire != nullptr) environment.need_wire();
  r = open_binding(socket, fd, local);
  if (r == 0 || own_address) return r;
  tell_why(fd, "the bypass half of the datagram socket");
  return 0;
}

long datagram_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  if (is_unspecified(address, length)) return dissolve(socket, fd, address, length);
  const std::optional<Endpoint> remote = endpoint_of(address, length);
  const bool kernel_only = !remote.has_value() || socket.has(kV6Only | kForceKernel) || !remote->address.is_v4() ||
                           (socket.domain == AF_INET) != (address->sa_family == AF_INET);
  if (kernel_only) return connect_kernel_half(socket, fd, address, length, remote.value_or(Endpoint{}));
  SocketName local;
  const bool bound = socket.has(kBound);
  if (bound) write_name(socket.details->bound, socket.domain, local);
  switch (environment.decide_connect(fd, SOCK_DGRAM, bound ? &local.base : nullptr, address)) {
    case Decision::kFail:
      return failure(Error::kAccess);
    case Decision::kKernel:
      return connect_kernel_half(socket, fd, address, length, *remote);
    case Decision::kBypass:
      break;
  }
  return connect_bypass_half(socket, fd, *remote);
}

long datagram_shutdown(Socket& socket, int fd, int how) {
  const bool bypass = has_binding(socket) && connected_to_bypass(socket);
  if (!bypass) {
    const long r = kernel_result(kernel->shutdown(fd, how));
    if (r != 0) return r;
  }
  Guard guard(shard());
  if (how != SHUT_RD) socket.set(kShutSend);
  if (how != SHUT_WR) socket.set(kShutReceive);
  signal(socket, kEverything);
  return 0;
}

long datagram_name(Socket& socket, int fd, bool peer, sockaddr* address, socklen_t* length) {
  Endpoint name;
  {
    Guard guard(shard());
    const bool bypass = has_binding(socket) && connected_to_bypass(socket);
    if (bypass && peer) {
      name = socket.details->peer;
    } else if (bypass) {  // a connected socket has the route's address
      name = udp_engine().local(*socket.binding);
      bypass::Path path;
      if (name.address.is_any() && shard().stack().network().resolve(name.address, socket.details->peer.address, path))
        name.address = path.local;
    }
  }
  if (name.port != 0) return copy_name(name, socket.domain, address, length);
  return kernel_result(peer ? kernel->getpeername(fd, address, length) : kernel->getsockname(fd, address, length));
}

// datagram_poll() of Linux.
std::uint32_t datagram_bits(const Socket& socket) {
  std::uint32_t bits = 0;
  const KernelHalf& half = socket.details->half;
  if (socket.has(kShutReceive)) bits |= kIn | kPeerShut;
  if (socket.has(kShutReceive) && socket.has(kShutSend)) bits |= kHangUp;
  if (socket.binding != nullptr) {
    if (udp_engine().queued(*socket.binding) != 0) bits |= kIn;
    if (udp_engine().error(*socket.binding) != Error::kNone) bits |= kError;
  }
  if (kernel_half_readable(socket)) bits |= kIn;
  if (half.error) bits |= kError;
  if (half.out) bits |= kOut;
  return bits;
}

void datagram_option(Guard&, Socket& socket, int level, int name, std::span<const std::byte> value) {
  int v = 0;
  std::memcpy(&v, value.data(), std::min(value.size(), sizeof v));
  Details& details = *socket.details;
  if (level == IPPROTO_IP) {
    switch (name) {
      case IP_PKTINFO:
        socket.set(kWantPacketInfo, v != 0);
        break;
      case IP_RECVTOS:
        socket.set(kWantTos, v != 0);
        break;
      case IP_RECVTTL:
        socket.set(kWantTtl, v != 0);
        break;
      case IP_TOS:
        details.tos = static_cast<std::uint8_t>(v);
        break;
      case IP_TTL:
        details.ttl = static_cast<std::uint8_t>(v < 0 ? 64 : v);
        break;
      case IP_MULTICAST_TTL:
        details.multicast_ttl = static_cast<std::uint8_t>(v < 0 ? 1 : v);
        break;
      default:
        break;
    }
  } else if (level == IPPROTO_IPV6) {
    if (name == IPV6_RECVPKTINFO) socket.set(kWantPacketInfo6, v != 0);
    if (name == IPV6_TCLASS) details.tos = static_cast<std::uint8_t>(v < 0 ? 0 : v);
    if (name == IPV6_UNICAST_HOPS) details.ttl = static_cast<std::uint8_t>(v < 0 ? 64 : v);
  } else if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_RCVBUFFORCE)) {
    details.receive_bytes = details.tcp.receive_buffer * 2;  // what the kernel bounds, too: bookkeeping included
    if (socket.binding != nullptr) udp_engine().set_receive_bytes(*socket.binding, details.receive_bytes);
  }
}

long datagram_error(Socket& socket, void* value, socklen_t* length) {
  Guard guard(shard());
  socket.details->half.error = false;  // the kernel's is read next, if this half has none
  if (socket.binding == nullptr) return kAgain;
  const Error error = udp_engine().take_error(*socket.binding);
  if (error == Error::kNone || value == nullptr || length == nullptr || *length < sizeof(int)) return kAgain;
  const int number = option_error(error);
  std::memcpy(value, &number, sizeof number);
  *length = sizeof number;
  return 0;
}

std::optional<long> datagram_control(Socket& socket, int, unsigned long request, void* argument) {
  if (request != FIONREAD || argument == nullptr) return std::nullopt;
  Guard guard(shard());
  udp::Datagram first;
  if (socket.binding == nullptr || !udp_engine().front(*socket.binding, first)) return std::nullopt;
  *static_cast<int*>(argument) = static_cast<int>(first.length);
  return 0;
}

}  // namespace bypass::socket
