#include <linux/tcp.h>

#include <algorithm>
#include <cstring>

#include "socket/options.h"
#include "socket/stream_calls.h"

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
    case State::kTimeWait:  // the socket's no more
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

void fill(tcp_info& out, const tcp::Info& in, const tcp::Options& options) {
  out.tcpi_retransmits = static_cast<std::uint8_t>(std::min<std::uint32_t>(in.backoff, 255));
  out.tcpi_probes = static_cast<std::uint8_t>(std::min<std::uint32_t>(in.probes, 255));
  out.tcpi_backoff = out.tcpi_retransmits;
  if (in.timestamps) out.tcpi_options |= TCPI_OPT_TIMESTAMPS;
  if (in.sack) out.tcpi_options |= TCPI_OPT_SACK;
  if (in.snd_scale != 0 || in.rcv_scale != 0) out.tcpi_options |= TCPI_OPT_WSCALE;
  out.tcpi_snd_wscale = in.snd_scale & 0xf;
  out.tcpi_rcv_wscale = in.rcv_scale & 0xf;
  out.tcpi_rto = microseconds(in.rto);
  out.tcpi_snd_mss = in.mss;
  out.tcpi_rcv_mss = in.rcv_mss;
  out.tcpi_advmss = options.max_segment != 0 ? options.max_segment : in.mss;
  out.tcpi_pmtu = in.mss + 40;
  out.tcpi_unacked = segments(in.in_flight, in.mss);
  out.tcpi_sacked = segments(in.sacked, in.mss);
  out.tcpi_lost = segments(in.lost, in.mss);
  out.tcpi_rtt = microseconds(in.srtt);
  out.tcpi_rttvar = microseconds(in.rttvar);
  out.tcpi_snd_ssthresh = segments(in.ssthresh, in.mss);
  out.tcpi_snd_cwnd = segments(in.cwnd, in.mss);
  out.tcpi_reordering = in.reordering;
  out.tcpi_rcv_space = in.rcv_wnd;
  out.tcpi_total_retrans = in.retransmits;
  out.tcpi_bytes_acked = in.bytes_acked;
  out.tcpi_bytes_received = in.bytes_received;
  out.tcpi_bytes_sent = in.bytes_sent;
  out.tcpi_segs_out = static_cast<std::uint32_t>(in.segments_sent);
  out.tcpi_segs_in = static_cast<std::uint32_t>(in.segments_received);
  out.tcpi_notsent_bytes = in.unsent;
  out.tcpi_snd_wnd = in.snd_wnd;
}

}  // namespace

long get_tcp_info(Socket& socket, std::span<std::byte> out) {
  tcp_info info{};
  if (socket.kind == FileKind::kListener) {
    info.tcpi_state = linux_state(State::kListen);
    if (socket.listener != nullptr)
      info.tcpi_unacked = static_cast<std::uint32_t>(tcp_engine().accept_queue_length(*socket.listener));
    info.tcpi_sacked = socket.details->backlog;
  } else if (socket.tcb != nullptr) {
    fill(info, tcp_engine().info(*socket.tcb), tcp_engine().options(*socket.tcb));
    info.tcpi_state = linux_state(stream::state(*socket.tcb));
  }
  const std::size_t bytes = std::min(out.size(), sizeof info);
  std::memcpy(out.data(), &info, bytes);
  return static_cast<long>(bytes);
}

}  // namespace bypass::socket
