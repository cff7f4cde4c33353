// Queue pairs as the verbs use them: creating, modifying, flushing. posting.cc has their requests.
#include <bit>
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

// --- Flushing

void flush_sends(Engine& e, Qp& qp) {
  SendQueue& sq = qp.sq;
  while (sq.head != sq.tail) {
    const std::uint32_t n = sq.head++;
    if (qp.is_datagram()) release_path(e, sq.path(n));
    complete_send(e, qp, sq.at(n), IBV_WC_WR_FLUSH_ERR);
  }
  sq.cursor = sq.begun = sq.head;
  qp.req.reads = 0;
  qp.req.read_head = qp.req.read_tail;
}

void flush_receives(Engine& e, Qp& qp) {
  if (qp.resp.has_receive) complete_receive(e, qp, IBV_WC_WR_FLUSH_ERR, nullptr, IBV_WC_RECV, 0);
  if (qp.srq != nullptr) return;
  for (; !qp.rq.empty(); qp.rq.pop()) {
    qp.resp.wr_id = qp.rq.front().wr_id;
    complete_receive(e, qp, IBV_WC_WR_FLUSH_ERR, nullptr, IBV_WC_RECV, 0);
  }
}

// Stops everything under way, and drops answers that are due.
void stop(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  r.message = Message::kNone;
  r.answer = Answer::kNone;
  r.fatal_nak = 0;
  r.due = 0;
  drop_held(e, r.held);
  drop_held(e, qp.req.answers);
  r.resource_head = r.resource_tail;
  qp.req.rnr_wait = qp.draining = qp.waiting_neighbour = false;
  set_deadline(e, qp, kNever);
}

// --- Values of attributes

bool value_in(unsigned value, unsigned most) {
  return value <= most;
}

int check_values(const Engine& e, const ibv_qp_attr& a, unsigned mask) {
  const auto has = [mask](unsigned bit) { return (mask & bit) != 0; };
  const Limits& limits = e.config.limits;
  if (has(IBV_QP_PORT) && a.port_num != 1) return EINVAL;
  if (has(IBV_QP_PKEY_INDEX) && a.pkey_index != 0) return EINVAL;
  if (has(IBV_QP_PATH_MTU) && (a.path_mtu < IBV_MTU_256 || a.path_mtu > e.active_mtu)) return EINVAL;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC) && !value_in(a.max_rd_atomic, limits.max_rd_atomic)) return EINVAL;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC) && !value_in(a.max_dest_rd_atomic, limits.max_rd_atomic)) return EINVAL;
  if (has(IBV_QP_TIMEOUT) && !value_in(a.timeout, 31)) return EINVAL;
  if (has(IBV_QP_RETRY_CNT) && !value_in(a.retry_cnt, 7)) return EINVAL;
  if (has(IBV_QP_RNR_RETRY) && !value_in(a.rnr_retry, 7)) return EINVAL;
  if (has(IBV_QP_MIN_RNR_TIMER) && !value_in(a.min_rnr_timer, 31)) return EINVAL;
  if (has(IBV_QP_DEST_QPN) && !value_in(a.dest_qp_num, kQpnMask)) return EINVAL;
  return has(IBV_QP_ALT_PATH) ? EOPNOTSUPP : 0;
}

int check_modification(const Engine& e, const Qp& qp, const ibv_qp_attr& a, unsigned mask) {
  if ((mask & IBV_QP_RATE_LIMIT) != 0) return EOPNOTSUPP;  // packets are not paced here
  if ((mask & IBV_QP_CUR_STATE) != 0 && a.cur_qp_state != qp.state()) return EINVAL;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? a.qp_state : qp.state();
  if (const int error = check_transition(qp.type, qp.state(), to, mask)) return error;
  if (to == IBV_QPS_SQD && qp.state() == IBV_QPS_SQD && qp.draining) return EINVAL;
  return check_values(e, a, mask);
}

int set_path(Engine& e, Qp& qp, const ibv_ah_attr& attr) {
  Path path;
  if (const int error = make_path(e, attr, qp.qpn, path)) return error;
  release_path(e, qp.path);
  qp.path = path;
  qp.attr.ah_attr = attr;
  qp.attr.ah_attr.grh.hop_limit = hop_limit(attr.grh);
  return 0;
}

// Copies a field of the attributes, if the mask names it.
#define BYPASS_TAKE(bit, field) \
  if ((mask & (bit)) != 0) qp.attr.field = a.field

