// Options of the levels IPPROTO_IP and IPPROTO_IPV6: ip(7), ipv6(7).
// Tests: tests/socket/option_table_test.cc.
#include <netinet/in.h>

#include <utility>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/options/option_rows.h"
#include "socket/options/option_values.h"
#include "socket/stream/stream_calls.h"

namespace bypass::socket::option {
namespace {

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

constexpr OptionRow kIpRows[] = {
    {IPPROTO_IP, IP_TOS, get_ip_int<read_tos>, set_ip_int<write_tos>},
    {IPPROTO_IP, IP_TTL, get_ip_int<read_tcp<&O::ttl>>, set_ip_int<write_ttl>},
    {IPPROTO_IP, IP_MTU, get_mtu, nullptr},
    {IPPROTO_IPV6, IPV6_V6ONLY, get_int<read_flag<kV6Only>>, set_int<write_v6_only>},
    {IPPROTO_IPV6, IPV6_TCLASS, get_int<read_tos>, set_int<write_tos>},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, get_int<read_tcp<&O::ttl>>, set_int<write_ttl>},
};

}  // namespace

std::span<const OptionRow> ip_level_rows() {
  return kIpRows;
}

}  // namespace bypass::socket::option
