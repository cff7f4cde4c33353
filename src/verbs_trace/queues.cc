// Verbs that make, change and end completion queues, queue pairs and shared receive queues.
#include <infiniband/verbs.h>

#include "verbs_trace/call.h"
#include "verbs_trace/data_path.h"
#include "verbs_trace/describe.h"
#include "verbs_trace/ending.h"
#include "verbs_trace/next.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

using namespace bypass::verbs_trace;

#define NEXT(verb) next<decltype(verb)>(#verb)

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  Call call("ibv_create_comp_channel");
  if (call.is_told()) call.arg("context", name_of(context));
  ibv_comp_channel* const channel = call.make([&] { return NEXT(ibv_create_comp_channel)(context); });
  call.returns_object(channel, "channel");
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  Call call("ibv_destroy_comp_channel");
  if (call.is_told()) call.arg("channel", name_of(channel));
  Ending<> ending(channel);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_destroy_comp_channel)(channel); }));
  call.returns(error);
  return error;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* own, ibv_comp_channel* channel, int vector) {
  Call call("ibv_create_cq");
  if (call.is_told())
    call.arg("context", name_of(context)).arg("cqe", static_cast<unsigned>(entries)).arg("channel", name_of(channel));
  ibv_cq* const queue = call.make([&] { return NEXT(ibv_create_cq)(context, entries, own, channel, vector); });
  call.returns_object(queue, "cq");
  return queue;
}

int ibv_resize_cq(ibv_cq* queue, int entries) {
  Call call("ibv_resize_cq");
  if (call.is_told()) call.arg("cq", name_of(queue)).arg("cqe", static_cast<unsigned>(entries));
  const int error = call.make([&] { return NEXT(ibv_resize_cq)(queue, entries); });
  call.returns(error);
  return error;
}

int ibv_destroy_cq(ibv_cq* queue) {
  Call call("ibv_destroy_cq");
  if (call.is_told()) call.arg("cq", name_of(queue));
  Ending<ibv_cq_ex> ending(queue);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_destroy_cq)(queue); }));
  call.returns(error);
  return error;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** own) {
  Call call("ibv_get_cq_event");
  if (call.is_told()) call.arg("channel", name_of(channel));
  const int error = call.make([&] { return NEXT(ibv_get_cq_event)(channel, queue, own); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("event of", name_of(*queue));
  return error;
}

void ibv_ack_cq_events(ibv_cq* queue, unsigned count) {
  Call call("ibv_ack_cq_events");
  if (call.is_told()) call.arg("cq", name_of(queue)).arg("count", count);
  call.make([&] { NEXT(ibv_ack_cq_events)(queue, count); });
}

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  Call call("ibv_create_srq");
  if (call.is_told())
    call.arg("pd", name_of(domain)).arg("max_wr", attributes->attr.max_wr).arg("max_sge", attributes->attr.max_sge);
  ibv_srq* const queue = call.make([&] { return NEXT(ibv_create_srq)(domain, attributes); });
  call.returns_object(queue, "srq");
  return queue;
}

int ibv_modify_srq(ibv_srq* queue, ibv_srq_attr* attributes, int mask) {
  Call call("ibv_modify_srq");
  if (call.is_told()) call.arg("srq", name_of(queue)).hex("mask", static_cast<unsigned>(mask));
  const int error = call.make([&] { return NEXT(ibv_modify_srq)(queue, attributes, mask); });
  call.returns(error);
  return error;
}

int ibv_query_srq(ibv_srq* queue, ibv_srq_attr* attributes) {
  Call call("ibv_query_srq");
  if (call.is_told()) call.arg("srq", name_of(queue));
  const int error = call.make([&] { return NEXT(ibv_query_srq)(queue, attributes); });
  call.returns(error);
  return error;
}

int ibv_destroy_srq(ibv_srq* queue) {
  Call call("ibv_destroy_srq");
  if (call.is_told()) call.arg("srq", name_of(queue));
  Ending<> ending(queue);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_destroy_srq)(queue); }));
  call.returns(error);
  return error;
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  Call call("ibv_create_qp");
  if (call.is_told()) {
    call.arg("pd", name_of(domain)).arg("type", type_word(attributes->qp_type));
    call.arg("send_cq", name_of(attributes->send_cq)).arg("recv_cq", name_of(attributes->recv_cq));
    if (attributes->srq != nullptr) call.arg("srq", name_of(attributes->srq));
    describe(call, attributes->cap);
    call.arg("sq_sig_all", static_cast<unsigned>(attributes->sq_sig_all));
  }
  ibv_qp* const pair = call.make([&] { return NEXT(ibv_create_qp)(domain, attributes); });
  call.returns_object(pair, "qp");
  return pair;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* pair) {
  Call call("ibv_qp_to_qp_ex");
  if (call.is_told()) call.arg("qp", name_of(pair));
  ibv_qp_ex* const extended = call.make([&] { return NEXT(ibv_qp_to_qp_ex)(pair); });
  call.returns(extended != nullptr ? 0 : -1);
  if (extended != nullptr && call.is_told()) trace_requests(*extended);
  return extended;
}

int ibv_query_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* made) {
  Call call("ibv_query_qp");
  if (call.is_told()) call.arg("qp", name_of(pair)).hex("mask", static_cast<unsigned>(mask));
  const int error = call.make([&] { return NEXT(ibv_query_qp)(pair, attributes, mask, made); });
  call.returns(error);
  if (error == 0 && call.is_told() && (mask & IBV_QP_STATE) != 0) call.tell("state", state_word(attributes->qp_state));
  return error;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  Call call("ibv_modify_qp");
  if (call.is_told()) {
    call.arg("qp", name_of(pair));
    if ((mask & IBV_QP_STATE) != 0)
      call.arg("state", state_word(pair->state) + "->" + state_word(attributes->qp_state));
    describe(call, *attributes, mask);
  }
  const int error = call.make([&] { return NEXT(ibv_modify_qp)(pair, attributes, mask); });
  call.returns(error);
  return error;
}

int ibv_destroy_qp(ibv_qp* pair) {
  Call call("ibv_destroy_qp");
  if (call.is_told()) call.arg("qp", name_of(pair));
  Ending<ibv_qp_ex> ending(pair);
  const int error = ending.ends(call.make([&] { return NEXT(ibv_destroy_qp)(pair); }));
  call.returns(error);
  return error;
}

int ibv_attach_mcast(ibv_qp* pair, const ibv_gid* group, std::uint16_t lid) {
  Call call("ibv_attach_mcast");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("gid", gid_text(*group));
  const int error = call.make([&] { return NEXT(ibv_attach_mcast)(pair, group, lid); });
  call.returns(error);
  return error;
}

int ibv_detach_mcast(ibv_qp* pair, const ibv_gid* group, std::uint16_t lid) {
  Call call("ibv_detach_mcast");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("gid", gid_text(*group));
  const int error = call.make([&] { return NEXT(ibv_detach_mcast)(pair, group, lid); });
  call.returns(error);
  return error;
}

}  // extern "C"