void take_values(Qp& qp, const ibv_qp_attr& a, unsigned mask) {
  BYPASS_TAKE(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
  BYPASS_TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
  BYPASS_TAKE(IBV_QP_PORT, port_num);
  BYPASS_TAKE(IBV_QP_QKEY, qkey);
  BYPASS_TAKE(IBV_QP_PATH_MTU, path_mtu);
  BYPASS_TAKE(IBV_QP_TIMEOUT, timeout);
  BYPASS_TAKE(IBV_QP_RETRY_CNT, retry_cnt);
  BYPASS_TAKE(IBV_QP_RNR_RETRY, rnr_retry);
  BYPASS_TAKE(IBV_QP_RQ_PSN, rq_psn);
  BYPASS_TAKE(IBV_QP_SQ_PSN, sq_psn);
  BYPASS_TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
  BYPASS_TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  BYPASS_TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
  BYPASS_TAKE(IBV_QP_DEST_QPN, dest_qp_num);
}
#undef BYPASS_TAKE

// A size at which counters that wrap round still name its places in turn.
std::size_t ring_size(std::uint8_t most) {
  return most == 0 ? 0 : std::bit_ceil(std::size_t{most});
}

void apply_values(Qp& qp, unsigned mask) {
  Requester& req = qp.req;
  if ((mask & IBV_QP_PATH_MTU) != 0) qp.mtu = 128U << qp.attr.path_mtu;
  if ((mask & IBV_QP_RQ_PSN) != 0) qp.resp.expected = {qp.attr.rq_psn & kPsnMask};
  if ((mask & IBV_QP_SQ_PSN) != 0)
    req.una = req.nxt = req.max = req.psn = req.arrived = req.repair_end = {qp.attr.sq_psn & kPsnMask};
  if ((mask & IBV_QP_RETRY_CNT) != 0) req.retries = qp.attr.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) req.rnr_retries = qp.attr.rnr_retry;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) {
    req.read_ends.assign(ring_size(qp.attr.max_rd_atomic), Psn{});
    req.read_head = req.read_tail = 0;
  }
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    qp.resp.resources.assign(ring_size(qp.attr.max_dest_rd_atomic), Resource{});
    qp.resp.resource_head = qp.resp.resource_tail = qp.resp.due = 0;
  }
}

void enter(Engine& e, Qp& qp, ibv_qp_state to) {
  if (to == IBV_QPS_RESET) return reset(e, qp);
  if (to == IBV_QPS_ERR) return to_error(e, qp);
  const bool begins_drain = to == IBV_QPS_SQD && qp.state() != IBV_QPS_SQD;
  qp.attr.qp_state = to;
  if (begins_drain) {
    qp.draining = qp.sq.head != qp.sq.begun;
    if (!qp.draining && qp.attr.en_sqd_async_notify != 0) e.post_event(qp, IBV_EVENT_SQ_DRAINED);
  }
  wake(e, qp);
}

}  // namespace

