// Socket: a File with a protocol behind it, as it lies in the arena.
//
// A stream is undecided (a plain kernel socket) until connect or listen names an address. Then either the stack has it
// (a connection, or a listener that may have a kernel half), or the kernel has it and this object is removed. A
// datagram socket stays dual. Details holds what only sockets with a kernel socket of their own need; an accepted
// connection has no Details.
// Tests: tests/socket/stream_test.cc, tests/socket/kin_test.cc.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "os/net/address.h"
#include "socket/family/pumped.h"
#include "socket/file.h"
#include "socket/path_calls.h"
#include "socket/shard.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"
#include "stack/tcp/engine.h"
#include "stack/udp/udp.h"

namespace bypass::socket {

struct LocalEnd;

enum class Progress : std::uint8_t {
  kNone,
  kConnecting,  // connect() has started and has not reported its result
  kConnected,
};

enum SocketFlag : std::uint32_t {
  kShutReceive = 1U << 0,
  kShutSend = 1U << 1,
  kReading = 1U << 2,  // a thread copies out without the lock: others must wait
  kWriting = 1U << 3,  // a thread copies in without the lock
  kV6Only = 1U << 4,
  kReuseAddress = 1U << 5,
  kReusePort = 1U << 6,
  kBound = 1U << 7,        // the program has bound it; Details::bound says to what
  kFreeBound = 1U << 8,    // bound to a bypass address: the kernel socket only reserves the port number
  kForceKernel = 1U << 9,  // an option was set that only the kernel can do
  kKernelTurn = 1U << 10,  // if both sources have something, the kernel's is next
  kBroadcast = 1U << 12,
  kOptionsSet = 1U << 13,  // TCP options differ from the engine's defaults
  kHoldsBack = 1U << 14,   // in shared memory: TCP_CORK is on, or the ring holds bytes back (local_held.cc)
  kZerocopy = 1U << 15,    // SO_ZEROCOPY
  // What a receive reports beside the bytes
  kWantTimestamp = 1U << 16,    // SO_TIMESTAMP
  kWantTimestampNs = 1U << 17,  // SO_TIMESTAMPNS
  kWantPacketInfo = 1U << 18,   // IP_PKTINFO
  kWantTos = 1U << 19,
  kWantTtl = 1U << 20,
  kWantPacketInfo6 = 1U << 21,   // IPV6_RECVPKTINFO
  kToldNoWire = 1U << 22,        // `bypass why` knows already that datagrams for the wire go by the kernel
  kWantTimestamping = 1U << 23,  // SO_TIMESTAMPING: when it arrived, by our clock
  kWantInq = 1U << 24,           // TCP_INQ
  kWantOriginal = 1U << 25,      // IP_RECVORIGDSTADDR
  kPeeksOn = 1U << 26,           // SO_PEEK_OFF: Details::peek_offset counts
  kWantErrors = 1U << 27,        // IP_RECVERR
  kHasCopies = 1U << 28,         // Details::copies counts
};

/// A receive on a stream with one of these does more than copy.
inline constexpr std::uint32_t kNotAtOnce = kPeeksOn | kWantTimestamp | kWantTimestampNs | kWantTimestamping | kWantInq;

/// The process that gets signals for I/O (async.h).
struct AsyncOwner {
  std::int32_t pid = 0;     // a process, its group (negative) or a thread; 0: nobody
  std::uint8_t type = 0;    // F_OWNER_PID …
  std::uint8_t signal = 0;  // F_SETSIG; 0: a plain SIGIO
  std::int32_t number = -1;
};

/// The sends with MSG_ZEROCOPY, which are numbered from 0: those from `first` up to the one before `next` are to be
/// told of (stream/zerocopy.h).
struct Copies {
  std::uint32_t first, next;
};

/// What sockets with a kernel socket of their own keep.
struct Details {
  tcp::Options tcp;
  Endpoint bound;
  std::uint32_t backlog = 0;
  // Datagrams
  Endpoint peer;  // the connected peer; unset: not connected
  bool peer_is_kernel = false;
  std::uint8_t tos = 0, ttl = 64, multicast_ttl = 1;
  bool cork = false;                // UDP_CORK
  std::uint8_t mtu_discovery = 1;   // IP_MTU_DISCOVER: IP_PMTUDISC_WANT
  std::uint16_t segment_bytes = 0;  // UDP_SEGMENT
  std::byte* corked = nullptr;      // the datagram assembled so far, for `corked_to`; a block of kMostPayload
  std::uint32_t corked_bytes = 0;
  std::uint32_t kernel_inode = 0;  // of a listener or a datagram socket on the wire: of the kernel's socket beneath; 0:
                                   // not to be had
  std::uint32_t receiver = 0, poller = 0;  // … processes that use it (family/receivers.h); 0: no process
  union {
    Endpoint corked_to{};
    PumpedAt pump;  // of a stream of kPumped
    Copies copies;  // of a stream on the wire, with kHasCopies
  };
  std::uint32_t receive_bytes = 0, send_bytes = 0;  // as getsockopt reports them; 0: not set
  LocalEnd* local = nullptr;                        // for a socket whose bytes go, or went, by shared memory
  AsyncOwner async;
  std::uint32_t timestamping = 0;  // SO_TIMESTAMPING, as set
  std::uint32_t peek_offset = 0;   // SO_PEEK_OFF, with kPeeksOn
  struct {
    int level = 0, name = 0;
  } kernel_option;  // with kForceKernel: the option that caused it
};
static_assert(sizeof(Details) <= 192,
              "each connection that the program has opened, listener and datagram socket costs one");

/// A value of Socket's timeouts: a call does not wait, as with a negative SO_RCVTIMEO (sock_set_timeout).
inline constexpr std::uint32_t kNoTimeAtAll = ~0U;

struct Socket : File {
  std::atomic<Path> path{Path::kUndecided};  // read without the lock by decided_for_kernel()
  Progress progress = Progress::kNone;
  std::uint8_t domain = AF_INET;
  std::uint8_t pending_error = 0;  // the errno of a batch of receives, or of dissolve(): the next call returns it
  std::uint32_t flags = 0;
  std::uint32_t low_water = 1;  // SO_RCVLOWAT
  union {
    tcp::Tcb* tcb = nullptr;
    tcp::Listener* listener;
    udp::Binding* binding;
  };
  Details* details = nullptr;
  std::uint32_t receive_timeout_ms = 0, send_timeout_ms = 0;  // 0: no limit; or kNoTimeAtAll
  std::int32_t linger_s = -1;                                 // negative: off, as -1 - the time set last
  /// IP_TOS was changed, and nothing was sent since: there is no route for IP_MTU (ip(7)). For a stream, the number of
  /// segments sent by then; for others 1. 0: the route is valid.
  std::uint32_t route_dropped = 0;

