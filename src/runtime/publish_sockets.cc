// The sockets' part of the stats region.
#include <netinet/in.h>

#include <algorithm>
#include <vector>

#include "observe/layout.h"
#include "runtime/process_graph.h"
#include "runtime/publish.h"
#include "socket/objects.h"

namespace bypass::runtime {

namespace {

using observe::SocketPath;
using observe::SocketRecord;
using observe::SocketState;

/// tcp::State and SocketState list RFC 9293's states in different orders.
SocketState state_of(tcp::State state) {
  switch (state) {
    case tcp::State::kClosed:
      return SocketState::kClosed;
    case tcp::State::kListen:
      return SocketState::kListen;
    case tcp::State::kSynSent:
      return SocketState::kSynSent;
    case tcp::State::kSynReceived:
      return SocketState::kSynReceived;
    case tcp::State::kEstablished:
      return SocketState::kEstablished;
    case tcp::State::kFinWait1:
      return SocketState::kFinWait1;
    case tcp::State::kFinWait2:
      return SocketState::kFinWait2;
    case tcp::State::kCloseWait:
      return SocketState::kCloseWait;
    case tcp::State::kClosing:
      return SocketState::kClosing;
    case tcp::State::kLastAck:
      return SocketState::kLastAck;
    case tcp::State::kTimeWait:
      return SocketState::kTimeWait;
  }
  return SocketState::kClosed;
}

std::uint32_t microseconds(Duration d) {
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

void fill_stream(SocketRecord& record, tcp::Engine& engine, const socket::Socket& s) {
  const tcp::Info info = engine.info(*s.tcb);
  const Endpoint local = engine.local(*s.tcb), remote = engine.remote(*s.tcb);
  record.state = static_cast<std::uint8_t>(state_of(info.state));
  record.path = static_cast<std::uint8_t>(SocketPath::kWire);
  record.local_address = local.address, record.local_port = local.port;
  record.remote_address = remote.address, record.remote_port = remote.port;
  record.rx_bytes = info.bytes_received, record.tx_bytes = info.bytes_acked;
  record.rx_packets = info.segments_received, record.tx_packets = info.segments_sent;
  record.rx_queue = info.readable, record.tx_queue = info.unsent + info.in_flight;
  record.retransmits = info.retransmits;
  record.srtt_us = microseconds(info.srtt), record.rttvar_us = microseconds(info.rttvar);
  record.rto_us = microseconds(info.rto);
  record.cwnd = info.cwnd, record.ssthresh = info.ssthresh, record.mss = static_cast<std::uint16_t>(info.mss);
  record.snd_wnd = info.snd_wnd, record.rcv_wnd = info.rcv_wnd;
}

SocketRecord record_of(Stack& stack, const socket::Socket& s) {
  SocketRecord record{};
  record.fd = s.number.load(std::memory_order_relaxed);
  record.port = 255;
  record.protocol = s.kind == socket::FileKind::kDatagram ? IPPROTO_UDP : IPPROTO_TCP;
  record.path =
      static_cast<std::uint8_t>(s.path == socket::Path::kUndecided ? SocketPath::kUndecided : SocketPath::kDual);
  record.state = static_cast<std::uint8_t>(SocketState::kOpen);
  if (s.path == socket::Path::kUndecided) return record;
  if (s.kind == socket::FileKind::kStream && s.tcb != nullptr) {
    fill_stream(record, stack.tcp(), s);
  } else if (s.kind == socket::FileKind::kListener && s.listener != nullptr) {
    record.state = static_cast<std::uint8_t>(SocketState::kListen);
    record.path = static_cast<std::uint8_t>(s.path == socket::Path::kDual ? SocketPath::kDual : SocketPath::kWire);
    record.rx_queue = static_cast<std::uint32_t>(stack.tcp().accept_queue_length(*s.listener));
    if (s.details != nullptr) {
      record.local_address = s.details->bound.address, record.local_port = s.details->bound.port;
      record.tx_queue = s.details->backlog;
    }
  } else if (s.kind == socket::FileKind::kDatagram && s.binding != nullptr) {
    const Endpoint local = stack.udp().local(*s.binding), remote = stack.udp().remote(*s.binding);
    record.local_address = local.address, record.local_port = local.port;
    record.remote_address = remote.address, record.remote_port = remote.port;
    record.rx_queue = static_cast<std::uint32_t>(stack.udp().queued(*s.binding));
  }
  return record;
}

}  // namespace

// The nth living socket is written to the nth slot claimed; slots that are left over are given back.
void publish_sockets(Process& p, std::vector<int>& slots) {
  if (socket::objects == nullptr) return;
  std::size_t used = 0;
  {
    socket::Guard guard(p.shard, std::try_to_lock);
    if (!guard.held()) return;  // at the next look
    socket::objects->sockets.for_each([&](socket::Socket& s) {
      if (!s.alive || s.references.of(p.shard.family().slot()) == 0) return;
      if (used == slots.size()) slots.push_back(p.region.claim_socket());
      p.region.update_socket(slots[used++], record_of(p.shard.stack(), s));
    });
  }
  for (std::size_t i = used; i < slots.size(); i++) p.region.release_socket(slots[i]);
  slots.resize(used);
}

}  // namespace bypass::runtime