void to_error(Engine& e, Qp& qp) {
  if (qp.state() == IBV_QPS_ERR) return;
  qp.attr.qp_state = IBV_QPS_ERR;
  stop(e, qp);
  flush_sends(e, qp);
  flush_receives(e, qp);
  if (qp.srq != nullptr || qp.type == IBV_QPT_XRC_RECV) e.post_event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

namespace {

// Completions of this queue pair that the program has not seen.
void forget_completions(Cq& cq, std::uint32_t qpn) {
  std::uint32_t kept = cq.head + cq.shown;
  for (std::uint32_t i = kept; i != cq.tail; i++)
    if (cq.at(i).wc.qp_num != qpn) cq.at(kept++) = cq.at(i);
  cq.tail = kept;
}

}  // namespace

// Back to the state after creation. Posted requests, and unseen completions, are forgotten silently.
void reset(Engine& e, Qp& qp) {
  stop(e, qp);
  for (; qp.is_datagram() && qp.sq.head != qp.sq.tail; qp.sq.head++) release_path(e, qp.sq.path(qp.sq.head));
  qp.sq.head = qp.sq.cursor = qp.sq.begun = qp.sq.tail;
  if (qp.send_cq != nullptr) forget_completions(*qp.send_cq, qp.qpn);
  if (qp.receive_cq != nullptr && qp.receive_cq != qp.send_cq) forget_completions(*qp.receive_cq, qp.qpn);
  qp.sq.unpolled = 0;
  qp.rq.clear();
  release_path(e, qp.path);
  std::vector<ibv_sge> sges = std::move(qp.resp.sges);
  qp.req = Requester{};
  qp.resp = Responder{};
  qp.resp.sges = std::move(sges);
  qp.attr = ibv_qp_attr{};
  qp.attr.qp_state = IBV_QPS_RESET;
  qp.peer_is_ours = qp.established = qp.doomed = false;
  qp.raw_pause = Instant::min();
}

void set_deadline(Engine& e, Qp& qp, Instant at) {
  qp.deadline = at;  // the wheel's entry may be earlier: it checks again then
  if (at != kNever && (!qp.wheel.scheduled() || qp.wheel.expires() > at)) e.timers.schedule(qp, at);
}

bool take_receive(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  if (r.has_receive) return true;
  ReceiveQueue& queue = qp.receives();
  if (queue.empty()) return false;
  const std::span<const ibv_sge> sges = queue.front_sges();
  r.has_receive = true;
  r.wr_id = queue.front().wr_id;
  r.sge_count = static_cast<std::uint16_t>(sges.size());
  std::ranges::copy(sges, r.sges.begin());
  r.capacity = 0;
  for (const ibv_sge& sge : sges) r.capacity += sge.length;
  queue.pop();
  Srq* const shared = qp.shared_queue();
  if (shared != nullptr && queue.count() < shared->limit) {
    shared->limit = 0;  // reported once
    e.post_event(*shared, IBV_EVENT_SRQ_LIMIT_REACHED);
  }
  return true;
}

// --- The device's calls

namespace {

int check_new(const Engine& e, const QpInit& init) {
  const Limits& limits = e.config.limits;
  const ibv_qp_cap& cap = init.cap;
  const bool sends = init.type == IBV_QPT_XRC_SEND, receives = init.type == IBV_QPT_XRC_RECV;
  const bool known = init.type == IBV_QPT_RC || init.type == IBV_QPT_UC || init.type == IBV_QPT_UD ||
                     init.type == IBV_QPT_RAW_PACKET || sends || receives;
  if (!known) return EOPNOTSUPP;
  if (e.qp_count >= limits.max_qp) return ENOMEM;
  if (init.management && init.type != IBV_QPT_UD) return EINVAL;
  if (init.management && e.management_qp != nullptr) return EBUSY;
  if (receives) return init.xrcd != nullptr ? 0 : EINVAL;
  if (init.pd == nullptr || init.send_cq == nullptr) return EINVAL;
  if (sends ? init.srq != nullptr : init.receive_cq == nullptr) return EINVAL;
  if (init.srq != nullptr && init.srq->xrcd != nullptr) return EINVAL;  // a receive queue that peers name
  if (cap.max_send_wr > limits.max_qp_wr || cap.max_send_sge > limits.max_sge) return EINVAL;
  if (cap.max_inline_data > limits.max_inline) return EINVAL;
  const bool own_queue = init.srq == nullptr && !sends;
  return own_queue && (cap.max_recv_wr > limits.max_qp_wr || cap.max_recv_sge > limits.max_sge) ? EINVAL : 0;
}

// The next free number after the last one given out, so that late packets for a destroyed queue pair reach no other.
std::uint32_t free_index(Engine& e) {
  const auto size = static_cast<std::uint32_t>(e.qps.size());
  if (e.next_qpn >= e.config.limits.max_qp) e.next_qpn = 0;
  while (e.next_qpn < size && e.qps[e.next_qpn] != nullptr) e.next_qpn = (e.next_qpn + 1) % e.config.limits.max_qp;
  if (e.next_qpn >= size) e.qps.resize(e.next_qpn + 1);
  return e.next_qpn++;
}

std::unique_ptr<Qp>& place_of(Engine& e, std::uint32_t qpn) {
  return qpn == Engine::kManagementQpn ? e.management_qp : e.qps[qpn - Engine::kFirstQpn];
}

void create_queues(const Engine& e, Qp& qp, const QpInit& init) {
  if (qp.type == IBV_QPT_XRC_RECV) {  // requests are the receive queues'
    qp.resp.sges.resize(e.config.limits.max_sge);
    return;
  }
  qp.cap = init.cap;
  qp.cap.max_send_sge = std::max(qp.cap.max_send_sge, 1U);
  if (qp.type == IBV_QPT_RAW_PACKET) qp.cap.max_inline_data = std::max(qp.cap.max_inline_data, 256U);  // TSO headers
  if (qp.srq != nullptr || qp.is_xrc()) qp.cap.max_recv_wr = qp.cap.max_recv_sge = 0;
  qp.sq.create(qp.cap, qp.is_datagram());
  qp.rq.create(qp.cap.max_recv_wr, qp.cap.max_recv_sge);
  qp.resp.sges.resize(qp.receives().max_sge());
}

// What the queue pair uses has one user more, or less (-1).
void count_users(const Qp& qp, std::uint32_t change) {
  if (qp.pd != nullptr) qp.pd->references += change;
  if (qp.send_cq != nullptr) qp.send_cq->references += change;
  if (qp.receive_cq != nullptr) qp.receive_cq->references += change;
  if (qp.srq != nullptr) qp.srq->references += change;
  if (qp.xrcd != nullptr) qp.xrcd->references += change;
}

}  // namespace

Made<Qp> Device::create_qp(const QpInit& init) {
  Engine& e = *engine_;
  if (const int error = check_new(e, init)) return {nullptr, error};
  const bool raw = init.type == IBV_QPT_RAW_PACKET;
  if (const int error = raw ? 0 : e.port_steering.take_roce(e.gids)) return {nullptr, error};
  const std::uint32_t qpn = init.management ? Engine::kManagementQpn : Engine::kFirstQpn + free_index(e);
  std::unique_ptr<Qp>& place = place_of(e, qpn);
  place = std::make_unique<Qp>();
  Qp& qp = *place;
  qp.user = init.user;
  qp.type = init.type;
  if (qp.type == IBV_QPT_XRC_RECV) {
    qp.xrcd = init.xrcd;
  } else {
    qp.pd = init.pd;
    qp.send_cq = init.send_cq;
    if (!qp.is_xrc()) qp.receive_cq = init.receive_cq;
    qp.srq = init.srq;
  }
  qp.sq_sig_all = init.sq_sig_all;
  qp.qpn = qpn;
  qp.attr.qp_state = IBV_QPS_RESET;
  create_queues(e, qp, init);
  count_users(qp, 1);
  e.qp_count++;
  return {&qp, 0};
}

int Device::modify_qp(Qp& qp, const ibv_qp_attr& attr, unsigned mask) {
  Engine& e = *engine_;
  mask = meant_by(qp.type, mask);
  send_left(e, qp);  // first, as it may put the queue pair into error
  if (const int error = check_modification(e, qp, attr, mask)) return error;
  if ((mask & IBV_QP_AV) != 0) {
    if (const int error = set_path(e, qp, attr.ah_attr)) return error;
  }
  take_values(qp, attr, mask);
  apply_values(qp, mask);
  if ((mask & IBV_QP_STATE) != 0) enter(e, qp, attr.qp_state);
  return 0;
}

void Device::query_qp(const Qp& qp, ibv_qp_attr& attr, ibv_qp_init_attr& init) {
  attr = qp.attr;
  attr.cur_qp_state = qp.attr.qp_state;
  attr.rq_psn = qp.resp.expected.v;
  attr.sq_psn = qp.req.psn.v;
  attr.sq_draining = qp.draining ? 1 : 0;
  attr.cap = qp.cap;
  init.cap = qp.cap;
  init.qp_type = qp.type;
  init.sq_sig_all = qp.sq_sig_all ? 1 : 0;
}

int Device::destroy_qp(Qp& qp) {
  Engine& e = *engine_;
  if (qp.references != 0) return EBUSY;
  if (qp.openings != 0) {
    qp.openings--;
    return 0;
  }
  send_left(e, qp);
  reset(e, qp);
  if (qp.wheel.scheduled()) e.timers.cancel(qp);
  e.ready.remove(qp);
  e.left.remove(qp);
  e.events.remove(qp);
  count_users(qp, static_cast<std::uint32_t>(-1));
  e.memory.unbind_all(qp.qpn);
  e.qp_count--;
  place_of(e, qp.qpn).reset();
  return 0;
}

std::uint32_t Device::qpn(const Qp& qp) {
  return qp.qpn;
}

void* Device::user(const Qp& qp) {
  return qp.user;
}

void Device::set_user(Qp& qp, void* user) {
  qp.user = user;
}

ibv_qp_state Device::state(const Qp& qp) {
  return qp.state();
}

}  // namespace bypass::rdma
