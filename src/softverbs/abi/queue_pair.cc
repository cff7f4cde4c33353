// Queue pairs: making, changing and destroying them; groups; posting.
#include <cerrno>
#include <memory>
#include <utility>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/queue_pair_ex.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {

void QueuePair::report(ibv_event_type type) {
  QueuePair* opening = this;
  do {
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = &opening->qp_base;
    Context::of(opening->qp_base.context).async.push({event, &opening->async_events_taken});
    opening = opening->next_opening;
  } while (opening != this);
}

void leave_openings(QueuePair& pair) {
  if (pair.xrcd != nullptr) pair.xrcd->users--;
  if (pair.next_opening == &pair) return;
  rdma::Device::set_user(*pair.engine, pair.next_opening);
  QueuePair* before = pair.next_opening;
  while (before->next_opening != &pair) before = before->next_opening;
  before->next_opening = pair.next_opening;
}

namespace {

rdma::QpInit engine_init(ibv_pd* pd, XrcDomain* xrcd, const ibv_qp_init_attr& attr, void* user) {
  rdma::QpInit init;
  if (pd != nullptr) init.pd = ProtectionDomain::of(pd).engine;
  if (xrcd != nullptr) init.xrcd = xrcd->engine;
  if (attr.send_cq != nullptr) init.send_cq = CompletionQueue::of(attr.send_cq).engine;
  if (attr.recv_cq != nullptr) init.receive_cq = CompletionQueue::of(attr.recv_cq).engine;
  if (attr.srq != nullptr) init.srq = SharedReceiveQueue::of(attr.srq).engine;
  init.type = attr.qp_type;
  init.cap = attr.cap;
  init.sq_sig_all = attr.sq_sig_all != 0;
  init.user = user;
  return init;
}

void describe(ibv_qp& qp, ibv_context& context, ibv_pd* pd, const ibv_qp_init_attr& attr) {
  qp.context = &context;
  qp.qp_context = attr.qp_context;
  qp.pd = pd;
  qp.send_cq = attr.send_cq;
  qp.recv_cq = attr.recv_cq;
  qp.srq = attr.srq;
  qp.qp_type = attr.qp_type;
  qp.state = IBV_QPS_RESET;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
}

// Connected queue pairs get their peer on the way to RTR, and the kernel, too, looks up the peer's address there. A
// raw-packet queue pair has no peer, and its frames are lost on a link that is down. A program that begins with a frame
// and waits for the answer (raw_ethernet_lat) would wait for ever; on a card the link is up long before it starts. So
// this waits for the link.
int await_ready(Adapter& adapter, const ibv_qp& qp, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_STATE) == 0) return 0;
  if (qp.qp_type == IBV_QPT_RAW_PACKET) {
    if (attr.qp_state == IBV_QPS_RTS) (void)adapter.await_link();
    return 0;
  }
  const bool names_peer = attr.qp_state == IBV_QPS_RTR && (mask & IBV_QP_AV) != 0 && attr.ah_attr.is_global != 0;
  return names_peer ? adapter.await_peer(attr.ah_attr.grh.dgid) : 0;
}

}  // namespace

ibv_qp* create_queue_pair(ibv_context& context, ibv_pd* pd, XrcDomain* xrcd, ibv_qp_init_attr& attr) {
  const auto is_foreign = [&](const auto* object) { return object != nullptr && object->context != &context; };
  if (is_foreign(attr.send_cq) || is_foreign(attr.recv_cq) || is_foreign(attr.srq)) return refuse<ibv_qp>(EINVAL);
  Context& ours = Context::of(&context);
  Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<ibv_qp>(EIO);
  auto qp = std::make_unique<QueuePair>();
  const auto made = turn->create_qp(engine_init(pd, xrcd, attr, qp.get()));
  if (made.error != 0) return refuse<ibv_qp>(made.error);
  qp->engine = made.object;
  describe(qp->qp_base, context, pd, attr);
  qp->xrcd = xrcd;
  if (xrcd != nullptr) xrcd->users++;
  qp->qp_base.qp_num = qp->qp_base.handle = rdma::Device::qpn(*made.object);
  ibv_qp_attr given{};
  ibv_qp_init_attr granted{};
  rdma::Device::query_qp(*made.object, given, granted);
  attr.cap = granted.cap;
  ours.qps.push_back(*qp);
  return &qp.release()->qp_base;
}

