// What the responder of connected queue pairs sends (responder.cc): answers of reads and atomic operations first, then
// one acknowledgement for everything before it. InfiniBand specification, 9.7.5.
#include <algorithm>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

template <typename Header>
Header make_aeth(std::uint8_t syndrome, std::uint32_t msn) {
  Header aeth;
  aeth.syndrome_msn = std::uint32_t{syndrome} << 24 | msn;
  return aeth;
}

Resource& first_due(Responder& r) {
  std::uint32_t n = r.resource_head;
  while (r.resource(n).due == 0) n++;
  return r.resource(n);
}

void progress(Responder& r, Resource& resource) {
  if (++resource.sent < resource.ranges[0].end) return;
  if (resource.ranges[0].end == resource.packets) resource.answered = true;
  std::shift_left(resource.ranges.begin(), resource.ranges.end(), 1);
  resource.sent = resource.ranges[0].start;
  if (--resource.due == 0) r.due--;
}

Step send_atomic_answer(Engine& e, Qp& qp, Resource& resource) {
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = Op::kAtomicAcknowledge,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = resource.first,
                     .round = resource.ranges[0].round});
  writer.header(make_aeth<Aeth>(kAckUnlimited, resource.msn));
  Be64 original;
  original = resource.original;
  writer.header(original);
  if (!writer.finish()) return Step::kBlocked;
  progress(qp.resp, resource);
  return Step::kSent;
}

Op read_op(const Resource& resource) {
  const Resource::Range& range = resource.ranges[0];
  const bool first = resource.sent == range.start, last = resource.sent + 1 == range.end;
  if (first) return last ? Op::kReadOnly : Op::kReadFirst;
  return last ? Op::kReadLast : Op::kReadMiddle;
}

Step send_read_answer(Engine& e, Qp& qp, Resource& resource) {
  const std::uint32_t offset = resource.sent * qp.mtu, len = std::min(qp.mtu, resource.length - offset);
  const Psn psn = resource.first + resource.sent;
  const std::byte* from = nullptr;
  if (len != 0) {
    const Pd* const pd = pd_of(e, qp, resource);
    if (pd != nullptr)
      from = e.memory.find_remote(*pd, qp.qpn, resource.rkey, resource.address + offset, len, IBV_ACCESS_REMOTE_READ);
    if (from == nullptr) {  // the memory was deregistered meanwhile
      resource.due = 0;
      qp.resp.due--;
      qp.resp.fatal_nak = kNakAccess;
      qp.resp.fatal_psn = psn;
      return Step::kSent;
    }
  }
  const Op op = read_op(resource);
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = op,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = psn,
                     .payload = len,
                     .round = resource.ranges[0].round});
  if ((traits(op) & kOpAeth) != 0) writer.header(make_aeth<Aeth>(kAckUnlimited, resource.msn));
  writer.payload(from, len);
  if (!writer.finish()) return Step::kBlocked;
  progress(qp.resp, resource);
  return Step::kSent;
}

Step send_aeth(Engine& e, Qp& qp, std::uint8_t syndrome, Psn psn) {
  const Responder& r = qp.resp;
  const bool sequence = syndrome == kNakSequence;
  const bool tells_held = sequence && !r.held.empty();  // the peer is ours
  RoceWriter writer(e, qp.path,
                    {.service = qp.service(),
                     .op = Op::kAcknowledge,
                     .qpn = qp.attr.dest_qp_num,
                     .psn = psn,
                     .payload = tells_held ? kHoldAhead / 8 : 0,
                     .round = sequence ? r.nak_round : r.round});
  writer.header(make_aeth<Aeth>(syndrome, r.msn));
  if (tells_held) {
    const auto map = held_map(r);
    writer.payload(map.data(), map.size());
  }
  return writer.finish() ? Step::kSent : Step::kBlocked;
}

Step send_answer(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  Step step = Step::kIdle;
  if (r.answer == Answer::kAcknowledge) {
    step = send_aeth(e, qp, kAckUnlimited, r.expected + kPsnMask);  // the PSN before it
  } else if (r.answer == Answer::kNakSequence) {
    step = send_aeth(e, qp, kNakSequence, r.expected);
    if (step == Step::kSent) e.counters.tx_nak++;
    r.told = r.held.empty() ? r.expected + 1 : r.held.back();
  } else {
    step = send_aeth(e, qp, static_cast<std::uint8_t>(kRnrKind | (qp.attr.min_rnr_timer & 31)), r.expected);
    if (step == Step::kSent) e.counters.tx_rnr_nak++;
  }
  if (step == Step::kSent) r.answer = Answer::kNone;
  return step;
}

Step send_fatal(Engine& e, Qp& qp) {
  const std::uint8_t nak = qp.resp.fatal_nak;
  if (send_aeth(e, qp, nak, qp.resp.fatal_psn) != Step::kSent) return Step::kBlocked;
  e.counters.tx_nak++;
  to_error(e, qp);
  if (nak == kNakOperation) return Step::kIdle;
  const bool access = nak == kNakAccess || nak == kNakInvalidRdRequest;
  e.post_event(qp, access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
  return Step::kIdle;
}

}  // namespace

Step send_response(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  if (r.idle()) return Step::kIdle;
  if (!reachable(e, qp.path)) {
    qp.waiting_neighbour = true;
    return Step::kIdle;
  }
  if (!e.tx.has_room()) return Step::kBlocked;
  if (r.due != 0) {
    Resource& resource = first_due(r);
    return resource.atomic ? send_atomic_answer(e, qp, resource) : send_read_answer(e, qp, resource);
  }
  if (r.fatal_nak != 0 && r.answer == Answer::kNone) return send_fatal(e, qp);
  return qp.left_link.queued ? Step::kIdle : send_answer(e, qp);
}

}  // namespace bypass::rdma
