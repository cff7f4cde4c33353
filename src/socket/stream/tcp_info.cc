// TCP_INFO (tcp(7)) of a connection of the stack, in the layout and size of the running kernel.
// Tests: tests/stack/tcp/info_test.cc, tests/socket/option_table_test.cc.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "os/os.h"
#include "socket/options/options.h"
#include "socket/stream/stream_calls.h"
#include "stack/tcp/congestion/window.h"

namespace bypass::socket {

namespace {

using tcp::State;

std::uint8_t linux_state(State state) {
  enum : std::uint8_t { kEstablished = 1, kSynSent, kSynRecv, kFinWait1, kFinWait2 };
  enum : std::uint8_t { kClose = 7, kCloseWait, kLastAck, kListen, kClosing };
  switch (state) {
    case State::kEstablished:
      return kEstablished;
    case State::kSynSent:
      return kSynSent;
    case State::kSynReceived:
      return kSynRecv;
    case State::kFinWait1:
      return kFinWait1;
    case State::kFinWait2:
      return kFinWait2;
    case State::kCloseWait:
      return kCloseWait;
    case State::kLastAck:
      return kLastAck;
    case State::kListen:
      return kListen;
    case State::kClosing:
      return kClosing;
    case State::kTimeWait:  // the socket no longer has it
    case State::kClosed:
      break;
  }
  return kClose;
}

std::uint32_t microseconds(Duration d) {
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

std::uint32_t segments(std::uint32_t bytes, std::uint32_t mss) {
  return mss == 0 ? 0 : (bytes + mss - 1) / mss;
}

/// TCP_INFINITE_SSTHRESH of Linux.
constexpr std::uint32_t kInfiniteThreshold = 0x7fffffff;
/// The rate of a connection that is not paced, or whose rate is not known yet.
constexpr std::uint64_t kNoRate = ~std::uint64_t{0};
/// Not measured here: the default of sysctl tcp_reordering.
constexpr std::uint32_t kDuplicateThreshold = 3;
/// In segments; shown by a listener (TCP_INIT_CWND of Linux).
constexpr std::uint32_t kInitialWindow = 10;

// In bytes a second: tcp_update_pacing_rate() of Linux, which gives this value even if nothing is paced.
std::uint64_t pacing_rate(const tcp::Info& in) {
  const std::uint64_t srtt = microseconds(in.srtt);
  if (srtt == 0) return kNoRate;
  const std::uint64_t window = std::max(in.cwnd, in.in_flight);
  const std::uint64_t percent = in.cwnd < in.ssthresh / 2 ? 200 : 120;
  constexpr std::uint64_t kSecond = 1'000'000;
  return window * percent * (kSecond / 100) / srtt;
}

// Larger than any kernel's struct tcp_info. The struct in the headers of this build is its front part.
using Newest = std::array<std::byte, 512>;
struct Newer {  // since Linux 6.2 and 6.7, after tcpi_snd_wnd
  std::uint32_t rcv_wnd, rehash;
  std::uint16_t total_rto, total_rto_recoveries;
  std::uint32_t total_rto_time;
};
constexpr std::size_t kNewerAt = offsetof(tcp_info, tcpi_snd_wnd) + sizeof(tcp_info::tcpi_snd_wnd);

// tcp_get_info() of the running kernel returns as much as its own struct has.
std::size_t ask_size() {
  const int fd = kernel->socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return sizeof(tcp_info);
  Newest newest;
  socklen_t length = newest.size();
  const bool told = kernel->getsockopt(fd, IPPROTO_TCP, TCP_INFO, newest.data(), &length) == 0;
  os::close(fd);
  return told ? length : sizeof(tcp_info);
}
std::size_t kernel_size() {
  static const std::size_t size = ask_size();
  return size;
}

void fill_times(tcp_info& out, const tcp::Info& in) {
  const std::uint32_t now = milliseconds_of(shard().clock().now());
  out.tcpi_last_data_sent = now - in.last_sent_ms;
  out.tcpi_last_data_recv = now - in.last_data_ms;
  out.tcpi_last_ack_recv = now - in.last_received_ms;
  const tcp::Spent spent = in.busy_times.at(in.limit, now);
  constexpr std::uint64_t kMicroseconds = 1000;
  out.tcpi_busy_time = kMicroseconds * spent.busy;
  out.tcpi_rwnd_limited = kMicroseconds * spent.window;
  out.tcpi_sndbuf_limited = kMicroseconds * spent.buffer;
}

void fill(tcp_info& out, const tcp::Info& in, const tcp::Options& options) {
  fill_times(out, in);
  out.tcpi_ca_state = static_cast<std::uint8_t>(in.congestion_state);
  out.tcpi_retransmits = static_cast<std::uint8_t>(std::min<std::uint32_t>(in.backoff, 255));
  out.tcpi_probes = static_cast<std::uint8_t>(std::min<std::uint32_t>(in.probes, 255));
  out.tcpi_backoff = out.tcpi_retransmits;
  if (in.timestamps) out.tcpi_options |= TCPI_OPT_TIMESTAMPS;
  if (in.sack) out.tcpi_options |= TCPI_OPT_SACK;
  if (in.snd_scale != 0 || in.rcv_scale != 0) out.tcpi_options |= TCPI_OPT_WSCALE;
  out.tcpi_snd_wscale = in.snd_scale & 0xf;
  out.tcpi_rcv_wscale = in.rcv_scale & 0xf;
  out.tcpi_rto = microseconds(in.rto);
  out.tcpi_ato = microseconds(in.delayed_ack);
  out.tcpi_snd_mss = in.mss;
  out.tcpi_rcv_mss = in.rcv_mss;
  out.tcpi_advmss = options.max_segment != 0 ? options.max_segment : in.own_mss;
  out.tcpi_pmtu = in.path_mtu;
  out.tcpi_unacked = segments(in.in_flight, in.mss);
  out.tcpi_sacked = segments(in.sacked, in.mss);
  out.tcpi_lost = segments(in.lost, in.mss);
  out.tcpi_retrans = segments(in.sent_again, in.mss);
  out.tcpi_rtt = microseconds(in.srtt);
  out.tcpi_rttvar = microseconds(in.rttvar);
  out.tcpi_min_rtt = in.min_rtt != Duration{} ? microseconds(in.min_rtt) : ~0U;
  out.tcpi_pacing_rate = pacing_rate(in);
  out.tcpi_max_pacing_rate = kNoRate;
  out.tcpi_snd_ssthresh = in.ssthresh == tcp::kMaxCwnd ? kInfiniteThreshold : segments(in.ssthresh, in.mss);
  out.tcpi_snd_cwnd = segments(in.cwnd, in.mss);
  out.tcpi_reordering = kDuplicateThreshold;
  out.tcpi_rcv_space = in.rcv_wnd;
  out.tcpi_rcv_ssthresh = in.rcv_limit;
  out.tcpi_total_retrans = in.retransmits;
  out.tcpi_bytes_acked = in.bytes_acked;
  out.tcpi_bytes_received = in.bytes_received;
  out.tcpi_bytes_sent = in.bytes_sent;
  out.tcpi_bytes_retrans = in.bytes_retransmitted;
  out.tcpi_segs_out = static_cast<std::uint32_t>(in.segments_sent);
  out.tcpi_segs_in = static_cast<std::uint32_t>(in.segments_received);
  out.tcpi_notsent_bytes = in.unsent;
  out.tcpi_snd_wnd = in.snd_wnd;
}

}  // namespace

long get_tcp_info(Socket& socket, std::span<std::byte> out) {
  tcp_info info{};
  Newer newer{};
  if (socket.kind == FileKind::kListener) {
    info.tcpi_state = linux_state(State::kListen);
    info.tcpi_snd_cwnd = kInitialWindow;
    info.tcpi_reordering = kDuplicateThreshold;
    info.tcpi_pacing_rate = info.tcpi_max_pacing_rate = kNoRate;
    if (socket.listener != nullptr)
      info.tcpi_unacked = static_cast<std::uint32_t>(tcp_engine().accept_queue_length(*socket.listener));
    info.tcpi_sacked = socket.details->backlog;
  } else if (socket.tcb != nullptr) {
    const tcp::Info in = tcp_engine().info(*socket.tcb);
    fill(info, in, tcp_engine().options(*socket.tcb));
    newer.rcv_wnd = in.rcv_wnd;
    info.tcpi_state = linux_state(stream::state(*socket.tcb));
  }
  Newest newest{};
  std::memcpy(newest.data(), &info, sizeof info);
  std::memcpy(newest.data() + kNewerAt, &newer, sizeof newer);
  const std::size_t bytes = std::min({out.size(), kernel_size(), newest.size()});
  std::memcpy(out.data(), newest.data(), bytes);
  return static_cast<long>(bytes);
}

}  // namespace bypass::socket
