#include "verbs_trace/extended.h"

#include <cstddef>

#include "verbs_trace/call.h"
#include "verbs_trace/data_path.h"
#include "verbs_trace/describe.h"
#include "verbs_trace/ending.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/originals.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

namespace bypass::verbs_trace {

namespace {

const verbs_context& ops_of(const ibv_context* context) {
  return originals<verbs_context>().of(context);
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes, std::size_t size) {
  Call call("ibv_query_port");
  if (call.is_told()) call.arg("context", name_of(context)).arg("port", port);
  const int error = call.make([&] { return ops_of(context).query_port(context, port, attributes, size); });
  call.returns(error);
  if (error == 0 && call.is_told()) {
    call.tell("state", port_state_word(attributes->state));
    call.tell("active_mtu", mtu_word(attributes->active_mtu));
  }
  return error;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attributes,
                    std::size_t size) {
  Call call("ibv_query_device_ex");
  if (call.is_told()) call.arg("context", name_of(context));
  const int error = call.make([&] { return ops_of(context).query_device_ex(context, input, attributes, size); });
  call.returns(error);
  return error;
}

int query_rt_values(ibv_context* context, ibv_values_ex* values) {
  Call call("ibv_query_rt_values_ex");
  if (call.is_told()) call.arg("context", name_of(context)).hex("comp_mask", values->comp_mask);
  const int error = call.make([&] { return ops_of(context).query_rt_values(context, values); });
  call.returns(error);
  return error;
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) {
  Call call("ibv_create_cq_ex");
  if (call.is_told()) {
    call.arg("context", name_of(context)).arg("cqe", attributes->cqe).arg("channel", name_of(attributes->channel));
    call.hex("wc_flags", attributes->wc_flags);
  }
  ibv_cq_ex* const queue = call.make([&] { return ops_of(context).create_cq_ex(context, attributes); });
  call.returns_object(queue, "cq");
  if (queue != nullptr && call.is_told()) trace_polls(*queue);
  return queue;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) {
  Call call("ibv_create_qp_ex");
  if (call.is_told()) {
    call.arg("pd", name_of(attributes->pd)).arg("type", type_word(attributes->qp_type));
    call.arg("send_cq", name_of(attributes->send_cq)).arg("recv_cq", name_of(attributes->recv_cq));
    if (attributes->srq != nullptr) call.arg("srq", name_of(attributes->srq));
    describe(call, attributes->cap);
    if ((attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0)
      call.hex("send_ops_flags", attributes->send_ops_flags);
  }
  ibv_qp* const pair = call.make([&] { return ops_of(context).create_qp_ex(context, attributes); });
  call.returns_object(pair, "qp");
  return pair;
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attributes) {
  Call call("ibv_create_srq_ex");
  if (call.is_told())
    call.arg("max_wr", attributes->attr.max_wr).arg("type", static_cast<unsigned>(attributes->srq_type));
  ibv_srq* const queue = call.make([&] { return ops_of(context).create_srq_ex(context, attributes); });
  call.returns_object(queue, "srq");
  return queue;
}

int get_srq_num(ibv_srq* queue, std::uint32_t* number) {
  Call call("ibv_get_srq_num");
  if (call.is_told()) call.arg("srq", name_of(queue));
  const int error = call.make([&] { return ops_of(queue->context).get_srq_num(queue, number); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("srq_num", hex_text(*number));
  return error;
}

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attributes) {
  Call call("ibv_open_xrcd");
  if (call.is_told()) call.arg("context", name_of(context)).hex("oflags", static_cast<unsigned>(attributes->oflags));
  ibv_xrcd* const domain = call.make([&] { return ops_of(context).open_xrcd(context, attributes); });
  call.returns_object(domain, "xrcd");
  return domain;
}

int close_xrcd(ibv_xrcd* domain) {
  Call call("ibv_close_xrcd");
  if (call.is_told()) call.arg("xrcd", name_of(domain));
  Ending<> ending(domain);
  const int error = ending.ends(call.make([&] { return ops_of(domain->context).close_xrcd(domain); }));
  call.returns(error);
  return error;
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attributes) {
  Call call("ibv_open_qp");
  if (call.is_told()) call.arg("context", name_of(context)).hex("qp_num", attributes->qp_num);
  ibv_qp* const pair = call.make([&] { return ops_of(context).open_qp(context, attributes); });
  call.returns_object(pair, "qp");
  return pair;
}

ibv_flow* create_flow(ibv_qp* pair, ibv_flow_attr* attributes) {
  Call call("ibv_create_flow");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("num_of_specs", attributes->num_of_specs);
  ibv_flow* const flow = call.make([&] { return ops_of(pair->context).ibv_create_flow(pair, attributes); });
  call.returns_object(flow, "flow");
  return flow;
}

int destroy_flow(ibv_flow* flow) {
  Call call("ibv_destroy_flow");
  if (call.is_told()) call.arg("flow", name_of(flow));
  Ending<> ending(flow);
  const int error = ending.ends(call.make([&] { return ops_of(flow->context).ibv_destroy_flow(flow); }));
  call.returns(error);
  return error;
}

}  // namespace

// The structure grows at its beginning: an older library has fewer functions, and says so by `sz`.
#define BYPASS_REPLACE(member, own) \
  if (verbs_get_ctx_op(&context.context, member) != nullptr) context.member = own

void trace_extended(verbs_context& context) {
  constexpr std::size_t kFixed = offsetof(verbs_context, sz);
  if (context.sz == 0) return;
  verbs_context before{};
  const std::size_t there = context.sz < sizeof context ? context.sz : sizeof context;
  const std::size_t absent = sizeof context - there;
  if (absent < kFixed)
    __builtin_memcpy(reinterpret_cast<char*>(&before) + absent, reinterpret_cast<const char*>(&context) + absent,
                     kFixed - absent);
  if (!originals<verbs_context>().keep(&context.context, before)) return;
  BYPASS_REPLACE(query_port, query_port);
  BYPASS_REPLACE(query_device_ex, query_device_ex);
  BYPASS_REPLACE(query_rt_values, query_rt_values);
  BYPASS_REPLACE(create_cq_ex, create_cq_ex);
  BYPASS_REPLACE(create_qp_ex, create_qp_ex);
  BYPASS_REPLACE(create_srq_ex, create_srq_ex);
  BYPASS_REPLACE(get_srq_num, get_srq_num);
  BYPASS_REPLACE(open_xrcd, open_xrcd);
  BYPASS_REPLACE(close_xrcd, close_xrcd);
  BYPASS_REPLACE(open_qp, open_qp);
  BYPASS_REPLACE(ibv_create_flow, create_flow);
  BYPASS_REPLACE(ibv_destroy_flow, destroy_flow);
}

}  // namespace bypass::verbs_trace
