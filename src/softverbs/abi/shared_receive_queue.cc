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

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_create_srq)(pd, init);
  Adapter::Turn turn(*ours->adapter);
  if (!turn) return refuse<ibv_srq>(EIO);
  auto srq = std::make_unique<SharedReceiveQueue>();
  const auto made = turn->create_srq(*ProtectionDomain::of(pd).engine, init->attr, srq.get());
  if (made.error != 0) return refuse<ibv_srq>(made.error);
  init->attr = rdma::Device::query_srq(*made.object);
  srq->engine = made.object;
  srq->context = pd->context;
  srq->srq_context = init->srq_context;
  srq->pd = pd;
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  ours->srqs.push_back(*srq);
  return srq.release();
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
  }
  ours->await_acknowledged(srq->mutex, srq->cond, srq->events_completed, queue->async_events_taken);
  pthread_cond_destroy(&srq->cond);
  pthread_mutex_destroy(&srq->mutex);
  delete queue;
  return 0;
}

}  // extern "C"

}  // namespace bypass::softverbs
