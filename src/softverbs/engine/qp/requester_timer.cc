// The requester's end of requests and its time-outs: completions in order, the drained queue, and what is sent again
// when no answer comes (InfiniBand specification, 9.7.6).
#include "softverbs/engine/qp/requester.h"

namespace bypass::rdma {
namespace {

Duration ack_timeout(const Qp& qp) {
  return Duration{std::int64_t{4'096} << qp.attr.timeout};  // 4.096 us * 2^timeout (9.7.6.1.3)
}

}  // namespace

void finish_drain(Engine& e, Qp& qp) {
  if (!qp.draining || qp.sq.head != qp.sq.begun) return;
  qp.draining = false;
  if (qp.attr.en_sqd_async_notify != 0) e.post_event(qp, IBV_EVENT_SQ_DRAINED);
}

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

void fail_head(Engine& e, Qp& qp, ibv_wc_status status) {
  const SendWqe& w = qp.sq.at(qp.sq.head++);
  complete_send(e, qp, w, status);
  to_error(e, qp);
}

void restart_ack_timer(Engine& e, Qp& qp) {
  if (qp.req.rnr_wait || !qp.is_reliable()) return;
  const bool waits = qp.req.una != qp.req.max || qp.waiting_neighbour;
  set_deadline(e, qp, waits && qp.attr.timeout != 0 ? e.now + ack_timeout(qp) : kNever);
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
  if (req.retries == 0) return fail_head(e, qp, IBV_WC_RETRY_EXC_ERR);
  // Nothing was received for twice as long: the peer may have lost what it said it holds.
  if (req.retries != qp.attr.retry_cnt) req.there.clear();
  req.retries--;
  go_back(e, qp);
  restart_ack_timer(e, qp);
}

}  // namespace bypass::rdma
