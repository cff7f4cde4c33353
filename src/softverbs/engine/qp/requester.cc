// The requester of connected queue pairs: requests become packets (InfiniBand specification, 9.7.2). The answers are
// dealt with in requester_answers.cc.
#include "softverbs/engine/qp/requester.h"

namespace bypass::rdma {
namespace {

void begin(Engine& e, Qp& qp, SendWqe& w) {
  if (w.is_local()) {
    w.first = qp.req.psn;
    qp.sq.begun++;
    return;
  }
  const bool one = w.is_atomic() || w.length == 0;
  w.packets = one ? 1 : (w.length + qp.mtu - 1) / qp.mtu;
  w.first = qp.req.psn;
  qp.req.psn = qp.req.psn + w.packets;
  qp.sq.begun++;
  if (w.wants_data()) qp.req.reads++;
  const unsigned access = w.wants_data() ? IBV_ACCESS_LOCAL_WRITE : 0;
  if ((w.flags & IBV_SEND_INLINE) == 0 && !e.memory.covers(*qp.pd, {qp.sq.sges(qp.sq.begun - 1), w.sges}, access))
    w.status = IBV_WC_LOC_PROT_ERR;
  if (w.wants_data() && qp.is_reliable() && qp.req.read_ends.empty()) w.status = IBV_WC_LOC_QP_OP_ERR;
}

// Executes the request at the cursor, whose turn has come. It completes when everything before it is complete.
Step execute(Engine& e, Qp& qp, SendWqe& w) {
  if (!w.executed) {
    w.status = w.opcode == IBV_WR_BIND_MW  ? bind_window(e, qp, w)
               : invalidate(e, qp, w.rkey) ? IBV_WC_SUCCESS
                                           : IBV_WC_LOC_QP_OP_ERR;
    if (w.status != IBV_WC_SUCCESS) {
      if (qp.sq.head == qp.sq.cursor) fail_head(e, qp, w.status);
      return Step::kIdle;
    }
    w.executed = true;
  }
  qp.sq.cursor++;
  complete_local(e, qp);
  finish_drain(e, qp);
  return Step::kSent;
}

Op choose(const SendWqe& w, bool first, bool last) {
  const bool send = w.opcode == IBV_WR_SEND || w.opcode == IBV_WR_SEND_WITH_IMM || w.opcode == IBV_WR_SEND_WITH_INV;
  if (w.opcode == IBV_WR_SEND_WITH_INV && last) return first ? Op::kSendOnlyInv : Op::kSendLastInv;
  const bool imm = w.opcode == IBV_WR_SEND_WITH_IMM || w.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (first && last) {
    if (send) return imm ? Op::kSendOnlyImm : Op::kSendOnly;
    return imm ? Op::kWriteOnlyImm : Op::kWriteOnly;
  }
  if (first) return send ? Op::kSendFirst : Op::kWriteFirst;
  if (!last) return send ? Op::kSendMiddle : Op::kWriteMiddle;
  if (send) return imm ? Op::kSendLastImm : Op::kSendLast;
  return imm ? Op::kWriteLastImm : Op::kWriteLast;
}

std::uint32_t outstanding(const Qp& qp) {
  return static_cast<std::uint32_t>(qp.req.nxt - qp.req.una);
}

// An acknowledgement is requested at a message's end, and often enough before that the window never runs empty.
bool asks_for_ack(const Engine& e, const Qp& qp, bool last) {
  if (!qp.is_reliable()) return false;
  const std::uint32_t window = e.config.window;
  return last || (qp.req.nxt.v % std::max(window / 4, 1U)) == 0 || outstanding(qp) + 1 >= window;
}

// Each request of XRC names the receive queue of its message.
void write_xrc(const Qp& qp, const SendWqe& w, RoceWriter& writer) {
  if (!qp.is_xrc()) return;
  Xrceth xrc;
  xrc.srqn = w.remote_srqn;
  writer.header(xrc);
}

Reth make_reth(std::uint64_t address, std::uint32_t rkey, std::uint32_t length) {
  Reth reth;
  reth.address = address;
  reth.rkey = rkey;
  reth.length = length;
  return reth;
}

void advance(Engine& e, Qp& qp, const SendWqe& w, std::uint32_t packets) {
  Requester& req = qp.req;
  if (before(req.nxt, req.max)) e.counters.retransmitted++;
  req.nxt = req.nxt + packets;
  if (before(req.max, req.nxt)) req.max = req.nxt;
  if (before(w.last(), req.nxt)) qp.sq.cursor++;
}

Step send_message_packet(Engine& e, Qp& qp, SendWqe& w) {
  const auto index = static_cast<std::uint32_t>(qp.req.nxt - w.first);
  const bool first = index == 0, last = index + 1 == w.packets;
  const Op op = choose(w, first, last);
  const std::uint32_t offset = index * qp.mtu, len = std::min(qp.mtu, w.length - offset);
  const bool told = (traits(op) & (kOpSend | kOpImm)) != 0;
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = op,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = qp.req.nxt,
                     .payload = len,
                     .solicited = last && told && (w.flags & IBV_SEND_SOLICITED) != 0,
                     .ack_request = asks_for_ack(e, qp, last),
                     .round = qp.req.round});
  write_xrc(qp, w, writer);
  if ((traits(op) & kOpReth) != 0) writer.header(make_reth(w.remote_addr, w.rkey, w.length));
  if ((traits(op) & kOpImm) != 0) writer.header(w.imm);
  if ((traits(op) & kOpInv) != 0) {
    wire::Be32 key;
    key = w.rkey;
    writer.header(key);
  }
  if (!append_message(e, qp, qp.sq.cursor, offset, len, writer)) {
    w.status = IBV_WC_LOC_PROT_ERR;  // the memory was deregistered since the message began
    return Step::kSent;
  }
  if (!writer.finish()) return Step::kBlocked;
  advance(e, qp, w, 1);
  return Step::kSent;
}

