// The requester of connected queue pairs: a peer's answers become completions (InfiniBand specification, 9.7.3
// to 9.7.7). Lost packets are sent again from the oldest unanswered packet on (go-back-N), or singly if the peer is
// ours (repair.cc).
#include "softverbs/engine/qp/requester.h"
#include "stack/copy.h"

namespace bypass::rdma {
namespace {

// RNR NAK timer codes (table 45), in units of 10 us.
constexpr std::array<std::uint32_t, 32> kRnrTimer = {
    65'536, 1,   2,   3,   4,     6,     8,     12,    16,    24,    32,    48,     64,     96,     128,    192,
    256,    384, 512, 768, 1'024, 1'536, 2'048, 3'072, 4'096, 6'144, 8'192, 12'288, 16'384, 24'576, 32'768, 49'152};

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
    if (req.rnr_retries == 0) return fail_head(e, qp, IBV_WC_RNR_RETRY_EXC_ERR);
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
  fail_head(e, qp, nak_status(syndrome));
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
  if (packet.payload_len != read_bytes(qp, w, index)) return fail_head(e, qp, IBV_WC_BAD_RESP_ERR);
  if (!scatter(e, *qp.pd, {qp.sq.sges(qp.sq.head), w.sges}, std::uint64_t{index} * qp.mtu, packet))
    return fail_head(e, qp, IBV_WC_LOC_PROT_ERR);
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
  if (!written) return fail_head(e, qp, IBV_WC_LOC_PROT_ERR);
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
  if (!fits) return fail_head(e, qp, IBV_WC_BAD_RESP_ERR);
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

}  // namespace bypass::rdma
