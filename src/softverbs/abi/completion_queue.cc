// Completion queues, their channels, and polling them.
#include <sched.h>

#include <cerrno>
#include <memory>

#include "softverbs/abi/completion_queue_ex.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {

void CompletionQueue::notify() {
  if (channel != nullptr) CompletionChannel::of(channel).events.push(this);
}

void CompletionQueue::report(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.cq = base();
  Context::of(context).async.push({event, &async_events_taken});
}

CompletionQueue* create_queue(ibv_context* context, std::uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
                              std::uint32_t vector) {
  Context& ours = Context::of(context);
  if (vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) return refuse<CompletionQueue>(EINVAL);
  // The kernel looks the channel's descriptor up among those of the context.
  if (channel != nullptr && channel->context != context) return refuse<CompletionQueue>(EBADF);
  if (cqe == 0) return refuse<CompletionQueue>(EINVAL);
  Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<CompletionQueue>(EIO);
  auto cq = std::make_unique<CompletionQueue>();
  const auto made = turn->create_cq(cqe, cq.get());
  if (made.error != 0) return refuse<CompletionQueue>(made.error);
  cq->engine = made.object;
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = static_cast<int>(rdma::Device::cqe(*made.object));
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  if (channel != nullptr) channel->refcnt++;
  ours.cqs.push_back(*cq);
  return cq.release();
}

namespace {

int poll_some(CompletionQueue& queue, std::span<ibv_wc> out) {
  std::size_t found = 0;
  bool others_turn = false;
  {
    Adapter::Turn turn(*Context::of(queue.context).adapter);
    if (!turn) return -1;
    found = turn->poll_cq(*queue.engine, out);
    if (found < out.size()) {
      turn.look(queue.looks_seen);
      found += turn->poll_cq(*queue.engine, out.subspan(found));
    }
    others_turn = turn.found(found);
  }
  if (others_turn) sched_yield();
  return static_cast<int>(found);
}

}  // namespace

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
  if (count <= 0) return 0;
  const std::span<ibv_wc> out(wc, static_cast<std::size_t>(count));
  CompletionQueue& queue = CompletionQueue::of(cq);
  if (!queue.is_extended()) return poll_some(queue, out);
  pthread_mutex_lock(&queue.polling);  // protects against another thread between ibv_start_poll and ibv_end_poll
  const int found = poll_some(queue, out);
  pthread_mutex_unlock(&queue.polling);
  return found;
}

int request_notify_cq(ibv_cq* cq, int solicited_only) {
  Adapter::Turn turn(*Context::of(cq->context).adapter);
  return turn ? turn.request_notify(*CompletionQueue::of(cq).engine, solicited_only != 0) : EIO;
}

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_create_comp_channel)(context);
  auto channel = std::make_unique<CompletionChannel>();
  if (!channel->events.open()) return nullptr;
  channel->context = context;
  channel->fd = channel->events.descriptor();
  const Adapter::Turn turn(*ours->adapter);
  ours->channels.push_back(*channel);
  return channel.release();
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  Context* const ours = Context::find(channel->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_destroy_comp_channel)(channel);
  const Adapter::Turn turn(*ours->adapter);
  if (channel->refcnt != 0) return EBUSY;
  delete &CompletionChannel::of(channel);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (Context::find(context) == nullptr)
    return BYPASS_REAL(ibv_create_cq)(context, cqe, cq_context, channel, comp_vector);
  if (cqe < 0 || comp_vector < 0) return refuse<ibv_cq>(EINVAL);
  CompletionQueue* const cq =
      create_queue(context, static_cast<std::uint32_t>(cqe), cq_context, channel, static_cast<unsigned>(comp_vector));
  return cq == nullptr ? nullptr : cq->base();
}

int ibv_resize_cq(ibv_cq* cq, int cqe) {
  Context* const ours = Context::find(cq->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_resize_cq)(cq, cqe);
  Adapter::Turn turn(*ours->adapter);
  if (!turn) return EIO;
  if (cqe <= 0) return EINVAL;
  CompletionQueue& queue = CompletionQueue::of(cq);
  const int error = turn->resize_cq(*queue.engine, static_cast<std::uint32_t>(cqe));
  if (error == 0) cq->cqe = static_cast<int>(rdma::Device::cqe(*queue.engine));
  return error;
}

int ibv_destroy_cq(ibv_cq* cq) {
  Context* const ours = Context::find(cq->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_destroy_cq)(cq);
  CompletionQueue* const queue = &CompletionQueue::of(cq);
  {
    Adapter::Turn turn(*ours->adapter);
    const int error = turn ? turn->destroy_cq(*queue->engine) : 0;
    if (error != 0) return error;
    turn.hand_on_events();  // the engine's events of the queue come before it is forgotten
    if (cq->channel != nullptr) {
      if (turn)
        CompletionChannel::of(cq->channel).events.forget([=](const CompletionQueue* event) { return event == queue; });
      cq->channel->refcnt--;
    }
    ours->forget_events(queue->async_events_taken);
    queue->unlink();
  }
  ours->await_acknowledged(cq->mutex, cq->cond, cq->comp_events_completed, queue->comp_events_taken);
  ours->await_acknowledged(cq->mutex, cq->cond, cq->async_events_completed, queue->async_events_taken);
  pthread_cond_destroy(&cq->cond);
  pthread_mutex_destroy(&cq->mutex);
  delete queue;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Context* const ours = Context::find(channel->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_get_cq_event)(channel, cq, cq_context);
  CompletionQueue* taken = nullptr;
  const auto count = [](CompletionQueue* queue) { queue->comp_events_taken++; };
  if (!CompletionChannel::of(channel).events.take(*ours->adapter, taken, count)) return -1;
  *cq = taken->base();
  *cq_context = taken->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned nevents) {
  // The structure is libibverbs' own, whether the object is ours or not.
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += nevents;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

}  // extern "C"

}  // namespace bypass::softverbs