  [[nodiscard]] bool has(std::uint32_t f) const { return (flags & f) != 0; }
  void set(std::uint32_t f) { flags |= f; }
  void clear(std::uint32_t f) { flags &= ~f; }
  void set(std::uint32_t f, bool on) { flags = on ? flags | f : flags & ~f; }
};
static_assert(sizeof(Socket) <= 120, "an accepted connection costs this beside its Tcb");

// --- Shorthands of the socket layer's files
inline Shard& shard() {
  return *process_shard;
}
inline tcp::Engine& tcp_engine() {
  return process_shard->stack().tcp();
}
inline udp::Engine& udp_engine() {
  return process_shard->stack().udp();
}
inline Socket& socket_of(File& file) {
  return static_cast<Socket&>(file);
}
inline const Socket& socket_of(const File& file) {
  return static_cast<const Socket&>(file);
}

/// The socket's connection on the stack; null: none. Lock held, as other threads may make a listener of the socket, or
/// end it.
[[nodiscard]] inline tcp::Tcb* connection_of(const Socket& socket) {
  return socket.kind == FileKind::kStream && socket.path == Path::kBypass ? socket.tcb : nullptr;
}
/// The same for its listener.
[[nodiscard]] inline tcp::Listener* listener_of(const Socket& socket) {
  return socket.kind == FileKind::kListener ? socket.listener : nullptr;
}
/// The same of its half on the wire, where it is a datagram socket.
[[nodiscard]] inline udp::Binding* binding_of(const Socket& socket) {
  return socket.kind == FileKind::kDatagram && socket.path == Path::kDual ? socket.binding : nullptr;
}

/// The row of its path.
[[nodiscard]] inline const PathCalls& calls_of(const Socket& socket) {
  return path_calls[static_cast<std::size_t>(socket.path.load())];
}
/// An epoll set has no path, and counts as undecided.
[[nodiscard]] inline const PathCalls& calls_of(const File& file) {
  return file.kind == FileKind::kEpoll ? path_calls[0] : calls_of(socket_of(file));
}
/// Whether it needs the ports. Lock held.
[[nodiscard]] inline bool is_on_wire(const Socket& socket) {
  return socket.alive && calls_of(socket).on_wire;
}

[[nodiscard]] inline bool non_blocking(const File& file, int flags) {
  return (file.status & static_cast<std::uint32_t>(O_NONBLOCK)) != 0 || (flags & MSG_DONTWAIT) != 0;
}

/// pending_error as a failure, once; 0: no error. Lock held.
[[nodiscard]] inline long take_pending_error(Socket& socket) {
  const int error = std::exchange(socket.pending_error, std::uint8_t{0});
  if (error != 0) calls_of(socket).told_error(socket, error);
  return -static_cast<long>(error);
}

/// The socket is decided for the kernel: its items go to the sets' kernel halves, and the caller's table then drops the
/// object.
void give_to_kernel(Guard& guard, Socket& socket);
/// The kernel refuses a bind to a bypass address, as the address is not its own. With IP_FREEBIND the kernel socket
/// accepts it. So the kernel assigns port numbers for these addresses, too.
long bind_to_bypass(Socket& socket, int fd, const sockaddr* address, socklen_t length);
/// The address that the kernel socket is bound to; port 0 if it is not bound.
[[nodiscard]] Endpoint kernel_name(int fd);
/// The peer to which it is connected in the kernel; an empty endpoint: none.
[[nodiscard]] Endpoint kernel_peer(int fd);
/// Ends what the protocol holds for it, as close() does. Lock held.
void end_socket(Guard& guard, Socket& socket);

// --- One file a kind
long stream_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length);
long stream_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
/// MSG_FASTOPEN: connects as connect() does. Nullopt: the connection is made, and the bytes must now be sent.
std::optional<long> stream_fast_open(Socket& socket, int fd, const Message& message, int flags);
/// tcp_disconnect() of Linux: the connection is gone at once, and leaves an error. Lock held.
void dissolve(Context& ctx, Socket& socket);
/// An accepted connection's number names the placeholder. Gives it a kernel socket of its own. Not possible if there
/// are several numbers, as the open file of the others (perhaps in another process) cannot be replaced. Lock held.
void give_kernel_socket(Socket& socket, int fd);
/// Whether an attempt to connect has failed, and the next connect() will say so. Such a socket may be bound: tcp_done()
/// of Linux has given its port back. Lock held.
[[nodiscard]] bool has_failed_attempt(const Socket& socket);
/// Whether a socket that is undecided again has such an error.
[[nodiscard]] bool has_left_error(const Socket& socket);
/// Returns that error, once; 0: none.
[[nodiscard]] long take_left_error(Socket& socket);
[[nodiscard]] inline std::uint32_t stream_bits(const Socket& socket) {
  return calls_of(socket).bits(socket);
}
/// The process that filled room in the connection's send ring has died: the room's bytes do not count as data. Lock
/// held.
void give_room_back(Context& ctx, Socket& socket);
/// The last number is about to be closed, and SO_LINGER asks to wait for the bytes. Called without the lock.
void linger(Socket& socket);

