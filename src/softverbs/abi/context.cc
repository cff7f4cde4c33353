// Opening and closing devices, and events other than completions.
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "softverbs/abi/device_list.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/queue_pair_ex.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {
namespace {

/// Completion vectors stand for interrupts; there is one.
constexpr int kCompletionVectors = 1;

void set_operations(Context& context) {
  context.sz = sizeof(verbs_context);
  context.query_port = query_port;
  context.query_device_ex = query_device_ex;
  context.query_rt_values = query_rt_values;
  context.create_cq_ex = create_cq_ex;
  context.create_qp_ex = create_qp_ex;
  context.create_srq_ex = create_srq_ex;
  context.get_srq_num = get_srq_num;
  context.open_xrcd = open_xrcd;
  context.close_xrcd = close_xrcd;
  context.open_qp = open_qp;
  context.ibv_create_flow = create_flow;
  context.ibv_destroy_flow = destroy_flow;
  ibv_context& base = context.context;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.ops.poll_cq = poll_cq;
  base.ops.req_notify_cq = request_notify_cq;
  base.ops.alloc_mw = alloc_mw;
  base.ops.bind_mw = bind_mw;
  base.ops.dealloc_mw = dealloc_mw;
  base.ops.post_send = post_send;
  base.ops.post_recv = post_receive;
  base.ops.post_srq_recv = post_srq_receive;
}

// One opening of a queue pair that has others is left alone by them.
void destroy_queue_pairs(Context& context, Adapter::Turn& turn) {
  for (auto at = context.qps.begin(); at != context.qps.end();) {
    QueuePair* const pair = &*at++;
    turn->leave_groups(*pair->engine);
    turn->destroy_qp(*pair->engine);
    leave_openings(*pair);
    delete pair;
  }
}

template <typename T, typename Destroy>
void destroy_all(Members<T>& members, Destroy destroy) {
  for (auto at = members.begin(); at != members.end();) {
    T* const object = &*at++;
    destroy(*object->engine);
    delete object;
  }
}

// In an order in which no object is used by a remaining one.
void destroy_leftovers(Context& context, Adapter::Turn& turn) {
  destroy_all(context.flows, [&](rdma::Flow& flow) { turn->destroy_flow(flow); });
  destroy_queue_pairs(context, turn);
  destroy_all(context.srqs, [&](rdma::Srq& srq) { turn->destroy_srq(srq); });
  destroy_all(context.xrcds, [&](rdma::Xrcd& xrcd) { turn->close_xrcd(xrcd); });
  destroy_all(context.cqs, [&](rdma::Cq& cq) { turn->destroy_cq(cq); });
  destroy_all(context.ahs, [&](rdma::Ah& ah) { turn->destroy_ah(ah); });
  destroy_all(context.mws, [&](rdma::Mr& mw) { turn->dealloc_mw(mw); });
  destroy_all(context.mrs, [&](rdma::Mr& mr) { turn->dereg_mr(mr); });
  destroy_all(context.pds, [&](rdma::Pd& pd) { turn->dealloc_pd(pd); });
}

}  // namespace

Context* Context::find(ibv_context* context) {
  return is_soft(context->device) ? &of(context) : nullptr;
}

Context& Context::of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}

// In a forked child, the events and their readers are the parent's.
void Context::forget_events(const std::uint32_t& taken) {
  if (!adapter->is_inherited()) async.forget([&](const AsyncEvent& event) { return event.taken == &taken; });
}

void Context::await_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
                                 const std::uint32_t& taken) const {
  if (adapter->is_inherited()) return;
  pthread_mutex_lock(&mutex);
  while (completed != taken) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
  const SoftDevice* const soft = soft_device(device);
  if (soft == nullptr) return BYPASS_REAL(ibv_open_device)(device);
  auto context = std::make_unique<Context>();
  if (!context->async.open()) return nullptr;
  context->adapter = Adapter::attach(soft->index);
  if (context->adapter == nullptr) return nullptr;
  set_operations(*context);
  ibv_context& base = context->context;
  base.device = device;
  base.cmd_fd = -1;
  base.async_fd = context->async.descriptor();
  base.num_comp_vectors = kCompletionVectors;
  pthread_mutex_init(&base.mutex, nullptr);
  context->adapter->add(*context);
  return &context.release()->context;
}

int ibv_close_device(ibv_context* context) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_close_device)(context);
  ours->adapter->remove(*ours);
  {
    Adapter::Turn turn(*ours->adapter);
    if (turn) destroy_leftovers(*ours, turn);
    turn.hand_on_events();  // to channels that still exist
    ours->channels.clear_and_dispose([](CompletionChannel* channel) { delete channel; });
  }
  ours->adapter->detach();
  pthread_mutex_destroy(&context->mutex);
  delete ours;
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_get_async_event)(context, event);
  const auto count = [](const AsyncEvent& taken) {
    if (taken.taken != nullptr) ++*taken.taken;
  };
  AsyncEvent taken;
  if (!ours->async.take(*ours->adapter, taken, count)) return -1;
  *event = taken.event;
  return 0;
}

}  // extern "C"

namespace {

void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed) {
  pthread_mutex_lock(&mutex);
  completed++;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

}  // namespace

extern "C" void ibv_ack_async_event(ibv_async_event* event) {
  // The structures are libibverbs' own, whether the object is ours or not.
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq& cq = *event->element.cq;
      return acknowledge(cq.mutex, cq.cond, cq.async_events_completed);
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp& qp = *event->element.qp;
      return acknowledge(qp.mutex, qp.cond, qp.events_completed);
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq& srq = *event->element.srq;
      return acknowledge(srq.mutex, srq.cond, srq.events_completed);
    }
    case IBV_EVENT_WQ_FATAL: {
      ibv_wq& wq = *event->element.wq;
      return acknowledge(wq.mutex, wq.cond, wq.events_completed);
    }
    default:
      return;
  }
}

}  // namespace bypass::softverbs
