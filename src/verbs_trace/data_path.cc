#include "verbs_trace/data_path.h"

#include <cerrno>

#include "verbs_trace/call.h"
#include "verbs_trace/describe.h"
#include "verbs_trace/ending.h"
#include "verbs_trace/extended.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/originals.h"
#include "verbs_trace/output.h"

namespace bypass::verbs_trace {

namespace {

const ibv_context_ops& ops_of(const ibv_context* context) {
  return originals<ibv_context_ops>().of(context);
}

int poll_cq(ibv_cq* queue, int room, ibv_wc* completions) {
  Call call("ibv_poll_cq");
  if (call.is_told()) call.arg("cq", name_of(queue)).arg("num_entries", static_cast<unsigned>(room));
  const int count = call.make([&] { return ops_of(queue->context).poll_cq(queue, room, completions); });
  call.returns_count(count);
  for (int i = 0; i < count && call.is_told(); i++)
    call.tell(count == 1 ? "wc" : "wc[" + std::to_string(i) + "]", completion_text(completions[i]));
  call.may_repeat();
  return count;
}

int req_notify_cq(ibv_cq* queue, int solicited) {
  Call call("ibv_req_notify_cq");
  if (call.is_told()) call.arg("cq", name_of(queue)).arg("solicited_only", static_cast<unsigned>(solicited));
  const int error = call.make([&] { return ops_of(queue->context).req_notify_cq(queue, solicited); });
  call.returns(error);
  return error;
}

int post_send(ibv_qp* pair, ibv_send_wr* requests, ibv_send_wr** bad) {
  Call call("ibv_post_send");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("wr", requests_text(*pair, requests));
  const int error = call.make([&] { return ops_of(pair->context).post_send(pair, requests, bad); });
  call.returns(error);
  call.may_repeat();
  return error;
}

int post_recv(ibv_qp* pair, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Call call("ibv_post_recv");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("wr", requests_text(requests));
  const int error = call.make([&] { return ops_of(pair->context).post_recv(pair, requests, bad); });
  call.returns(error);
  call.may_repeat();
  return error;
}

int post_srq_recv(ibv_srq* queue, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Call call("ibv_post_srq_recv");
  if (call.is_told()) call.arg("srq", name_of(queue)).arg("wr", requests_text(requests));
  const int error = call.make([&] { return ops_of(queue->context).post_srq_recv(queue, requests, bad); });
  call.returns(error);
  call.may_repeat();
  return error;
}

ibv_mw* alloc_mw(ibv_pd* domain, ibv_mw_type type) {
  Call call("ibv_alloc_mw");
  if (call.is_told()) call.arg("pd", name_of(domain)).arg("type", static_cast<unsigned>(type));
  ibv_mw* const window = call.make([&] { return ops_of(domain->context).alloc_mw(domain, type); });
  call.returns_object(window, "mw");
  if (window != nullptr && call.is_told()) call.tell("rkey", hex_text(window->rkey));
  return window;
}

int dealloc_mw(ibv_mw* window) {
  Call call("ibv_dealloc_mw");
  if (call.is_told()) call.arg("mw", name_of(window));
  Ending<> ending(window);
  const int error = ending.ends(call.make([&] { return ops_of(window->context).dealloc_mw(window); }));
  call.returns(error);
  return error;
}

int bind_mw(ibv_qp* pair, ibv_mw* window, ibv_mw_bind* bind) {
  Call call("ibv_bind_mw");
  if (call.is_told()) {
    call.arg("qp", name_of(pair)).arg("mw", name_of(window)).hex("wr_id", bind->wr_id);
    call.arg("mr", name_of(bind->bind_info.mr)).hex("addr", bind->bind_info.addr).arg("length", bind->bind_info.length);
  }
  const int error = call.make([&] { return ops_of(pair->context).bind_mw(pair, window, bind); });
  call.returns(error);
  if (error == 0 && call.is_told()) call.tell("rkey", hex_text(window->rkey));
  return error;
}

}  // namespace

void trace_data_path(ibv_context& context) {
  ibv_context_ops& ops = context.ops;
  if (!originals<ibv_context_ops>().keep(&context, ops)) return;
  replace(ops.poll_cq, poll_cq);
  replace(ops.req_notify_cq, req_notify_cq);
  replace(ops.post_send, post_send);
  replace(ops.post_recv, post_recv);
  replace(ops.post_srq_recv, post_srq_recv);
  replace(ops.alloc_mw, alloc_mw);
  replace(ops.dealloc_mw, dealloc_mw);
  replace(ops.bind_mw, bind_mw);
  if (verbs_context* const extended = verbs_get_ctx(&context); extended != nullptr) trace_extended(*extended);
}

}  // namespace bypass::verbs_trace