long listener_listen(Socket& socket, int fd, int backlog);
long listener_accept(Socket& socket, int fd, sockaddr* address, socklen_t* length, int flags, Accepted& out);
long listener_shutdown(Socket& socket, int fd, int how);
[[nodiscard]] std::uint32_t listener_bits(const Socket& socket);

long datagram_bind(Socket& socket, int fd, const sockaddr* address, socklen_t length);
long datagram_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length);
long datagram_receive(Socket& socket, int fd, Message& message, int flags);
long datagram_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
long datagram_shutdown(Socket& socket, int fd, int how);
long datagram_name(Socket& socket, int fd, bool peer, sockaddr* address, socklen_t* length);
[[nodiscard]] std::uint32_t datagram_bits(const Socket& socket);
/// Sets, on the bypass half, an option that the kernel half has accepted.
void datagram_option(Guard& guard, Socket& socket, int level, int name, std::span<const std::byte> value);
/// After UDP_CORK was cleared: sends what was held back. Called without the lock.
void datagram_uncork(Socket& socket, int fd);
/// Drops what was held back. Lock held.
void drop_corked(Details& details);
/// SO_ERROR of the bypass half; kAgain: no error, ask the kernel half.
long datagram_error(Socket& socket, void* value, socklen_t* length);
/// IP_MTU of a socket whose peer is on the wire; kAgain: ask the kernel half.
long datagram_mtu(Socket& socket, void* value, socklen_t* length);
std::optional<long> datagram_control(Socket& socket, int fd, unsigned long request, void* argument);

}  // namespace bypass::socket
