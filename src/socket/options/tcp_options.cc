// Options of the level IPPROTO_TCP: tcp(7).
// Tests: tests/socket/option_table_test.cc.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/options/option_rows.h"
#include "socket/options/option_values.h"
#include "socket/stream/stream_calls.h"

namespace bypass::socket::option {
namespace {

constexpr TcpFlag kNoDelay{[](const tcp::Options& o) -> bool { return o.no_delay; },
                           [](tcp::Options& o, bool on) { o.no_delay = on; }};
constexpr TcpFlag kCork{[](const tcp::Options& o) -> bool { return o.cork; },
                        [](tcp::Options& o, bool on) { o.cork = on; }};
constexpr TcpFlag kQuickAck{[](const tcp::Options& o) -> bool { return o.quick_ack; },
                            [](tcp::Options& o, bool on) { o.quick_ack = on; }};

// TCP_NODELAY's 1 and TCP_CORK's 0 send what waits, even if they change nothing (tcp(7)).
template <const TcpFlag& Flag, bool Pushes>
constexpr auto write_pushing = [](Guard& g, Socket& s, int v) -> long {
  write_tcp_flag<Flag>(g, s, v);
  calls_of(s).note_cork(g, s, (v != 0) == Pushes);
  return 0;
};

constexpr int kForever = 0x7fffffff;

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

constexpr auto before_connecting = [](Guard&, Socket&, int) -> long { return failure(Error::kInvalid); };

constexpr auto write_inq = [](Guard&, Socket& s, int v) -> long {
  if (v < 0 || v > 1) return failure(Error::kInvalid);
  s.set(kWantInq, v != 0);
  return 0;
};

constexpr OptionRow kTcpRows[] = {
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
};

}  // namespace

std::span<const OptionRow> tcp_level_rows() {
  return kTcpRows;
}

}  // namespace bypass::socket::option
