// The part of the stats region that describes the sockets.
#include <netinet/in.h>

#include <algorithm>
#include <vector>

#include "observe/layout.h"
#include "runtime/process_graph.h"
#include "runtime/progress/publish.h"
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

void fill_names(SocketRecord& record, const Endpoint& local, const Endpoint& remote) {
  record.local_address = local.address, record.local_port = local.port;
  record.remote_address = remote.address, record.remote_port = remote.port;
}

/// The path to show. A connection whose two directions take different paths shows the faster one.
SocketPath path_of(const fastpath::PeerLinks* links, const tcp::Tcb& tcb) {
  if (!fastpath::FramedTcp::has(tcb)) return SocketPath::kWire;
  if (const fastpath::PeerLink* link = links->link_of(tcb); link != nullptr)
    return link->mover == fastpath::Mover::kShm ? SocketPath::kShm : SocketPath::kRc;
  const fastpath::Framed& framed = fastpath::FramedTcp::of(tcb);
  const bool any =
      framed.sending == fastpath::Framed::Mode::kFramed || framed.receiving == fastpath::Framed::Mode::kFramed;
  return any ? SocketPath::kFramed : SocketPath::kWire;
}

/// Counts the program's bytes, whichever path they took.
void fill_framed(SocketRecord& record, const tcp::Tcb& tcb) {
  const fastpath::Framed& framed = fastpath::FramedTcp::of(tcb);
  if (framed.receiving == fastpath::Framed::Mode::kFramed) {
    record.rx_queue = static_cast<std::uint32_t>(framed.lane.parts().bytes());
    record.rx_bytes = framed.lane.consumed() + record.rx_queue;
  }
  if (framed.sending != fastpath::Framed::Mode::kFramed) return;
  record.tx_bytes = framed.lane.una();
  record.tx_queue = static_cast<std::uint32_t>(framed.lane.end() - framed.lane.una());
}

void fill_stream(SocketRecord& record, Process& p, const tcp::Tcb& tcb) {
  const tcp::Engine& engine = p.shard.stack().tcp();
  const tcp::Info info = engine.info(tcb);
  fill_names(record, engine.local(tcb), engine.remote(tcb));
  record.state = static_cast<std::uint8_t>(state_of(info.state));
  record.path = static_cast<std::uint8_t>(path_of(p.links.get(), tcb));
  record.rx_bytes = info.bytes_received, record.tx_bytes = info.bytes_acked;
  record.rx_packets = info.segments_received, record.tx_packets = info.segments_sent;
  record.rx_queue = info.readable, record.tx_queue = info.unsent + info.in_flight;
  if (fastpath::FramedTcp::has(tcb)) fill_framed(record, tcb);
  record.retransmits = info.retransmits;
  record.srtt_us = microseconds(info.srtt), record.rttvar_us = microseconds(info.rttvar);
  record.rto_us = microseconds(info.rto);
  record.cwnd = info.cwnd, record.ssthresh = info.ssthresh, record.mss = static_cast<std::uint16_t>(info.mss);
  record.snd_wnd = info.snd_wnd, record.rcv_wnd = info.rcv_wnd;
}

/// The kernel tells the bytes and the state; we tell which path the bytes take.
void fill_local(SocketRecord& record, const socket::Socket& s) {
  const socket::LocalEnd& end = *s.details->local;
  const bool paired = end.stage == socket::LocalEnd::Stage::kPaired;
  record.path = static_cast<std::uint8_t>(paired ? SocketPath::kShm : SocketPath::kKernel);
  record.state = static_cast<std::uint8_t>(SocketState::kEstablished);
  fill_names(record, s.details->bound, s.details->peer);
  record.rx_bytes = end.consumer.consumed(), record.tx_bytes = end.producer.produced();
}