// Whether the request that ends or begins with this packet is among the unanswered ones.
bool is_noted(const Requester& req, Psn psn) {
  return req.read_head != req.read_tail && !before(req.read_ends[(req.read_tail - 1) % req.read_ends.size()], psn);
}

void note_read(Qp& qp, Psn last) {
  Requester& req = qp.req;
  if (!is_noted(req, last)) req.read_ends[req.read_tail++ % req.read_ends.size()] = last;
}

// A long read is requested in parts, each at most half a window: its answer must not overrun the wire's rings. A
// repetition uses the same parts, because the peer remembers them one by one.
Step send_read(Engine& e, Qp& qp, const SendWqe& w) {
  const auto index = static_cast<std::uint32_t>(qp.req.nxt - w.first);
  const std::uint32_t part = missing_answers(qp, read_part(e, w, index));
  if (outstanding(qp) + part > e.config.window) return Step::kIdle;
  const std::uint32_t offset = index * qp.mtu;
  const auto len = static_cast<std::uint32_t>(std::min<std::uint64_t>(std::uint64_t{part} * qp.mtu, w.length - offset));
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = Op::kReadRequest,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = qp.req.nxt,
                     .ack_request = true,
                     .round = qp.req.round});
  write_xrc(qp, w, writer);
  writer.header(make_reth(w.remote_addr + offset, w.rkey, len));
  if (!writer.finish()) return Step::kBlocked;
  note_read(qp, qp.req.nxt + (part - 1));
  advance(e, qp, w, part);
  return Step::kSent;
}

Step send_atomic(Engine& e, Qp& qp, const SendWqe& w) {
  const bool swap = w.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = swap ? Op::kCompareSwap : Op::kFetchAdd,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = qp.req.nxt,
                     .ack_request = true,
                     .round = qp.req.round});
  write_xrc(qp, w, writer);
  AtomicEth atomic;
  atomic.address = w.remote_addr;
  atomic.rkey = w.rkey;
  atomic.swap_add = swap ? w.swap : w.compare_add;
  atomic.compare = swap ? w.compare_add : 0;
  writer.header(atomic);
  if (!writer.finish()) return Step::kBlocked;
  note_read(qp, qp.req.nxt);
  advance(e, qp, w, 1);
  return Step::kSent;
}

// Whether the next request may begin: no fence holds it back, and the queue is not being drained.
bool may_begin(const Qp& qp, const SendWqe& w) {
  if (qp.state() == IBV_QPS_SQD) return false;
  // The fence of a local operation is for everything before it (o10-37.2.27).
  if (w.is_local()) return (w.flags & IBV_SEND_FENCE) == 0 || qp.sq.head == qp.sq.begun;
  return (w.flags & IBV_SEND_FENCE) == 0 || qp.req.reads == 0;
}

bool window_open(const Engine& e, const Qp& qp, const SendWqe& w) {
  if (!qp.is_reliable()) return true;
  if (outstanding(qp) >= e.config.window) return false;
  if (!w.wants_data() || is_noted(qp.req, qp.req.nxt)) return true;
  return qp.req.read_tail - qp.req.read_head < qp.attr.max_rd_atomic;
}

Step send_packet(Engine& e, Qp& qp, SendWqe& w) {
  if (w.is_read()) return send_read(e, qp, w);
  if (w.is_atomic()) return send_atomic(e, qp, w);
  return send_message_packet(e, qp, w);
}

// An unreliable message is complete when its last packet was sent.
void complete_sent(Engine& e, Qp& qp) {
  while (qp.sq.head != qp.sq.cursor) complete_head(e, qp);
  qp.req.una = qp.req.nxt;
}

}  // namespace

std::uint32_t read_part(const Engine& e, const SendWqe& w, std::uint32_t index) {
  const std::uint32_t most = std::max(e.config.window / 2, 1U);
  return std::min(w.packets - index, most - index % most);
}

Step send_request(Engine& e, Qp& qp) {
  const bool live = qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD;
  SendQueue& sq = qp.sq;
  if (live && qp.peer_is_ours && before(qp.req.nxt, qp.req.max)) skip_settled(e, qp);
  if (!live || qp.req.rnr_wait || sq.cursor == sq.tail) return Step::kIdle;
  SendWqe& w = sq.at(sq.cursor);
  if (sq.cursor == sq.begun) {
    if (!may_begin(qp, w)) return Step::kIdle;
    begin(e, qp, w);
  }
  if (w.status != IBV_WC_SUCCESS) {  // reported when everything before it is complete
    if (sq.head == sq.cursor) fail_head(e, qp, w.status);
    return Step::kIdle;
  }
  if (w.is_local()) return execute(e, qp, w);
  if (!window_open(e, qp, w)) return Step::kIdle;
  qp.waiting_neighbour = !reachable(e, qp.path);
  if (qp.waiting_neighbour) {
    if (qp.deadline == kNever) restart_ack_timer(e, qp);
    return Step::kIdle;
  }
  if (!e.tx.has_room()) return Step::kBlocked;
  const Step step = send_packet(e, qp, w);
  if (qp.type == IBV_QPT_UC) complete_sent(e, qp);
  if (qp.deadline == kNever) restart_ack_timer(e, qp);
  return step;
}

}  // namespace bypass::rdma
