// The options of setsockopt(2) that the stack has, each with its getter and setter. option_kinds.cc lists all others.
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/options/options.h"
#include "socket/stream/stream_calls.h"
#include "stack/tcp/open/listener.h"

namespace bypass::socket {

namespace {

using Bytes = std::span<std::byte>;
using Value = std::span<const std::byte>;

// The kernel's smallest buffers (SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
constexpr int kMinSendBuffer = 4608, kMinReceiveBuffer = 2304;

// --- Values as bytes

long put(Bytes out, const void* value, std::size_t size) {
  const std::size_t n = std::min(out.size(), size);
  std::memcpy(out.data(), value, n);
  return static_cast<long>(n);
}
long put_int(Bytes out, long value) {
  const int v = static_cast<int>(value);
  return put(out, &v, sizeof v);
}
template <typename T>
bool read_as(Value value, T& out) {
  if (value.size() < sizeof out) return false;
  std::memcpy(&out, value.data(), sizeof out);
  return true;
}

/// A setter of an int: `Apply` is long(Guard&, Socket&, int).
template <auto Apply>
long set_int(Guard& guard, Socket& socket, Value value) {
  int v = 0;
  return read_as(value, v) ? Apply(guard, socket, v) : failure(Error::kInvalid);
}
template <auto Read>
long get_int(Socket& socket, Bytes out) {
  return put_int(out, Read(socket));
}

/// As ip(7)'s options (do_ip_setsockopt and do_ip_getsockopt of Linux): a single byte suffices, or nothing for 0.
template <auto Apply>
long set_ip_int(Guard& guard, Socket& socket, Value value) {
  int v = 0;
  if (value.size() < sizeof v) return Apply(guard, socket, value.empty() ? 0 : static_cast<int>(value[0]));
  return set_int<Apply>(guard, socket, value);
}
template <auto Read>
long get_ip_int(Socket& socket, Bytes out) {
  const long v = Read(socket);
  const bool in_a_byte = !out.empty() && out.size() < sizeof(int) && v >= 0 && v <= 255;
  return put_int(in_a_byte ? out.first(1) : out, v);
}

// --- Flags of the socket

template <std::uint32_t Flag>
constexpr auto read_flag = [](Socket& s) -> long { return s.has(Flag) ? 1 : 0; };
template <std::uint32_t Flag>
constexpr auto write_flag = [](Guard&, Socket& s, int v) -> long {
  s.set(Flag, v != 0);
  return 0;
};
template <auto Constant>
constexpr auto constant = [](Socket&) -> long { return Constant; };
constexpr auto accept_and_forget = [](Guard&, Socket&, int) -> long { return 0; };

// --- Members of tcp::Options

template <auto Member>
constexpr auto read_tcp = [](Socket& s) -> long { return static_cast<long>(tcp_options(s).*Member); };
template <auto Member, int Least, int Most>
constexpr auto write_tcp = [](Guard& g, Socket& s, int v) -> long {
  if (v < Least || v > Most) return failure(Error::kInvalid);
  tcp::Options options = tcp_options(s);
  options.*Member = static_cast<std::remove_reference_t<decltype(options.*Member)>>(v);
  set_tcp_options(g, s, options);
  return 0;
};
// For options where Linux takes the nearest possible value.
template <auto Member, int Least, int Most>
constexpr auto write_tcp_clamped =
    [](Guard& g, Socket& s, int v) -> long { return write_tcp<Member, Least, Most>(g, s, std::clamp(v, Least, Most)); };

// For options that are bits.
struct TcpFlag {
  bool (*read)(const tcp::Options&);
  void (*write)(tcp::Options&, bool);
};
constexpr TcpFlag kNoDelay{[](const tcp::Options& o) -> bool { return o.no_delay; },
                           [](tcp::Options& o, bool on) { o.no_delay = on; }};
constexpr TcpFlag kCork{[](const tcp::Options& o) -> bool { return o.cork; },
                        [](tcp::Options& o, bool on) { o.cork = on; }};
constexpr TcpFlag kQuickAck{[](const tcp::Options& o) -> bool { return o.quick_ack; },
                            [](tcp::Options& o, bool on) { o.quick_ack = on; }};
constexpr TcpFlag kKeepAlive{[](const tcp::Options& o) -> bool { return o.keep_alive; },
                             [](tcp::Options& o, bool on) { o.keep_alive = on; }};
template <const TcpFlag& Flag>
constexpr auto read_tcp_flag = [](Socket& s) -> long { return Flag.read(tcp_options(s)) ? 1 : 0; };
template <const TcpFlag& Flag>
constexpr auto write_tcp_flag = [](Guard& g, Socket& s, int v) -> long {
  tcp::Options options = tcp_options(s);
  Flag.write(options, v != 0);
  set_tcp_options(g, s, options);
  return 0;
};

// TCP_NODELAY's 1 and TCP_CORK's 0 send what waits, even if they change nothing (tcp(7)).
template <const TcpFlag& Flag, bool Pushes>
constexpr auto write_pushing = [](Guard& g, Socket& s, int v) -> long {
  write_tcp_flag<Flag>(g, s, v);
  calls_of(s).note_cork(g, s, (v != 0) == Pushes);
  return 0;
};

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

constexpr int kForever = 0x7fffffff;

// --- One by one

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

constexpr auto write_max_segment = [](Guard& g, Socket& s, int v) -> long {  // 0: taken from the path again
  return v == 0 ? write_tcp<&tcp::Options::max_segment, 0, 0>(g, s, v)
                : write_tcp<&tcp::Options::max_segment, 88, 32767>(g, s, v);
};
long get_max_segment(Socket& socket, Bytes out) {
  if (connection_of(socket) != nullptr) return put_int(out, tcp_engine().info(*socket.tcb).mss);
  const std::uint16_t set = tcp_options(socket).max_segment;
  return put_int(out, set != 0 ? set : 536);
}

constexpr std::pair<std::string_view, tcp::Congestion> kAlgorithms[] = {{"cubic", tcp::Congestion::kCubic},
                                                                        {"reno", tcp::Congestion::kNewReno}};
long get_congestion(Socket& socket, Bytes out) {
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  for (const auto& [text, algorithm] : kAlgorithms)
    if (algorithm == tcp_options(socket).congestion) text.copy(name.data(), name.size() - 1);
  return put(out, name.data(), name.size());
}
long set_congestion(Guard& guard, Socket& socket, Value value) {
  const auto* text = reinterpret_cast<const char*>(value.data());
  const std::string_view name(text, strnlen(text, std::min<std::size_t>(value.size(), 15)));
  for (const auto& [known, algorithm] : kAlgorithms) {
    if (known != name) continue;
    tcp::Options options = tcp_options(socket);
    options.congestion = algorithm;
    set_tcp_options(guard, socket, options);
    return 0;
  }
  return failure(Refusal::kNoSuchName);
}

// secs_to_retrans() and retrans_to_secs() of Linux: whole waits of a SYN-ACK, each twice as long as the last.
constexpr auto write_defer_accept = [](Guard& g, Socket& s, int v) -> long {
  constexpr int kLongest = 120;  // TCP_RTO_MAX
  int wait = 1, all = v > 0 ? 1 : 0;
  for (int sent = 1; all < v && sent < 255; sent++) {
    wait = std::min(2 * wait, kLongest);
    all += wait;
  }
  return write_tcp<&tcp::Options::defer_accept_s, 0, 0xffff>(g, s, all);
};
// 0 is the system's default: no limit.
constexpr auto read_not_sent = [](Socket& s) -> long { return static_cast<long>(tcp_options(s).not_sent_low_water); };
constexpr auto write_not_sent = [](Guard& g, Socket& s, int v) -> long {
  tcp::Options options = tcp_options(s);
  options.not_sent_low_water = static_cast<std::uint32_t>(v);
  set_tcp_options(g, s, options);
  signal(s, kOut);  // as write_buffer
  return 0;
};
// A value that was not set reads as Linux's default.
constexpr auto read_syn_retries = [](Socket& s) -> long {
  const std::uint8_t set = tcp_options(s).syn_retries;
  return set != 0 ? set : 6;
};
constexpr auto read_linger2 = [](Socket& s) -> long {
  const std::int16_t set = tcp_options(s).linger2_s;
  return set == 0 ? 60 : std::max<long>(set, -1);
};
constexpr auto read_domain = [](Socket& s) -> long { return s.domain; };
constexpr auto read_accepting = [](Socket& s) -> long { return s.kind == FileKind::kListener ? 1 : 0; };
constexpr auto read_cpu = [](Socket&) -> long { return sched_getcpu(); };
constexpr auto read_low_water = [](Socket& s) -> long { return s.low_water; };
constexpr auto read_tos = [](Socket& s) -> long { return tcp_options(s).tos; };
// The two lowest bits are ECN's and TCP's own. A new value drops the socket's route until its next send
// (ip_sock_set_tos).
constexpr auto write_tos = [](Guard& g, Socket& s, int v) -> long {
  tcp::Options options = tcp_options(s);
  const std::uint8_t before = std::exchange(options.tos, static_cast<std::uint8_t>(v & ~3));
  if (options.tos != before && connection_of(s) != nullptr)
    s.route_dropped = static_cast<std::uint32_t>(tcp_engine().info(*s.tcb).segments_sent);
  set_tcp_options(g, s, options);
  return 0;
};
constexpr auto write_ttl = [](Guard& g, Socket& s, int v) -> long {
  if (v != -1 && (v < 1 || v > 255)) return failure(Error::kInvalid);
  tcp::Options options = tcp_options(s);
  options.ttl = static_cast<std::uint8_t>(v == -1 ? 64 : v);
  set_tcp_options(g, s, options);
  return 0;
};
long get_mtu(Socket& socket, Bytes out) {
  if (connection_of(socket) == nullptr || stream::is_over(*socket.tcb)) return failure(Error::kNotConnected);
  const tcp::Info info = tcp_engine().info(*socket.tcb);
  const bool is_routed =
      socket.route_dropped == 0 || socket.route_dropped != static_cast<std::uint32_t>(info.segments_sent);
  return is_routed ? put_int(out, info.path_mtu) : failure(Error::kNotConnected);
}
constexpr auto write_v6_only = [](Guard&, Socket& s, int v) -> long {
  s.set(kV6Only, v != 0);
  return 0;
};

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

constexpr auto before_connecting = [](Guard&, Socket&, int) -> long { return failure(Error::kInvalid); };

constexpr auto read_peek_offset = [](Socket& s) -> long {
  return s.has(kPeeksOn) && s.details != nullptr ? static_cast<long>(s.details->peek_offset) : -1;
};
constexpr auto write_peek_offset = [](Guard&, Socket& s, int v) -> long {
  s.set(kPeeksOn, v >= 0);
  s.details->peek_offset = static_cast<std::uint32_t>(std::max(v, 0));
  return 0;
};
constexpr auto write_inq = [](Guard&, Socket& s, int v) -> long {
  if (v < 0 || v > 1) return failure(Error::kInvalid);
  s.set(kWantInq, v != 0);
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

using O = tcp::Options;

constexpr OptionRow kTable[] = {
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

    {IPPROTO_TCP, TCP_NODELAY, get_int<read_tcp_flag<kNoDelay>>, set_int<write_pushing<kNoDelay, true>>},
    {IPPROTO_TCP, TCP_CORK, get_int<read_tcp_flag<kCork>>, set_int<write_pushing<kCork, false>>},
    {IPPROTO_TCP, TCP_QUICKACK, get_int<read_tcp_flag<kQuickAck>>, set_int<write_tcp_flag<kQuickAck>>},
    {IPPROTO_TCP, TCP_MAXSEG, get_max_segment, set_int<write_max_segment>},
    {IPPROTO_TCP, TCP_KEEPIDLE, get_int<read_tcp<&O::keep_idle_s>>, set_int<write_tcp<&O::keep_idle_s, 1, 32767>>},
    {IPPROTO_TCP, TCP_KEEPINTVL, get_int<read_tcp<&O::keep_interval_s>>,
     set_int<write_tcp<&O::keep_interval_s, 1, 32767>>},
    {IPPROTO_TCP, TCP_KEEPCNT, get_int<read_tcp<&O::keep_count>>, set_int<write_tcp<&O::keep_count, 1, 127>>},
    {IPPROTO_TCP, TCP_SYNCNT, get_int<read_syn_retries>, set_int<write_tcp<&O::syn_retries, 1, 127>>},
    {IPPROTO_TCP, TCP_LINGER2, get_int<read_linger2>, set_int<write_tcp_clamped<&O::linger2_s, -1, 120>>},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, get_int<read_tcp<&O::defer_accept_s>>, set_int<write_defer_accept>},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, get_int<read_tcp<&O::user_timeout_ms>>,
     set_int<write_tcp<&O::user_timeout_ms, 0, kForever>>},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, get_int<read_not_sent>, set_int<write_not_sent>},
    {IPPROTO_TCP, TCP_CONGESTION, get_congestion, set_congestion},
    {IPPROTO_TCP, TCP_INFO, get_tcp_info, nullptr},
    {IPPROTO_TCP, TCP_FASTOPEN, get_int<constant<0>>, set_int<before_connecting>},
    {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, get_int<constant<0>>, set_int<before_connecting>},
    {IPPROTO_TCP, TCP_INQ, get_int<read_flag<kWantInq>>, set_int<write_inq>},

