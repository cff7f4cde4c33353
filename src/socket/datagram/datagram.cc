#include "socket/datagram/datagram.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "observe/reasons.h"
#include "os/errno_map.h"
#include "os/os.h"
#include "os/program_memory.h"
#include "socket/family/kin.h"
#include "socket/options/options.h"
#include "socket/policy.h"
#include "socket/wait/socket_wait.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

/// net.core.rmem_default: the queue limit of a socket whose program has set none.
constexpr std::uint32_t kReceiveBytes = 212992;

void report_why(int fd, observe::Reason reason, const char* detail) {
  policy.record_why(fd, static_cast<unsigned>(reason), detail);
}

// The kernel assigns ports for both halves.
Endpoint bind_kernel_half(Socket& socket, int fd) {
  Endpoint local = kernel_name(fd);
  if (local.port != 0) return local;
  SocketName any;
  const socklen_t length = write_name(Endpoint{}, socket.domain, any);
  if (kernel->bind(fd, &any.base, length) != 0) return {};
  return kernel_name(fd);
}

long open_binding(Socket& socket, int fd, const Endpoint& local) {
  const auto inode = static_cast<std::uint32_t>(os::inode_of(fd));  // of sockets they have 32 bits
  Guard guard(shard());
  if (socket.binding != nullptr) return 0;
  look_before_asking(guard);  // what came before this port was open is not for it
  const auto made = open_beside_dead(guard, [&] { return open_datagram_half(socket, local); });
  if (!made.ok()) return failure(made.error());
  socket.binding = *made;
  socket.details->kernel_inode = inode;
  socket.path = Path::kDual;
  policy.ask_for_wire();
  watch_kernel_half(socket, fd);
  signal_idle(socket);  // a waiting thread must look at the wire from now on
  return 0;
}

// A bypass address is not an address of the kernel: see bind_to_bypass in calls.cc.
bool wants_bypass(int fd, const Endpoint& local, int domain) {
  SocketName name;
  write_name(local, domain, name);
  return policy.decide_listen(fd, SOCK_DGRAM, &name.base) == Decision::kBypass;
}

// A port that the program did not ask for ends with the association (udp_disconnect). The next send finds another port,
// for both halves.
void close_if_unbound(Guard& guard, Socket& socket, int fd) {
  if (udp_engine().local(*socket.binding).port == kernel_name(fd).port) return;
  udp_engine().close(guard.context(), *socket.binding);
  socket.binding = nullptr;
  socket.path = Path::kUndecided;
}

long dissolve(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  const long r = kernel_result(kernel->connect(fd, address, length));
  Guard guard(shard());
  socket.details->peer = {};
  socket.details->peer_is_kernel = false;
  if (socket.binding == nullptr) return r;
  udp_engine().connect(*socket.binding, {});
  close_if_unbound(guard, socket, fd);
  watch_kernel_half(socket, fd);
  signal_idle(socket);  // a thread that sleeps on the socket must listen to the kernel's half, too
  return r;
}

// Removes the kernel half's peer, but not its port, which the other half keeps.
void disconnect_kernel_half(Socket& socket, int fd) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  kernel->connect(fd, &none, sizeof none);
  if (kernel_name(fd).port != 0) return;
  Endpoint local;
  {
    Guard guard(shard());
    if (socket.binding != nullptr) local = udp_engine().local(*socket.binding);
    if (socket.has(kBound)) local.address = socket.details->bound.address;
  }
  SocketName name;
  kernel->bind(fd, &name.base, write_name(local, socket.domain, name));
}

long connect_kernel_half(Socket& socket, int fd, const sockaddr* address, socklen_t length, const Endpoint& remote) {
  note_kernel_activity();
  const long r = kernel_result(kernel->connect(fd, address, length));
  if (r != 0) return r;
  Guard guard(shard());
  socket.details->peer = remote;
  socket.details->peer_is_kernel = true;
  if (socket.binding != nullptr) {
    udp_engine().connect(*socket.binding, remote);  // datagrams of others on the wire are no longer received
    watch_kernel_half(socket, fd);
  }
  return 0;
}

// As on Linux, the socket keeps the peer that it has if there is no route to the new one (ip4_datagram_connect).
Error error_of_connecting(Socket& socket, const Endpoint& remote) {
  Guard guard(shard());
  if (socket.binding == nullptr) return Error::kNotConnected;  // another thread has disconnected it meanwhile
  const bool cut_off = udp_engine().is_cut_off(guard.context(), *socket.binding, remote.address);
  return cut_off ? Error::kNetUnreachable : Error::kNone;
}