SocketRecord record_of(Process& p, const socket::Socket& s) {
  Stack& stack = p.shard.stack();
  SocketRecord record{};
  record.fd = s.number.load(std::memory_order_relaxed);
  record.port = 255;
  record.protocol = s.kind == socket::FileKind::kDatagram ? IPPROTO_UDP : IPPROTO_TCP;
  record.path =
      static_cast<std::uint8_t>(s.path == socket::Path::kUndecided ? SocketPath::kUndecided : SocketPath::kDual);
  record.state = static_cast<std::uint8_t>(SocketState::kOpen);
  if (s.path == socket::Path::kUndecided) return record;
  if (s.path == socket::Path::kLocal) {
    fill_local(record, s);
    return record;
  }
  if (s.kind == socket::FileKind::kStream && s.tcb != nullptr) {
    fill_stream(record, p, *s.tcb);
  } else if (s.kind == socket::FileKind::kListener && s.listener != nullptr) {
    record.state = static_cast<std::uint8_t>(SocketState::kListen);
    record.path = static_cast<std::uint8_t>(s.path == socket::Path::kDual ? SocketPath::kDual : SocketPath::kWire);
    record.rx_queue = static_cast<std::uint32_t>(stack.tcp().accept_queue_length(*s.listener));
    if (s.details != nullptr) {
      record.local_address = s.details->bound.address, record.local_port = s.details->bound.port;
      record.tx_queue = s.details->backlog;
    }
  } else if (s.kind == socket::FileKind::kDatagram && s.binding != nullptr) {
    fill_names(record, stack.udp().local(*s.binding), stack.udp().remote(*s.binding));
    record.rx_queue = static_cast<std::uint32_t>(stack.udp().queued_bytes(*s.binding));
  }
  return record;
}

SocketRecord record_of(Process& p, const tcp::Engine::Unowned& connection) {
  SocketRecord record{};
  record.fd = -1;
  record.port = 255;
  record.protocol = IPPROTO_TCP;
  record.of_stack = 1;
  if (connection.tcb != nullptr) {
    fill_stream(record, p, *connection.tcb);
    return record;
  }
  record.state = static_cast<std::uint8_t>(state_of(connection.state));
  record.path = static_cast<std::uint8_t>(SocketPath::kWire);
  fill_names(record, connection.local, connection.remote);
  return record;
}

/// Writes the nth record to the nth slot claimed.
class Writer {
 public:
  Writer(observe::Region& region, std::vector<int>& slots) : region_(region), slots_(slots) {}

  void write(const SocketRecord& record) {
    if (used_ == slots_.size()) slots_.push_back(region_.claim_socket());
    region_.update_socket(slots_[used_++], record);
  }
  /// Gives back the slots that are left over.
  void finish() {
    for (std::size_t i = used_; i < slots_.size(); i++) region_.release_socket(slots_[i]);
    slots_.resize(used_);
  }

 private:
  observe::Region& region_;
  std::vector<int>& slots_;
  std::size_t used_ = 0;
};

// A busy client leaves tens of thousands in TIME-WAIT, and they are written with the lock held.
constexpr std::size_t kMostTimeWaits = 2048;

void write_unowned(Process& p, Writer& writer) {
  struct Target {
    Process& process;
    Writer& writer;
  } target{p, writer};
  const auto write = [](void* argument, const tcp::Engine::Unowned& connection) {
    const Target& to = *static_cast<Target*>(argument);
    to.writer.write(record_of(to.process, connection));
  };
  p.shard.stack().tcp().for_each_unowned(kMostTimeWaits, write, &target);
}

}  // namespace

// A connection that the stack holds without a socket is the family's. The process that has the ports shows it.
bool publish_sockets(Process& p, std::vector<int>& slots) {
  if (socket::objects == nullptr) return true;
  Writer writer(p.region, slots);
  {
    socket::Guard guard(p.shard, std::try_to_lock);
    if (!guard.held()) return false;
    socket::objects->sockets.for_each([&](const socket::Socket& s) {
      if (s.alive && s.references.of(p.shard.family().slot()) != 0) writer.write(record_of(p, s));
    });
    if (!p.ports.following()) write_unowned(p, writer);
  }
  writer.finish();
  return true;
}

}  // namespace bypass::runtime
