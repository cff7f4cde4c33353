// The unreliable services: datagrams (UD), and messages of a connection without acknowledgements (UC; InfiniBand
// specification, 9.8.2 and 9.8.3). Wrong packets are dropped without an answer. A receive request that was taken for
// one serves the next message.
#include <cstring>

#include "softverbs/engine/engine.h"
#include "stack/copy.h"

namespace bypass::rdma {
namespace {

bool receives(const Qp& qp) {
  return qp.state() == IBV_QPS_RTR || qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD;
}

// --- Datagrams

bool scatter_bytes(Engine& e, Qp& qp, std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::byte* from = bytes.data();
  return for_each_piece(e.memory, *qp.pd, {qp.resp.sges.data(), qp.resp.sge_count}, IBV_ACCESS_LOCAL_WRITE, offset,
                        bytes.size(), [&](std::byte* at, std::size_t n) {
                          copy_bytes(at, from, n);
                          from += n;
                        });
}

// The 40 bytes before a datagram: the IPv6 header, or an IPv4 header in the last 20 bytes (annex A17).
std::array<std::byte, kGrhBytes> grh_of(const RocePacket& packet) {
  std::array<std::byte, kGrhBytes> grh{};
  const std::size_t len = packet.source.is_v4() ? sizeof(wire::Ipv4) : sizeof(Ipv6);
  std::memcpy(grh.data() + grh.size() - len, packet.frame->data + packet.ip, len);
  return grh;
}

void end_datagram(Engine& e, Qp& qp, ibv_wc_status status) {
  const std::uint32_t n = qp.sq.head;
  qp.sq.head = qp.sq.cursor = qp.sq.begun = n + 1;
  release_path(e, qp.sq.path(n));
  complete_send(e, qp, qp.sq.at(n), status);
  if (status != IBV_WC_SUCCESS) to_error(e, qp);
}

bool given_up(Engine& e, const Path& path) {
  if (path.local || path.known_mac) return false;
  const NeighbourEntry& entry = e.neighbours[path.neighbour];
  return entry.state == NeighbourEntry::State::kFailed && entry.due > e.now;
}

Step send_one(Engine& e, Qp& qp, const SendWqe& w, const Path& path) {
  const bool imm = w.opcode == IBV_WR_SEND_WITH_IMM;
  RoceWriter writer(e, path,
                    {.service = kServiceUd,
                     .op = imm ? Op::kSendOnlyImm : Op::kSendOnly,
                     .qpn = w.remote_qpn,
                     .psn = qp.req.psn,
                     .payload = w.length,
                     .solicited = (w.flags & IBV_SEND_SOLICITED) != 0});
  Deth deth;
  // Keys in the upper half are privileged: such a key means the queue pair's own (10.2.5).
  deth.qkey = (w.remote_qkey & 0x80000000) != 0 ? qp.attr.qkey : w.remote_qkey;
  deth.source_qpn = qp.qpn;
  writer.header(deth);
  if (imm) writer.header(w.imm);
  if (!append_message(e, qp, qp.sq.head, 0, w.length, writer)) {
    end_datagram(e, qp, IBV_WC_LOC_PROT_ERR);
    return Step::kSent;
  }
  if (!writer.finish()) return Step::kBlocked;
  qp.req.psn = qp.req.psn + 1;
  end_datagram(e, qp, IBV_WC_SUCCESS);
  return Step::kSent;
}

// --- UC

void drop_message(Qp& qp) {
  qp.resp.message = Message::kNone;
}

void on_uc_send(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  if ((packet.traits & kOpFirst) != 0) {
    if (!take_receive(e, qp)) {
      e.counters.rx_no_receive++;
      return;
    }
    r.message = Message::kSend;
    r.received = 0;
  }
  const bool fits = packet.payload_len <= r.capacity - r.received;
  if (!fits || !scatter(e, *qp.pd, {r.sges.data(), r.sge_count}, r.received, packet)) {
    complete_receive(e, qp, fits ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR, nullptr, IBV_WC_RECV, 0);
    to_error(e, qp);
    return;
  }
  r.received += packet.payload_len;
  if ((packet.traits & kOpLast) == 0) return;
  r.message = Message::kNone;
  complete_receive(e, qp, IBV_WC_SUCCESS, &packet, IBV_WC_RECV, r.received);
}

bool begin_uc_write(const Qp& qp, const RocePacket& packet, Responder& r) {
  if ((qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) return false;
  const auto& reth = packet.at<Reth>(packet.extension);
  r.message = Message::kWrite;
  r.rkey = reth.rkey;
  r.write_at = reth.address;
  r.write_left = reth.length;
  r.received = 0;
  return true;
}

void on_uc_write(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  const bool last = (packet.traits & kOpLast) != 0;
  if ((packet.traits & kOpFirst) != 0 && !begin_uc_write(qp, packet, r)) return drop_message(qp);
  if (last ? packet.payload_len != r.write_left : packet.payload_len >= r.write_left) return drop_message(qp);
  if (packet.payload_len != 0) {
    std::byte* to =
        e.memory.find_remote(*qp.pd, qp.qpn, r.rkey, r.write_at, packet.payload_len, IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) return drop_message(qp);
    FrameReader(*packet.frame, packet.payload).copy(to, packet.payload_len);
  }
  r.write_at += packet.payload_len;
  r.write_left -= packet.payload_len;
  r.received += packet.payload_len;
  if (!last) return;
  r.message = Message::kNone;
  if ((packet.traits & kOpImm) == 0) return;
  if (!take_receive(e, qp)) {
    e.counters.rx_no_receive++;
    return;
  }
  complete_receive(e, qp, IBV_WC_SUCCESS, &packet, IBV_WC_RECV_RDMA_WITH_IMM, r.received);
}

bool well_formed(const Qp& qp, const RocePacket& packet) {
  const bool first = (packet.traits & kOpFirst) != 0, last = (packet.traits & kOpLast) != 0;
  const Message kind = (packet.traits & kOpSend) != 0 ? Message::kSend : Message::kWrite;
  if ((packet.traits & (kOpSend | kOpWrite)) == 0) return false;
  if (!first && qp.resp.message != kind) return false;
  return last ? packet.payload_len <= qp.mtu : packet.payload_len == qp.mtu;
}

}  // namespace

void on_datagram(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  if (!receives(qp) || (packet.traits & kOpSend) == 0) {
    e.counters.rx_wrong_state++;
    return;
  }
  if (packet.at<Deth>(packet.extension).qkey != qp.attr.qkey) {
    e.counters.rx_bad_qkey++;
    return;
  }
  if (!take_receive(e, qp) || r.capacity < kGrhBytes + packet.payload_len) {
    e.counters.rx_no_receive++;
    return;
  }
  const bool written =
      scatter_bytes(e, qp, 0, grh_of(packet)) && scatter(e, *qp.pd, {r.sges.data(), r.sge_count}, kGrhBytes, packet);
  const auto bytes = static_cast<std::uint32_t>(kGrhBytes + packet.payload_len);
  complete_receive(e, qp, written ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR, &packet, IBV_WC_RECV, bytes);
  if (!written) to_error(e, qp);
}

void on_unconnected(Engine& e, Qp& qp, const RocePacket& packet) {
  if (!receives(qp)) {
    e.counters.rx_wrong_state++;
    return;
  }
  note_established(e, qp);
  if (packet.psn != qp.resp.expected) {  // something is lost, and with it the message that it was part of
    e.counters.out_of_sequence++;
    drop_message(qp);
  }
  qp.resp.expected = packet.psn + 1;
  if (!well_formed(qp, packet)) return drop_message(qp);
  if ((packet.traits & kOpSend) != 0) return on_uc_send(e, qp, packet);
  on_uc_write(e, qp, packet);
}

Step send_datagram(Engine& e, Qp& qp) {
  SendQueue& sq = qp.sq;
  if (qp.state() != IBV_QPS_RTS || sq.head == sq.tail) return Step::kIdle;
  const SendWqe& w = sq.at(sq.head);
  const Path& path = sq.path(sq.head);
  const std::uint32_t most = 128U << e.active_mtu;
  if (w.status != IBV_WC_SUCCESS || w.length > most) {
    end_datagram(e, qp, w.status != IBV_WC_SUCCESS ? w.status : IBV_WC_LOC_LEN_ERR);
    return Step::kSent;
  }
  if (given_up(e, path)) {
    e.counters.no_neighbour++;
    end_datagram(e, qp, IBV_WC_SUCCESS);  // sent, as far as can be known
    return Step::kSent;
  }
  qp.waiting_neighbour = !reachable(e, path);
  if (qp.waiting_neighbour) return Step::kIdle;
  if (!e.tx.has_room()) return Step::kBlocked;
  return send_one(e, qp, w, path);
}

}  // namespace bypass::rdma