// A second handle of a queue pair that receives for an XRC domain.
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
  constexpr std::uint32_t kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if ((attr->comp_mask & ~(kNeeded | IBV_QP_OPEN_ATTR_CONTEXT)) != 0) return refuse<ibv_qp>(EOPNOTSUPP);
  if ((attr->comp_mask & kNeeded) != kNeeded || attr->qp_type != IBV_QPT_XRC_RECV || attr->xrcd->context != context)
    return refuse<ibv_qp>(EINVAL);
  Context& ours = Context::of(context);
  const Adapter::Turn held(*ours.adapter);
  if (!held) return refuse<ibv_qp>(EIO);
  XrcDomain& xrcd = XrcDomain::of(attr->xrcd);
  const auto made = held->open_qp(*xrcd.engine, attr->qp_num);
  if (made.error != 0) return refuse<ibv_qp>(made.error);
  QueuePair& other = *static_cast<QueuePair*>(rdma::Device::user(*made.object));
  auto* const qp = new QueuePair();  // all of ibv_qp is 0
  qp->engine = made.object;
  ibv_qp_init_attr described{};
  described.qp_type = attr->qp_type;
  if ((attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0) described.qp_context = attr->qp_context;
  describe(qp->qp_base, *context, nullptr, described);
  qp->qp_base.state = rdma::Device::state(*made.object);
  qp->qp_base.qp_num = qp->qp_base.handle = attr->qp_num;
  qp->xrcd = &xrcd;
  xrcd.users++;
  qp->next_opening = std::exchange(other.next_opening, qp);
  ours.qps.push_back(*qp);
  return &qp->qp_base;
}

void set_bind(rdma::SendRequest& request, ibv_mw& mw, std::uint32_t rkey, const ibv_mw_bind_info& info) {
  request.opcode = IBV_WR_BIND_MW;
  request.rkey = rkey;
  request.window = MemoryWindow::of(&mw).engine;
  if (info.mr != nullptr) request.region = MemoryRegion::of(info.mr).engine;
  request.bind_addr = info.addr;
  request.bind_length = info.length;
  request.bind_access = info.mw_access_flags;
}

rdma::SendRequest as_request(const ibv_send_wr& wr, ibv_qp_type type) {
  rdma::SendRequest request;
  request.wr_id = wr.wr_id;
  request.opcode = wr.opcode;
  request.flags = wr.send_flags;
  request.imm = wr.imm_data;
  request.sges = {wr.sg_list, static_cast<std::size_t>(wr.num_sge)};
  if (type == IBV_QPT_UD) {
    if (wr.wr.ud.ah != nullptr) request.ah = AddressHandle::of(wr.wr.ud.ah).engine;
    request.remote_qpn = wr.wr.ud.remote_qpn;
    request.remote_qkey = wr.wr.ud.remote_qkey;
    return request;
  }
  if (type == IBV_QPT_XRC_SEND) request.remote_srqn = wr.qp_type.xrc.remote_srqn;
  switch (wr.opcode) {
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      request.remote_addr = wr.wr.atomic.remote_addr;
      request.rkey = wr.wr.atomic.rkey;
      request.compare_add = wr.wr.atomic.compare_add;
      request.swap = wr.wr.atomic.swap;
      break;
    case IBV_WR_LOCAL_INV:
    case IBV_WR_SEND_WITH_INV:
      request.rkey = wr.invalidate_rkey;
      break;
    case IBV_WR_BIND_MW:
      // One of type 1 is bound by ibv_bind_mw.
      if (wr.bind_mw.mw != nullptr && wr.bind_mw.mw->type == IBV_MW_TYPE_2)
        set_bind(request, *wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info);
      break;
    case IBV_WR_TSO:
      request.tso_header = {static_cast<const std::byte*>(wr.tso.hdr), wr.tso.hdr_sz};
      request.tso_mss = wr.tso.mss;
      break;
    default:
      request.remote_addr = wr.wr.rdma.remote_addr;
      request.rkey = wr.wr.rdma.rkey;
      break;
  }
  return request;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Adapter::Turn turn(*Context::of(qp->context).adapter);
  rdma::Qp& engine = *QueuePair::of(qp).engine;
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    error = turn ? turn->post_send(engine, as_request(*wr, qp->qp_type)) : EIO;
    if (error == 0) continue;
    *bad = wr;
    break;
  }
  if (turn) turn.post();
  return error;
}