long connect_bypass_half(Socket& socket, int fd, const Endpoint& remote) {
  if (const Error error = error_of_connecting(socket, remote); error != Error::kNone) return failure(error);
  if (socket.details->peer_is_kernel) disconnect_kernel_half(socket, fd);
  Guard guard(shard());
  look_before_asking(guard);  // an error that came before concerns no peer of the socket's
  if (socket.binding == nullptr) return failure(Error::kNotConnected);  // another thread has disconnected it meanwhile
  udp_engine().connect(*socket.binding, remote);
  socket.details->peer = remote;
  socket.details->peer_is_kernel = false;
  socket.route_dropped = 0;
  // A connected socket receives only from its peer, which is on the wire: the kernel need not be asked any more.
  unwatch_kernel_half(socket);
  return 0;
}

}  // namespace

Result<udp::Binding*> open_datagram_half(Socket& socket, const Endpoint& local) {
  const std::uint32_t room = socket.details->receive_bytes != 0 ? socket.details->receive_bytes : kReceiveBytes;
  const auto made = udp_engine().open(local, room, {socket.has(kReuseAddress), socket.has(kReusePort)}, &socket);
  if (made.ok()) udp_engine().want_errors(**made, socket.has(kWantErrors));
  return made;
}

long pending_error_of(Socket& socket) {
  if (const long r = take_pending_error(socket); r != 0 || socket.binding == nullptr) return r;
  const Error error = udp_engine().take_error(*socket.binding);
  return error == Error::kNone ? 0 : failure(error);
}

Decision way_to(const Endpoint& remote, const sockaddr* name) {
  return remote.address.is_v4() ? policy.routes_to(name) : Decision::kKernel;
}

bool ensure_binding(Socket& socket, int fd) {
  if (has_binding(socket)) return true;
  observe::Reason reason = observe::Reason::kPortNotOpen;
  if (policy.open_wire()) {
    Endpoint local = bind_kernel_half(socket, fd);
    // A peer in the kernel has given the kernel's half an address that the other half cannot have.
    local.address = socket.has(kBound) ? socket.details->bound.address : Endpoint{}.address;
    if (local.port != 0 && open_binding(socket, fd, local) == 0) return true;
    reason = observe::Reason::kAddressNotOurs;
  }
  Guard guard(shard());
  if (!socket.has(kToldNoWire)) report_why(fd, reason, "the bypass half of the datagram socket");
  socket.set(kToldNoWire);
  return false;
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
  if (socket.has(kV6Only) || !wants_bypass(fd, local, socket.domain)) return 0;
  if (socket.has(kForceKernel)) return report_kernel_option(socket, fd), 0;
  const bool own_address = !local.address.is_any();
  if (own_address) policy.open_wire();
  r = open_binding(socket, fd, local);
  if (r == 0 || own_address) return r;
  report_why(fd, observe::Reason::kAddressNotOurs, "the bypass half of the datagram socket");
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
  switch (policy.decide_connect(fd, SOCK_DGRAM, bound ? &local.base : nullptr, address)) {
    case Decision::kFail:
      return failure(Error::kAccess);
    case Decision::kKernel:
    case Decision::kRelay:
      return connect_kernel_half(socket, fd, address, length, *remote);
    case Decision::kBypass:
      break;
  }
  if (!ensure_binding(socket, fd)) return connect_kernel_half(socket, fd, address, length, *remote);
  return connect_bypass_half(socket, fd, *remote);
}

long datagram_shutdown(Socket& socket, int fd, int how) {
  const bool bypass = has_binding(socket) && connected_to_bypass(socket);
  const long r = bypass ? 0 : kernel_result(kernel->shutdown(fd, how));
  // inet_shutdown: an unconnected socket is shut as well, and its waiters wake.
  if (r != 0 && r != failure(Error::kNotConnected)) return r;
  Guard guard(shard());
  if (how != SHUT_RD) socket.set(kShutSend);
  if (how != SHUT_WR) socket.set(kShutReceive);
  signal(socket, kEverything);
  return r;
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
  const KernelHalf& half = kernel_half_state(socket);
  if (socket.has(kShutReceive)) bits |= kIn | kPeerShut;
  if (socket.has(kShutReceive) && socket.has(kShutSend)) bits |= kHangUp;
  if (socket.binding != nullptr) {
    if (udp_engine().queued(*socket.binding) != 0) bits |= kIn;
    if (udp_engine().error(*socket.binding) != Error::kNone) bits |= kError;
    if (udp_engine().first_error(*socket.binding) != nullptr) bits |= kError;
  }
  if (socket.pending_error != 0) bits |= kError;
  bits |= kernel_half_bits(socket);
  if (half.out) bits |= kOut;
  return bits;
}

