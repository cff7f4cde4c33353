// Shared receive queues.
#include <cerrno>
#include <memory>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {

void SharedReceiveQueue::report(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.srq = this;
  Context::of(context).async.push({event, &async_events_taken});
}

int post_srq_receive(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Adapter::Turn turn(*Context::of(srq->context).adapter);
  rdma::Srq& engine = *SharedReceiveQueue::of(srq).engine;
  for (; wr != nullptr; wr = wr->next) {
    const int error = turn ? turn->post_srq_receive(engine, as_request(*wr)) : EIO;
    if (error == 0) continue;
    *bad = wr;
    return error;
  }
  return 0;
}

namespace {

// `xrcd` and `cq`: of an XRC receive queue.
ibv_srq* create_receive_queue(ibv_pd* pd, XrcDomain* xrcd, ibv_cq* cq, void* srq_context, ibv_srq_attr& attr) {
  Context& ours = Context::of(pd->context);
  Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<ibv_srq>(EIO);
  auto srq = std::make_unique<SharedReceiveQueue>();
  rdma::Pd& domain = *ProtectionDomain::of(pd).engine;
  const auto made = xrcd == nullptr
                        ? turn->create_srq(domain, attr, srq.get())
                        : turn->create_xrc_srq(domain, *xrcd->engine, *CompletionQueue::of(cq).engine, attr, srq.get());
  if (made.error != 0) return refuse<ibv_srq>(made.error);
  attr = rdma::Device::query_srq(*made.object);
  srq->engine = made.object;
  srq->context = pd->context;
  srq->srq_context = srq_context;
  srq->pd = pd;
  srq->xrcd = xrcd;
  if (xrcd != nullptr) xrcd->users++;
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  ours.srqs.push_back(*srq);
  return srq.release();
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  constexpr std::uint32_t kXrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  constexpr std::uint32_t kKnown = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | kXrc;
  const bool typed = (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
  const ibv_srq_type type = typed ? attr->srq_type : IBV_SRQT_BASIC;
  if ((attr->comp_mask & ~kKnown) != 0 || type == IBV_SRQT_TM) return refuse<ibv_srq>(EOPNOTSUPP);
  const bool is_xrc = type == IBV_SRQT_XRC;
  if ((!is_xrc && type != IBV_SRQT_BASIC) || (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 ||
      attr->pd->context != context)
    return refuse<ibv_srq>(EINVAL);
  if (!is_xrc) return create_receive_queue(attr->pd, nullptr, nullptr, attr->srq_context, attr->attr);
  if ((attr->comp_mask & kXrc) != kXrc || attr->xrcd->context != context || attr->cq->context != context)
    return refuse<ibv_srq>(EINVAL);
  return create_receive_queue(attr->pd, &XrcDomain::of(attr->xrcd), attr->cq, attr->srq_context, attr->attr);
}

int get_srq_num(ibv_srq* srq, std::uint32_t* number) {
  const std::uint32_t found = rdma::Device::srq_number(*SharedReceiveQueue::of(srq).engine);
  if (found == 0) return EINVAL;  // peers name XRC receive queues alone
  *number = found;
  return 0;
}

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  if (Context::find(pd->context) == nullptr) return BYPASS_REAL(ibv_create_srq)(pd, init);
  return create_receive_queue(pd, nullptr, nullptr, init->srq_context, init->attr);
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  Context* const ours = Context::find(srq->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_modify_srq)(srq, attr, mask);
  Adapter::Turn turn(*ours->adapter);
  return turn ? turn->modify_srq(*SharedReceiveQueue::of(srq).engine, *attr, static_cast<unsigned>(mask)) : EIO;
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  Context* const ours = Context::find(srq->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_query_srq)(srq, attr);
  const Adapter::Turn turn(*ours->adapter);
  if (!turn) return EIO;
  *attr = rdma::Device::query_srq(*SharedReceiveQueue::of(srq).engine);
  return 0;
}

int ibv_destroy_srq(ibv_srq* srq) {
  Context* const ours = Context::find(srq->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_destroy_srq)(srq);
  SharedReceiveQueue* const queue = &SharedReceiveQueue::of(srq);
  {
    Adapter::Turn turn(*ours->adapter);
    const int error = turn ? turn->destroy_srq(*queue->engine) : 0;
    if (error != 0) return error;
    turn.hand_on_events();
    ours->forget_events(queue->async_events_taken);
    queue->unlink();
    if (queue->xrcd != nullptr) queue->xrcd->users--;
  }
  ours->await_acknowledged(srq->mutex, srq->cond, srq->events_completed, queue->async_events_taken);
  pthread_cond_destroy(&srq->cond);
  pthread_mutex_destroy(&srq->mutex);
  delete queue;
  return 0;
}

}  // extern "C"

}  // namespace bypass::softverbs