int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Adapter::Turn turn(*Context::of(qp->context).adapter);
  rdma::Qp& engine = *QueuePair::of(qp).engine;
  for (; wr != nullptr; wr = wr->next) {
    const int error = turn ? turn->post_receive(engine, as_request(*wr)) : EIO;
    if (error == 0) continue;
    *bad = wr;
    return error;
  }
  return 0;
}

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (Context::find(pd->context) == nullptr) return BYPASS_REAL(ibv_create_qp)(pd, attr);
  if (attr->qp_type == IBV_QPT_XRC_RECV) return refuse<ibv_qp>(EINVAL);  // which needs a domain
  return create_queue_pair(*pd->context, pd, nullptr, *attr);
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  if (Context::find(qp->context) == nullptr) return BYPASS_REAL(ibv_qp_to_qp_ex)(qp);
  QueuePair& pair = QueuePair::of(qp);
  return pair.extended ? &pair : nullptr;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  Context* const ours = Context::find(qp->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_query_qp)(qp, attr, mask, init);
  const Adapter::Turn turn(*ours->adapter);
  if (!turn) return EIO;
  *attr = {};
  *init = {};
  rdma::Device::query_qp(*QueuePair::of(qp).engine, *attr, *init);
  init->qp_context = qp->qp_context;
  init->send_cq = qp->send_cq;
  init->recv_cq = qp->recv_cq;
  init->srq = qp->srq;
  qp->state = attr->qp_state;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, std::uint32_t flags) {
  if (Context::find(qp->context) == nullptr) return BYPASS_REAL(ibv_query_qp_data_in_order)(qp, opcode, flags);
  return 0;  // nothing is promised
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  Context* const ours = Context::find(qp->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_modify_qp)(qp, attr, mask);
  if (const int error = await_ready(*ours->adapter, *qp, *attr, mask); error != 0) return error;
  Adapter::Turn turn(*ours->adapter);
  if (!turn) return EIO;
  QueuePair& pair = QueuePair::of(qp);
  const int error = turn->modify_qp(*pair.engine, *attr, static_cast<unsigned>(mask));
  if (error != 0) return error;
  qp->state = rdma::Device::state(*pair.engine);
  turn.run();
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  Context* const ours = Context::find(qp->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_destroy_qp)(qp);
  QueuePair* const pair = &QueuePair::of(qp);
  {
    Adapter::Turn turn(*ours->adapter);
    const int error = turn ? turn->destroy_qp(*pair->engine) : 0;
    if (error != 0) return error;
    turn.hand_on_events();
    ours->forget_events(pair->async_events_taken);
    pair->unlink();
    leave_openings(*pair);
  }
  ours->await_acknowledged(qp->mutex, qp->cond, qp->events_completed, pair->async_events_taken);
  pthread_cond_destroy(&qp->cond);
  pthread_mutex_destroy(&qp->mutex);
  delete pair;
  return 0;
}

int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
  Context* const ours = Context::find(qp->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_attach_mcast)(qp, gid, lid);
  Adapter::Turn turn(*ours->adapter);
  return turn ? turn->attach_multicast(*QueuePair::of(qp).engine, *gid) : EIO;
}

int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
  Context* const ours = Context::find(qp->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_detach_mcast)(qp, gid, lid);
  Adapter::Turn turn(*ours->adapter);
  return turn ? turn->detach_multicast(*QueuePair::of(qp).engine, *gid) : EIO;
}

}  // extern "C"

}  // namespace bypass::softverbs