namespace {

// A new value drops the route of a connected socket until its next send (ip_sock_set_tos).
void set_tos(Socket& socket, int value) {
  const auto tos = static_cast<std::uint8_t>(value);
  if (socket.details->tos != tos) socket.route_dropped = 1;
  socket.details->tos = tos;
}

}  // namespace

void datagram_option(Guard&, Socket& socket, int level, int name, std::span<const std::byte> value) {
  int v = 0;
  if (!value.empty()) std::memcpy(&v, value.data(), std::min(value.size(), sizeof v));
  Details& details = *socket.details;
  if (level == IPPROTO_IP) {
    switch (name) {
      case IP_PKTINFO:
        socket.set(kWantPacketInfo, v != 0);
        break;
      case IP_RECVTOS:
        socket.set(kWantTos, v != 0);
        break;
      case IP_RECVERR:
        socket.set(kWantErrors, v != 0);
        if (socket.binding != nullptr) udp_engine().want_errors(*socket.binding, v != 0);
        break;
      case IP_RECVORIGDSTADDR:
        socket.set(kWantOriginal, v != 0);
        break;
      case IP_RECVTTL:
        socket.set(kWantTtl, v != 0);
        break;
      case IP_TOS:
        set_tos(socket, v);
        break;
      case IP_TTL:
        details.ttl = static_cast<std::uint8_t>(v < 0 ? 64 : v);
        break;
      case IP_MTU_DISCOVER:
        details.mtu_discovery = static_cast<std::uint8_t>(v);
        break;
      case IP_MULTICAST_TTL:
        details.multicast_ttl = static_cast<std::uint8_t>(v < 0 ? 1 : v);
        break;
      default:
        break;
    }
  } else if (level == IPPROTO_IPV6) {
    if (name == IPV6_RECVPKTINFO) socket.set(kWantPacketInfo6, v != 0);
    if (name == IPV6_TCLASS) set_tos(socket, v < 0 ? 0 : v);
    if (name == IPV6_UNICAST_HOPS) details.ttl = static_cast<std::uint8_t>(v < 0 ? 64 : v);
  } else if (level == IPPROTO_UDP) {
    if (name == UDP_SEGMENT) details.segment_bytes = static_cast<std::uint16_t>(v);
    if (name == UDP_CORK) details.cork = v != 0;
  } else if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_RCVBUFFORCE)) {
    details.receive_bytes = details.tcp.receive_buffer * 2;  // the kernel's limit, bookkeeping included
    if (socket.binding != nullptr) udp_engine().set_receive_bytes(*socket.binding, details.receive_bytes);
  }
}

long datagram_mtu(Socket& socket, void* value, socklen_t* length) {
  Guard guard(shard());
  if (socket.binding == nullptr || !connected_to_bypass(socket)) return kAgain;
  if (value == nullptr || length == nullptr) return failure(Refusal::kBadPointer);
  if (static_cast<int>(*length) < 0) return failure(Error::kInvalid);
  if (socket.route_dropped != 0) return failure(Error::kNotConnected);
  const auto mtu = udp_engine().path_mtu(guard.context(), *socket.binding, socket.details->peer.address);
  if (!mtu.ok()) return failure(mtu.error());
  const int number = static_cast<int>(*mtu);
  *length = std::min<socklen_t>(*length, sizeof number);
  std::memcpy(value, &number, *length);
  return 0;
}

long datagram_error(Socket& socket, void* value, socklen_t* length) {
  Guard guard(shard());
  if (value == nullptr || length == nullptr || *length < sizeof(int)) return kAgain;
  auto number = static_cast<int>(-take_pending_error(socket));
  if (number == 0 && socket.binding != nullptr) number = option_error(udp_engine().take_error(*socket.binding));
  if (number == 0) return kAgain;
  std::memcpy(value, &number, sizeof number);
  *length = sizeof number;
  return 0;
}

std::optional<long> datagram_control(Socket& socket, int, unsigned long request, void* argument) {
  if (request != FIONREAD || argument == nullptr) return std::nullopt;
  Guard guard(shard());
  udp::Datagram first;
  if (socket.binding == nullptr || !udp_engine().front(*socket.binding, first)) return std::nullopt;
  if (!copy_to_program(static_cast<int*>(argument), static_cast<int>(first.length)))
    return failure(Refusal::kBadPointer);
  return 0;
}

}  // namespace bypass::socket
