// The requester of connected queue pairs: turns requests into packets, and answers into completions (InfiniBand
// specification, 9.7.2 to 9.7.7). Lost packets are sent again from the oldest unanswered packet on (go-back-N), or
// singly if the peer is ours (repair.cc).

#include "softverbs/engine/engine.h"
#include "stack/copy.h"

namespace bypass::rdma {
namespace {

// RNR NAK timer codes (table 45), in units of 10 us.
constexpr std::array<std::uint32_t, 32> kRnrTimer = {
    65'536, 1,   2,   3,   4,     6,     8,     12,    16,    24,    32,    48,     64,     96,     128,    192,
    256,    384, 512, 768, 1'024, 1'536, 2'048, 3'072, 4'096, 6'144, 8'192, 12'288, 16'384, 24'576, 32'768, 49'152};

Duration ack_timeout(const Qp& qp) {
  return Duration{std::int64_t{4'096} << qp.attr.timeout};  // 4.096 us * 2^timeout (9.7.6.1.3)
}

void restart_ack_timer(Engine& e, Qp& qp) {
  if (qp.req.rnr_wait || !qp.is_reliable()) return;
  const bool waits = qp.req.una != qp.req.max || qp.waiting_neighbour;
  set_deadline(e, qp, waits && qp.attr.timeout != 0 ? e.now + ack_timeout(qp) : kNever);
}

void finish_drain(Engine& e, Qp& qp) {
  if (!qp.draining || qp.sq.head != qp.sq.begun) return;
  qp.draining = false;
  if (qp.attr.en_sqd_async_notify != 0) e.post_event(qp, IBV_EVENT_SQ_DRAINED);
}

// Local operations that are behind completed requests only are complete, too.
void complete_local(Engine& e, Qp& qp) {
  SendQueue& sq = qp.sq;
  while (sq.head != sq.begun && sq.at(sq.head).executed) {
    if (sq.cursor == sq.head) sq.cursor++;
    complete_send(e, qp, sq.at(sq.head++), IBV_WC_SUCCESS);
  }
}

void complete_head(Engine& e, Qp& qp) {
  const SendWqe& w = qp.sq.at(qp.sq.head++);
  if (w.wants_data()) qp.req.reads--;
  complete_send(e, qp, w, IBV_WC_SUCCESS);
  complete_local(e, qp);
  finish_drain(e, qp);
}

// Completes the oldest request with an error, which ends the queue pair.
void fail(Engine& e, Qp& qp, ibv_wc_status status) {
  const SendWqe& w = qp.sq.at(qp.sq.head++);
  complete_send(e, qp, w, status);
  to_error(e, qp);
}

void go_back(Engine& e, Qp& qp) {
  Requester& req = qp.req;
  if (qp.peer_is_ours) return resend(e, qp, req.max);
  req.nxt = req.una;
  req.read_head = req.read_tail;
  qp.sq.cursor = qp.sq.head;
  req.went_back = true;
  wake(e, qp);
}

// Something is known to be lost. A second report of the same loss changes nothing: the repetition is under way, and if
// that is lost, too, the timer will report it.
void on_loss(Engine& e, Qp& qp) {
  if (!qp.req.went_back) go_back(e, qp);
}

void set_una(Engine& e, Qp& qp, Psn una) {
  Requester& req = qp.req;
  if (!before(req.una, una)) return;
  req.there.remove(req.una, una);
  req.here.remove(req.una, una);
  req.una = una;
  if (before(req.arrived, una)) req.arrived = una;
  if (before(req.repair_end, una)) req.repair_end = una;
  while (req.read_head != req.read_tail && before(req.read_ends[req.read_head % req.read_ends.size()], una))
    req.read_head++;
  if (before(req.nxt, una)) {  // what was to be sent again has arrived after all
    req.nxt = una;
    qp.sq.cursor = qp.sq.head;
  }
  req.went_back = false;
  req.retries = qp.attr.retry_cnt;
  req.rnr_retries = qp.attr.rnr_retry;
  restart_ack_timer(e, qp);
  wake(e, qp);
}

// Everything before `to` has arrived at the peer. A request that wants data stops the acknowledgement: its answer is on
// the way, ahead of the packet that reported this, or it is lost. False: there is such a request.
bool acknowledge(Engine& e, Qp& qp, Psn to) {
  while (qp.sq.head != qp.sq.begun) {
    const SendWqe& w = qp.sq.at(qp.sq.head);
    if (w.wants_data()) {
      if (!before(w.first, to)) break;
      set_una(e, qp, w.first);
      return false;
    }
    if (w.is_local() || !before(w.last(), to)) break;  // a local one that is not complete has failed
    const Psn end = w.last() + 1;
    complete_head(e, qp);
    set_una(e, qp, end);
  }
  set_una(e, qp, to);
  return true;
}

// --- Answers

// `end` says that everything before it was executed, but an answer has not come.
void on_missing_answer(Engine& e, Qp& qp, const RocePacket& packet, Psn end) {
  if (!qp.peer_is_ours || !packet.ours) return on_loss(e, qp);
  note_arrived(qp.req, end);
  repair(e, qp, end, packet.round);
}

void on_rnr(Engine& e, Qp& qp, const RocePacket& packet, std::uint8_t code) {
  Requester& req = qp.req;
  const Psn psn = packet.psn;
  e.counters.rx_rnr_nak++;
  acknowledge(e, qp, psn);
  if (req.rnr_wait) return;
  if (req.una != psn) return on_missing_answer(e, qp, packet, psn);
  req.there.clear();             // the peer may have dropped this one
  if (qp.attr.rnr_retry != 7) {  // 7: without limit
    if (req.rnr_retries == 0) return fail(e, qp, IBV_WC_RNR_RETRY_EXC_ERR);
    req.rnr_retries--;
  }
  go_back(e, qp);
  req.rnr_wait = true;
  set_deadline(e, qp, e.now + Duration{std::int64_t{kRnrTimer[code & 31]} * 10'000});
}

ibv_wc_status nak_status(std::uint8_t syndrome) {
  switch (syndrome) {
    case kNakInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case kNakAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case kNakOperation:
      return IBV_WC_REM_OP_ERR;
    case kNakInvalidRdRequest:
      return IBV_WC_REM_INV_RD_REQ_ERR;
    default:
      return IBV_WC_BAD_RESP_ERR;
  }
}

void on_sequence_nak(Engine& e, Qp& qp, const RocePacket& packet) {
  if (!qp.peer_is_ours || !packet.ours) return on_loss(e, qp);
  Psn end = packet.psn + 1;
  note_arrived(qp.req, packet.psn);
  note_there(qp.req, packet.psn, packet, end);
  repair(e, qp, end, packet.round);
}

void on_nak(Engine& e, Qp& qp, const RocePacket& packet, std::uint8_t syndrome) {
  e.counters.rx_nak++;
  acknowledge(e, qp, packet.psn);
  if (syndrome == kNakSequence) return on_sequence_nak(e, qp, packet);
  if (qp.req.una != packet.psn) return on_missing_answer(e, qp, packet, packet.psn);
  fail(e, qp, nak_status(syndrome));
}

void on_acknowledge(Engine& e, Qp& qp, const RocePacket& packet) {
  const auto syndrome = static_cast<std::uint8_t>(packet.at<Aeth>(packet.extension).syndrome_msn >> 24);
  switch (syndrome & kAckKindMask) {
    case kAckKind:
      if (!acknowledge(e, qp, packet.psn + 1)) on_missing_answer(e, qp, packet, packet.psn + 1);
      return;
    case kRnrKind:
      return on_rnr(e, qp, packet, syndrome);
    case kNakKind:
      return on_nak(e, qp, packet, syndrome);
    default:
      return;  // reserved
  }
}

// The bytes of the request that a read response with this PSN carries.
std::uint32_t read_bytes(const Qp& qp, const SendWqe& w, std::uint32_t index) {
  return std::min(qp.mtu, w.length - index * qp.mtu);
}

void on_read_response(Engine& e, Qp& qp, SendWqe& w, const RocePacket& packet) {
  const auto index = static_cast<std::uint32_t>(packet.psn - w.first);
  if (packet.payload_len != read_bytes(qp, w, index)) return fail(e, qp, IBV_WC_BAD_RESP_ERR);
  if (!scatter(e, *qp.pd, {qp.sq.sges(qp.sq.head), w.sges}, std::uint64_t{index} * qp.mtu, packet))
    return fail(e, qp, IBV_WC_LOC_PROT_ERR);
  if (packet.psn == w.last()) complete_head(e, qp);
  set_una(e, qp, packet.psn + 1);
}

void on_atomic_response(Engine& e, Qp& qp, SendWqe& w, const RocePacket& packet) {
  const std::uint64_t original = packet.at<Be64>(packet.extension + sizeof(Aeth));
  const bool written =
      for_each_piece(e.memory, *qp.pd, {qp.sq.sges(qp.sq.head), w.sges}, IBV_ACCESS_LOCAL_WRITE, 0, sizeof original,
                     [&, from = reinterpret_cast<const std::byte*>(&original)](std::byte* at, std::size_t n) mutable {
                       copy_bytes(at, from, n);
                       from += n;
                     });
  if (!written) return fail(e, qp, IBV_WC_LOC_PROT_ERR);
  complete_head(e, qp);
  set_una(e, qp, packet.psn + 1);
}

void on_data(Engine& e, Qp& qp, const RocePacket& packet) {
  acknowledge(e, qp, packet.psn);
  if (qp.state() == IBV_QPS_ERR || qp.sq.head == qp.sq.begun) return;
  SendWqe& w = qp.sq.at(qp.sq.head);
  const bool fits = packet.op == Op::kAtomicAcknowledge ? w.is_atomic() : w.is_read();
  if (packet.psn != qp.req.una) {  // an earlier answer is missing
    if (qp.peer_is_ours && hold(e, qp.req.answers, packet, qp.req.una)) qp.req.here.add(packet.psn);
    return on_missing_answer(e, qp, packet, packet.psn);
  }
  if (!fits) return fail(e, qp, IBV_WC_BAD_RESP_ERR);
  if (w.is_atomic()) return on_atomic_response(e, qp, w, packet);
  on_read_response(e, qp, w, packet);
}

// Handles packets that came before their turn, once the turn is there.
void take_answers(Engine& e, Qp& qp) {
  Requester& req = qp.req;
  while (qp.state() != IBV_QPS_ERR) {
    acknowledge(e, qp, req.arrived);
    if (req.answers.empty()) return;
    if (before(req.una, req.answers.front())) {  // the next gap, unless it was requested already
      if (!before(req.una, req.repair_end) && !req.rnr_wait) resend(e, qp, req.answers.back());
      return;
    }
    Packet* const frame = take_held(e, req.answers);
    RocePacket packet;
    if (Psn{frame->seq} == req.una && read_packet(*frame, packet)) on_data(e, qp, packet);
    e.tx.free(frame);
  }
}

// --- Sending

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
      if (qp.sq.head == qp.sq.cursor) fail(e, qp, w.status);
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

void on_response(Engine& e, Qp& qp, const RocePacket& packet) {
  const bool live = qp.is_reliable() && (qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD);
  if (!live) {
    e.counters.rx_wrong_state++;
    return;
  }
  if (before(packet.psn, qp.req.una) || !before(packet.psn, qp.req.max)) {
    e.counters.rx_late_response++;
    return;
  }
  if (packet.op == Op::kAcknowledge)
    on_acknowledge(e, qp, packet);
  else
    on_data(e, qp, packet);
  if (qp.peer_is_ours) take_answers(e, qp);
}

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
    if (sq.head == sq.cursor) fail(e, qp, w.status);
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

void on_deadline(Engine& e, Qp& qp) {
  Requester& req = qp.req;
  qp.deadline = kNever;
  if (req.rnr_wait) {
    req.rnr_wait = false;
    wake(e, qp);
    restart_ack_timer(e, qp);
    return;
  }
  const bool waits = req.una != req.max || qp.waiting_neighbour;
  if (!waits || qp.sq.head == qp.sq.begun) return;
  e.counters.timeouts++;
  if (req.retries == 0) return fail(e, qp, IBV_WC_RETRY_EXC_ERR);
  // Nothing was received for twice as long: the peer may have lost what it said it holds.
  if (req.retries != qp.attr.retry_cnt) req.there.clear();
  req.retries--;
  go_back(e, qp);
  restart_ack_timer(e, qp);
}

}  // namespace bypass::rdma
