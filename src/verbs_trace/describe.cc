#include "verbs_trace/describe.h"

#include <arpa/inet.h>

#include "verbs_trace/call.h"
#include "verbs_trace/objects.h"
#include "verbs_trace/output.h"
#include "verbs_trace/words.h"

namespace bypass::verbs_trace {

namespace {

std::uint64_t bytes_of(const ibv_sge* list, int count) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += list[i].length;
  return bytes;
}

std::string size_text(const ibv_sge* list, int count) {
  std::string text = std::to_string(bytes_of(list, count)) + " B";
  if (count > 0) text += " lkey " + hex_text(list[0].lkey);
  if (count > 1) text += " of " + std::to_string(count) + " pieces";
  return text;
}

std::string remote_text(std::uint64_t address, std::uint32_t key) {
  return " at " + hex_text(address) + " rkey " + hex_text(key);
}

std::string target_text(const ibv_qp& qp, const ibv_send_wr& request) {
  switch (request.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      return remote_text(request.wr.rdma.remote_addr, request.wr.rdma.rkey);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return remote_text(request.wr.atomic.remote_addr, request.wr.atomic.rkey) + " compare " +
             hex_text(request.wr.atomic.compare_add) + " swap " + hex_text(request.wr.atomic.swap);
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return remote_text(request.wr.atomic.remote_addr, request.wr.atomic.rkey) + " add " +
             hex_text(request.wr.atomic.compare_add);
    case IBV_WR_LOCAL_INV:
    case IBV_WR_SEND_WITH_INV:
      return " invalidates rkey " + hex_text(request.invalidate_rkey);
    case IBV_WR_BIND_MW:
      return " binds " + name_of(request.bind_mw.mw) + " rkey " + hex_text(request.bind_mw.rkey);
    default:
      break;
  }
  if (qp.qp_type == IBV_QPT_UD) return " to " + name_of(request.wr.ud.ah) + " qp " + hex_text(request.wr.ud.remote_qpn);
  return "";
}

}  // namespace

std::string requests_text(const ibv_qp& qp, const ibv_send_wr* list) {
  std::string text;
  for (; list != nullptr; list = list->next) {
    if (!text.empty()) text += "; ";
    text += opcode_word(list->opcode) + " wr_id " + hex_text(list->wr_id) + ' ' +
            size_text(list->sg_list, list->num_sge) + ' ' + send_words(list->send_flags) + target_text(qp, *list);
    if (list->opcode == IBV_WR_SEND_WITH_IMM || list->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
      text += " imm " + hex_text(ntohl(list->imm_data));
    if (qp.qp_type == IBV_QPT_XRC_SEND) text += " srq " + hex_text(list->qp_type.xrc.remote_srqn);
  }
  return text;
}

std::string requests_text(const ibv_recv_wr* list) {
  std::string text;
  for (; list != nullptr; list = list->next) {
    if (!text.empty()) text += "; ";
    text += "wr_id " + hex_text(list->wr_id) + ' ' + size_text(list->sg_list, list->num_sge);
  }
  return text;
}

std::string completion_text(const ibv_wc& completion) {
  std::string text = "wr_id " + hex_text(completion.wr_id) + ' ' + status_word(completion.status);
  text += " qp " + hex_text(completion.qp_num);
  if (completion.status != IBV_WC_SUCCESS) return text + " vendor_err " + hex_text(completion.vendor_err);
  text += ' ' + completion_word(completion.opcode);
  if ((completion.opcode & IBV_WC_RECV) == 0) return text;
  text += ' ' + std::to_string(completion.byte_len) + " B";
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) text += " imm " + hex_text(ntohl(completion.imm_data));
  if ((completion.wc_flags & IBV_WC_WITH_INV) != 0) text += " invalidated " + hex_text(completion.invalidated_rkey);
  if ((completion.wc_flags & IBV_WC_GRH) != 0) text += " GRH";
  if (completion.src_qp != 0) text += " from qp " + hex_text(completion.src_qp);
  return text;
}

void describe(Call& call, const ibv_ah_attr& address) {
  if (address.is_global != 0) {
    call.arg("dgid", gid_text(address.grh.dgid)).arg("sgid_index", address.grh.sgid_index);
    call.arg("hop_limit", address.grh.hop_limit).arg("traffic_class", address.grh.traffic_class);
  } else {
    call.arg("dlid", address.dlid);
  }
  call.arg("sl", address.sl).arg("port", address.port_num);
}

void describe(Call& call, const ibv_qp_cap& capacities) {
  call.arg("max_send_wr", capacities.max_send_wr).arg("max_recv_wr", capacities.max_recv_wr);
  call.arg("max_send_sge", capacities.max_send_sge).arg("max_recv_sge", capacities.max_recv_sge);
  call.arg("max_inline_data", capacities.max_inline_data);
}

void describe(Call& call, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PKEY_INDEX) != 0) call.arg("pkey_index", attributes.pkey_index);
  if ((mask & IBV_QP_PORT) != 0) call.arg("port", attributes.port_num);
  if ((mask & IBV_QP_QKEY) != 0) call.hex("qkey", attributes.qkey);
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) call.arg("access", access_words(attributes.qp_access_flags));
  if ((mask & IBV_QP_AV) != 0) describe(call, attributes.ah_attr);
  if ((mask & IBV_QP_PATH_MTU) != 0) call.arg("path_mtu", mtu_word(attributes.path_mtu));
  if ((mask & IBV_QP_DEST_QPN) != 0) call.hex("dest_qp", attributes.dest_qp_num);
  if ((mask & IBV_QP_RQ_PSN) != 0) call.hex("rq_psn", attributes.rq_psn);
  if ((mask & IBV_QP_SQ_PSN) != 0) call.hex("sq_psn", attributes.sq_psn);
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) call.arg("max_dest_rd_atomic", attributes.max_dest_rd_atomic);
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) call.arg("max_rd_atomic", attributes.max_rd_atomic);
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) call.arg("min_rnr_timer", attributes.min_rnr_timer);
  if ((mask & IBV_QP_TIMEOUT) != 0) call.arg("timeout", attributes.timeout);
  if ((mask & IBV_QP_RETRY_CNT) != 0) call.arg("retry_cnt", attributes.retry_cnt);
  if ((mask & IBV_QP_RNR_RETRY) != 0) call.arg("rnr_retry", attributes.rnr_retry);
  if ((mask & IBV_QP_RATE_LIMIT) != 0) call.arg("rate_limit_kbps", attributes.rate_limit);
  if ((mask & IBV_QP_CAP) != 0) describe(call, attributes.cap);
}

}  // namespace bypass::verbs_trace
