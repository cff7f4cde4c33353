// Options of the level SOL_SOCKET: socket(7).
// Tests: tests/socket/option_table_test.cc.
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/time.h>

#include <algorithm>
#include <limits>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/options/option_rows.h"
#include "socket/options/option_values.h"
#include "socket/stream/stream_calls.h"

namespace bypass::socket::option {
namespace {

// The kernel's smallest buffers (SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
constexpr int kMinSendBuffer = 4608, kMinReceiveBuffer = 2304;

constexpr TcpFlag kKeepAlive{[](const tcp::Options& o) -> bool { return o.keep_alive; },
                             [](tcp::Options& o, bool on) { o.keep_alive = on; }};

// The values that a bind() compares are stored in the connection, which outlives its socket.
template <std::uint32_t Flag, std::uint8_t Sharing>
constexpr auto write_sharing = [](Guard& g, Socket& s, int v) -> long {
  s.set(Flag, v != 0);
  tcp::Options options = tcp_options(s);
  constexpr unsigned kAll = tcp::kShareAddress | tcp::kSharePort;
  options.sharing = v != 0 ? options.sharing | Sharing : options.sharing & kAll & ~Sharing;
  set_tcp_options(g, s, options);
  return 0;
};

long get_error(Socket& socket, Bytes out) {
  if (const long pending = take_pending_error(socket); pending != 0) return put_int(out, -pending);
  Error error = Error::kNone;
  if (socket.kind == FileKind::kStream && socket.tcb != nullptr) error = tcp_engine().take_error(*socket.tcb);
  return put_int(out, option_error(error));
}

template <std::uint32_t tcp::Options::*Member>
std::int64_t buffer_size(Socket& socket) {
  const std::uint32_t set = tcp_options(socket).*Member;
  const std::uint32_t preset =
      Member == &tcp::Options::send_buffer ? shard().budgets().send_buffer : shard().budgets().receive_buffer;
  return set != 0 ? std::int64_t{set} * 2 : preset;
}
template <std::uint32_t tcp::Options::*Member>
long get_buffer(Socket& socket, Bytes out) {
  return put_int(out, buffer_size<Member>(socket));
}
// net.core.wmem_max or rmem_max, to which the kernel limits a request. A container does not have its file.
int ask_most(int name) {
  constexpr int kUsual = 212992;
  const int fd = kernel->socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return kUsual;
  int value = 0x7fffffff;
  socklen_t length = sizeof value;
  const bool told = kernel->setsockopt(fd, SOL_SOCKET, name, &value, sizeof value) == 0 &&
                    kernel->getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0;
  os::close(fd);
  return told ? value / 2 : kUsual;
}
template <std::uint32_t tcp::Options::*Member>
int most_buffer() {
  static const int most = ask_most(Member == &tcp::Options::send_buffer ? SO_SNDBUF : SO_RCVBUF);
  return most;
}
// As sock_setsockopt: limited, doubled for bookkeeping, and reported doubled. The stack counts payload only.
template <std::uint32_t tcp::Options::*Member, int Least, bool Clamped>
constexpr auto write_buffer = [](Guard& g, Socket& s, int v) -> long {
  if (Clamped) v = static_cast<int>(std::min(static_cast<unsigned>(v), static_cast<unsigned>(most_buffer<Member>())));
  v = std::min(std::max(v, Least / 2), 0x3fffffff);
  tcp::Options options = tcp_options(s);
  options.*Member = static_cast<std::uint32_t>(v);
  set_tcp_options(g, s, options);
  if (Member == &tcp::Options::send_buffer) signal(s, kOut);  // sk_write_space: there may be room now
  return 0;
};

long get_linger(Socket& socket, Bytes out) {
  // The last value is reported even while it is off.
  const ::linger value{socket.linger_s >= 0 ? 1 : 0, socket.linger_s >= 0 ? socket.linger_s : -1 - socket.linger_s};
  return put(out, &value, sizeof value);
}
long set_linger(Guard&, Socket& socket, Value value) {
  ::linger v{};
  if (!read_as(value, v)) return failure(Error::kInvalid);
  const std::int32_t time = socket.linger_s >= 0 ? socket.linger_s : -1 - socket.linger_s;
  constexpr std::int32_t kLongest = std::numeric_limits<std::int32_t>::max();
  socket.linger_s = v.l_onoff == 0 ? -1 - time : v.l_linger < 0 ? kLongest : v.l_linger;  // unsigned in the kernel
  return 0;
}

template <std::uint32_t Socket::*Member>
long get_timeout(Socket& socket, Bytes out) {
  const std::uint32_t ms = socket.*Member == kNoTimeAtAll ? 0 : socket.*Member;  // as sock_get_timeout
  const timeval value{ms / 1000, static_cast<suseconds_t>(ms % 1000) * 1000};
  return put(out, &value, sizeof value);
}
template <std::uint32_t Socket::*Member>
long set_timeout(Guard&, Socket& socket, Value value) {
  timeval v{};
  if (!read_as(value, v)) return failure(Error::kInvalid);
  if (v.tv_usec < 0 || v.tv_usec >= 1'000'000) return failure(Refusal::kDomain);
  constexpr std::int64_t kMost = kNoTimeAtAll - 1;  // about 49 days
  const std::int64_t ms =
      v.tv_sec < 0 ? kNoTimeAtAll : std::min<std::int64_t>(v.tv_sec, kMost / 1000) * 1000 + (v.tv_usec + 999) / 1000;
  socket.*Member = static_cast<std::uint32_t>(ms);
  // The socket may later listen in the kernel.
  if (ms == kNoTimeAtAll && socket.path == Path::kUndecided) note_timeout_below_zero();
  return 0;
}

// What was too little may now be enough (tcp_set_rcvlowat). A connection that is over was ready before as well.
bool is_enough_now(const Socket& socket) {
  if (socket.kind != FileKind::kStream) return true;
  if (const tcp::Tcb* const tcb = connection_of(socket))
    return stream::has_low_water(*tcb, stream::readable(*tcb), socket.low_water) || stream::peer_has_ended(*tcb);
  return (stream_bits(socket) & (kIn | kError | kHangUp)) == kIn;
}

constexpr auto write_low_water = [](Guard&, Socket& s, int v) -> long {
  // tcp_set_rcvlowat: more than the window allows would never come.
  const std::int64_t most = buffer_size<&tcp::Options::receive_buffer>(s) / 2;
  const std::int64_t wanted = v < 0 ? 0x7fffffff : std::max(v, 1);
  s.low_water = static_cast<std::uint32_t>(s.kind == FileKind::kStream ? std::min(wanted, most) : wanted);
  if (is_enough_now(s)) signal(s, kIn);
  return 0;
};

constexpr auto read_domain = [](Socket& s) -> long { return s.domain; };
constexpr auto read_accepting = [](Socket& s) -> long { return s.kind == FileKind::kListener ? 1 : 0; };
constexpr auto read_cpu = [](Socket&) -> long { return sched_getcpu(); };
constexpr auto read_low_water = [](Socket& s) -> long { return s.low_water; };

// Timestamps of sent data are not built.
constexpr std::uint32_t kReceiveStamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
long get_timestamping(Socket& socket, Bytes out) {
  const bool kept = socket.details != nullptr;  // a listener's value is inherited by its connections
  const std::uint32_t flags = kept ? socket.details->timestamping : socket.has(kWantTimestamping) ? kReceiveStamps : 0U;
  const std::uint32_t value[2] = {flags, 0};  // struct so_timestamping
  return put(out, value, sizeof value);
}
long set_timestamping(Guard&, Socket& socket, Value value) {
  std::uint32_t flags = 0;
  if (!read_as(value, flags)) return failure(Error::kInvalid);
  constexpr std::uint32_t kKnown = std::uint32_t{SOF_TIMESTAMPING_LAST} * 2 - 1;
  if ((flags & ~kKnown) != 0) return failure(Error::kInvalid);
  socket.details->timestamping = flags;
  socket.set(kWantTimestamping, (flags & kReceiveStamps) == kReceiveStamps);
  return 0;
}

constexpr auto read_peek_offset = [](Socket& s) -> long {
  return s.has(kPeeksOn) && s.details != nullptr ? static_cast<long>(s.details->peek_offset) : -1;
};
constexpr auto write_peek_offset = [](Guard&, Socket& s, int v) -> long {
  s.set(kPeeksOn, v >= 0);
  s.details->peek_offset = static_cast<std::uint32_t>(std::max(v, 0));
  return 0;
};
constexpr auto write_zerocopy = [](Guard&, Socket& s, int v) -> long {
  if (v < 0 || v > 1) return failure(Error::kInvalid);
  s.set(kZerocopy, v != 0);
  return 0;
};
// Only one of the two is in force (sock_set_timestamp).
template <std::uint32_t Flag, std::uint32_t Other>
constexpr auto write_stamp = [](Guard&, Socket& s, int v) -> long {
  s.set(Flag, v != 0);
  if (v != 0) s.clear(Other);
  return 0;
};

constexpr OptionRow kSocketRows[] = {
    {SOL_SOCKET, SO_REUSEADDR, get_int<read_flag<kReuseAddress>>,
     set_int<write_sharing<kReuseAddress, tcp::kShareAddress>>},
    {SOL_SOCKET, SO_REUSEPORT, get_int<read_flag<kReusePort>>, set_int<write_sharing<kReusePort, tcp::kSharePort>>},
    {SOL_SOCKET, SO_TYPE, get_int<constant<SOCK_STREAM>>, nullptr},
    {SOL_SOCKET, SO_PROTOCOL, get_int<constant<IPPROTO_TCP>>, nullptr},
    {SOL_SOCKET, SO_DOMAIN, get_int<read_domain>, nullptr},
    {SOL_SOCKET, SO_ERROR, get_error, nullptr},
    {SOL_SOCKET, SO_ACCEPTCONN, get_int<read_accepting>, nullptr},
    {SOL_SOCKET, SO_INCOMING_CPU, get_int<read_cpu>, set_int<accept_and_forget>},
    {SOL_SOCKET, SO_BROADCAST, get_int<read_flag<kBroadcast>>, set_int<write_flag<kBroadcast>>},
    {SOL_SOCKET, SO_SNDBUF, get_buffer<&O::send_buffer>, set_int<write_buffer<&O::send_buffer, kMinSendBuffer, true>>},
    {SOL_SOCKET, SO_RCVBUF, get_buffer<&O::receive_buffer>,
     set_int<write_buffer<&O::receive_buffer, kMinReceiveBuffer, true>>},
    {SOL_SOCKET, SO_SNDBUFFORCE, nullptr, set_int<write_buffer<&O::send_buffer, kMinSendBuffer, false>>},
    {SOL_SOCKET, SO_RCVBUFFORCE, nullptr, set_int<write_buffer<&O::receive_buffer, kMinReceiveBuffer, false>>},
    {SOL_SOCKET, SO_KEEPALIVE, get_int<read_tcp_flag<kKeepAlive>>, set_int<write_tcp_flag<kKeepAlive>>},
    {SOL_SOCKET, SO_LINGER, get_linger, set_linger},
    {SOL_SOCKET, SO_RCVTIMEO, get_timeout<&Socket::receive_timeout_ms>, set_timeout<&Socket::receive_timeout_ms>},
    {SOL_SOCKET, SO_SNDTIMEO, get_timeout<&Socket::send_timeout_ms>, set_timeout<&Socket::send_timeout_ms>},
    {SOL_SOCKET, SO_RCVLOWAT, get_int<read_low_water>, set_int<write_low_water>},
    {SOL_SOCKET, SO_SNDLOWAT, get_int<constant<1>>, nullptr},
    {SOL_SOCKET, SO_TIMESTAMP, get_int<read_flag<kWantTimestamp>>,
     set_int<write_stamp<kWantTimestamp, kWantTimestampNs>>},
    {SOL_SOCKET, SO_TIMESTAMPNS, get_int<read_flag<kWantTimestampNs>>,
     set_int<write_stamp<kWantTimestampNs, kWantTimestamp>>},
    {SOL_SOCKET, SO_TIMESTAMPING, get_timestamping, set_timestamping, true},
    {SOL_SOCKET, SO_PEEK_OFF, get_int<read_peek_offset>, set_int<write_peek_offset>, true},
    {SOL_SOCKET, SO_ZEROCOPY, get_int<read_flag<kZerocopy>>, set_int<write_zerocopy>},
};

}  // namespace

std::span<const OptionRow> socket_level_rows() {
  return kSocketRows;
}

}  // namespace bypass::socket::option