    {IPPROTO_IP, IP_TOS, get_ip_int<read_tos>, set_ip_int<write_tos>},
    {IPPROTO_IP, IP_TTL, get_ip_int<read_tcp<&O::ttl>>, set_ip_int<write_ttl>},
    {IPPROTO_IP, IP_MTU, get_mtu, nullptr},
    {IPPROTO_IPV6, IPV6_V6ONLY, get_int<read_flag<kV6Only>>, set_int<write_v6_only>},
    {IPPROTO_IPV6, IPV6_TCLASS, get_int<read_tos>, set_int<write_tos>},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, get_int<read_tcp<&O::ttl>>, set_int<write_ttl>},
};

}  // namespace

std::span<const OptionRow> option_rows() {
  return kTable;
}

const OptionRow* find_option(const Socket& socket, int level, int name) {
  if (level == IPPROTO_IPV6 && socket.domain != AF_INET6) return nullptr;  // the kernel says so
  for (const OptionRow& row : kTable)
    if (row.level == level && row.name == name) return &row;
  return nullptr;
}

tcp::Options tcp_options(const Socket& socket) {
  if (connection_of(socket) != nullptr) return tcp_engine().options(*socket.tcb);
  return socket.details != nullptr ? socket.details->tcp : tcp::Options{};
}

void set_tcp_options(Guard& guard, Socket& socket, const tcp::Options& options) {
  if (socket.details != nullptr) socket.details->tcp = options;
  if (socket.kind == FileKind::kListener) {
    if (socket.listener != nullptr) socket.listener->options = options;
  } else if (connection_of(socket) != nullptr) {
    stream::set_options(guard.context(), *socket.tcb, options);
  }
}

}  // namespace bypass::socket
