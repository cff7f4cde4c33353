// Queue pairs that build requests call by call, and completion queues that are polled call by call.
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cerrno>

#include "verbs_trace/call.h"
#include "verbs_trace/data_path.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/originals.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

namespace bypass::verbs_trace {

namespace {

const ibv_qp_ex& ops_of(const ibv_qp_ex* pair) {
  return originals<ibv_qp_ex>().of(pair);
}

const ibv_cq_ex& ops_of(const ibv_cq_ex* queue) {
  return originals<ibv_cq_ex>().of(queue);
}

/// A request of that kind begins: its identifier and its flags lie in the queue pair.
Call& begin(Call& call, const ibv_qp_ex* pair) {
  if (call.is_told()) call.arg("qp", name_of(pair)).hex("wr_id", pair->wr_id).arg("flags", send_words(pair->wr_flags));
  return call;
}

void wr_start(ibv_qp_ex* pair) {
  Call call("ibv_wr_start");
  if (call.is_told()) call.arg("qp", name_of(pair));
  call.make([&] { ops_of(pair).wr_start(pair); });
}

int wr_complete(ibv_qp_ex* pair) {
  Call call("ibv_wr_complete");
  if (call.is_told()) call.arg("qp", name_of(pair));
  const int error = call.make([&] { return ops_of(pair).wr_complete(pair); });
  call.returns(error);
  return error;
}

void wr_abort(ibv_qp_ex* pair) {
  Call call("ibv_wr_abort");
  if (call.is_told()) call.arg("qp", name_of(pair));
  call.make([&] { ops_of(pair).wr_abort(pair); });
}

void wr_send(ibv_qp_ex* pair) {
  Call call("ibv_wr_send");
  begin(call, pair).make([&] { ops_of(pair).wr_send(pair); });
}

void wr_send_imm(ibv_qp_ex* pair, __be32 immediate) {
  Call call("ibv_wr_send_imm");
  begin(call, pair).hex("imm", ntohl(immediate)).make([&] { ops_of(pair).wr_send_imm(pair, immediate); });
}

void wr_send_inv(ibv_qp_ex* pair, std::uint32_t key) {
  Call call("ibv_wr_send_inv");
  begin(call, pair).hex("invalidate_rkey", key).make([&] { ops_of(pair).wr_send_inv(pair, key); });
}

void wr_send_tso(ibv_qp_ex* pair, void* header, std::uint16_t size, std::uint16_t mss) {
  Call call("ibv_wr_send_tso");
  begin(call, pair).arg("hdr_sz", size).arg("mss", mss).make([&] {
    ops_of(pair).wr_send_tso(pair, header, size, mss);
  });
}

void wr_rdma_write(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address) {
  Call call("ibv_wr_rdma_write");
  begin(call, pair).hex("rkey", key).hex("addr", address).make([&] { ops_of(pair).wr_rdma_write(pair, key, address); });
}

void wr_rdma_write_imm(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address, __be32 immediate) {
  Call call("ibv_wr_rdma_write_imm");
  begin(call, pair).hex("rkey", key).hex("addr", address).hex("imm", ntohl(immediate));
  call.make([&] { ops_of(pair).wr_rdma_write_imm(pair, key, address, immediate); });
}

void wr_rdma_read(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address) {
  Call call("ibv_wr_rdma_read");
  begin(call, pair).hex("rkey", key).hex("addr", address).make([&] { ops_of(pair).wr_rdma_read(pair, key, address); });
}

void wr_atomic_cmp_swp(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address, std::uint64_t compare,
                       std::uint64_t swap) {
  Call call("ibv_wr_atomic_cmp_swp");
  begin(call, pair).hex("rkey", key).hex("addr", address).hex("compare", compare).hex("swap", swap);
  call.make([&] { ops_of(pair).wr_atomic_cmp_swp(pair, key, address, compare, swap); });
}

void wr_atomic_fetch_add(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address, std::uint64_t add) {
  Call call("ibv_wr_atomic_fetch_add");
  begin(call, pair).hex("rkey", key).hex("addr", address).hex("add", add);
  call.make([&] { ops_of(pair).wr_atomic_fetch_add(pair, key, address, add); });
}

void wr_local_inv(ibv_qp_ex* pair, std::uint32_t key) {
  Call call("ibv_wr_local_inv");
  begin(call, pair).hex("invalidate_rkey", key).make([&] { ops_of(pair).wr_local_inv(pair, key); });
}

void wr_bind_mw(ibv_qp_ex* pair, ibv_mw* window, std::uint32_t key, const ibv_mw_bind_info* bind) {
  Call call("ibv_wr_bind_mw");
  begin(call, pair).arg("mw", call.is_told() ? name_of(window) : "").hex("rkey", key);
  call.make([&] { ops_of(pair).wr_bind_mw(pair, window, key, bind); });
}

void wr_set_ud_addr(ibv_qp_ex* pair, ibv_ah* handle, std::uint32_t number, std::uint32_t key) {
  Call call("ibv_wr_set_ud_addr");
  if (call.is_told())
    call.arg("qp", name_of(pair)).arg("ah", name_of(handle)).hex("remote_qpn", number).hex("qkey", key);
  call.make([&] { ops_of(pair).wr_set_ud_addr(pair, handle, number, key); });
}

void wr_set_xrc_srqn(ibv_qp_ex* pair, std::uint32_t number) {
  Call call("ibv_wr_set_xrc_srqn");
  if (call.is_told()) call.arg("qp", name_of(pair)).hex("remote_srqn", number);
  call.make([&] { ops_of(pair).wr_set_xrc_srqn(pair, number); });
}

void wr_set_inline_data(ibv_qp_ex* pair, void* data, std::size_t length) {
  Call call("ibv_wr_set_inline_data");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("length", length);
  call.make([&] { ops_of(pair).wr_set_inline_data(pair, data, length); });
}

void wr_set_inline_data_list(ibv_qp_ex* pair, std::size_t count, const ibv_data_buf* list) {
  Call call("ibv_wr_set_inline_data_list");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("num_buf", count);
  call.make([&] { ops_of(pair).wr_set_inline_data_list(pair, count, list); });
}

void wr_set_sge(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address, std::uint32_t length) {
  Call call("ibv_wr_set_sge");
  if (call.is_told()) call.arg("qp", name_of(pair)).hex("lkey", key).arg("length", length);
  call.make([&] { ops_of(pair).wr_set_sge(pair, key, address, length); });
}

void wr_set_sge_list(ibv_qp_ex* pair, std::size_t count, const ibv_sge* list) {
  Call call("ibv_wr_set_sge_list");
  if (call.is_told()) call.arg("qp", name_of(pair)).arg("num_sge", count);
  call.make([&] { ops_of(pair).wr_set_sge_list(pair, count, list); });
}

void tell_completion(Call& call, ibv_cq_ex* queue) {
  if (!call.is_told()) return;
  call.tell("wr_id", hex_text(queue->wr_id));
  call.tell("status", status_word(queue->status));
  if (queue->status != IBV_WC_SUCCESS || queue->read_opcode == nullptr) return;
  call.tell("opcode", completion_word(queue->read_opcode(queue)));
}

/// ENOENT says that there is no completion, which is no failure.
int polled(Call& call, ibv_cq_ex* queue, int error) {
  call.returns(error == ENOENT ? 0 : error);
  if (error == ENOENT) {
    call.tell("completions", "none");
    call.may_repeat();
  } else if (error == 0) {
    tell_completion(call, queue);
  }
  return error;
}

int start_poll(ibv_cq_ex* queue, ibv_poll_cq_attr* attributes) {
  Call call("ibv_start_poll");
  if (call.is_told()) call.arg("cq", name_of(queue));
  return polled(call, queue, call.make([&] { return ops_of(queue).start_poll(queue, attributes); }));
}

int next_poll(ibv_cq_ex* queue) {
  Call call("ibv_next_poll");
  if (call.is_told()) call.arg("cq", name_of(queue));
  return polled(call, queue, call.make([&] { return ops_of(queue).next_poll(queue); }));
}

void end_poll(ibv_cq_ex* queue) {
  Call call("ibv_end_poll");
  if (call.is_told()) call.arg("cq", name_of(queue));
  call.make([&] { ops_of(queue).end_poll(queue); });
}

}  // namespace

void trace_requests(ibv_qp_ex& pair) {
  if (!originals<ibv_qp_ex>().keep(&pair, pair)) return;
  replace(pair.wr_start, wr_start);
  replace(pair.wr_complete, wr_complete);
  replace(pair.wr_abort, wr_abort);
  replace(pair.wr_send, wr_send);
  replace(pair.wr_send_imm, wr_send_imm);
  replace(pair.wr_send_inv, wr_send_inv);
  replace(pair.wr_send_tso, wr_send_tso);
  replace(pair.wr_rdma_write, wr_rdma_write);
  replace(pair.wr_rdma_write_imm, wr_rdma_write_imm);
  replace(pair.wr_rdma_read, wr_rdma_read);
  replace(pair.wr_atomic_cmp_swp, wr_atomic_cmp_swp);
  replace(pair.wr_atomic_fetch_add, wr_atomic_fetch_add);
  replace(pair.wr_local_inv, wr_local_inv);
  replace(pair.wr_bind_mw, wr_bind_mw);
  replace(pair.wr_set_ud_addr, wr_set_ud_addr);
  replace(pair.wr_set_xrc_srqn, wr_set_xrc_srqn);
  replace(pair.wr_set_inline_data, wr_set_inline_data);
  replace(pair.wr_set_inline_data_list, wr_set_inline_data_list);
  replace(pair.wr_set_sge, wr_set_sge);
  replace(pair.wr_set_sge_list, wr_set_sge_list);
}

void trace_polls(ibv_cq_ex& queue) {
  if (!originals<ibv_cq_ex>().keep(&queue, queue)) return;
  replace(queue.start_poll, start_poll);
  replace(queue.next_poll, next_poll);
  replace(queue.end_poll, end_poll);
}

}  // namespace bypass::verbs_trace
