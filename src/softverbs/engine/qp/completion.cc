// Completions, their notifications, and the requests that they complete.
#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_TSO:
      return IBV_WC_TSO;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

void overflow(Engine& e, Qp& qp, Cq& cq) {
  if (!cq.overrun) e.post_event(cq, IBV_EVENT_CQ_ERR);
  cq.overrun = true;
  qp.doomed = true;  // not at once: the caller is working on its queues
  wake(e, qp);
}

}  // namespace

void complete(Engine& e, Qp& qp, Cq& cq, Completion& completion, bool solicited) {
  if (cq.is_full() || cq.overrun) {
    overflow(e, qp, cq);
    return;
  }
  completion.wc.qp_num = qp.qpn;
  completion.at = e.now;
  if (completion.of_send) qp.sq.unpolled++;
  cq.at(cq.tail++) = completion;
  const bool noticed = solicited || completion.wc.status != IBV_WC_SUCCESS;
  if (cq.notify == Notify::kAny || (cq.notify == Notify::kSolicited && noticed)) {
    cq.notify = Notify::kNo;
    e.notifications.push(cq);
  }
}

void complete_send(Engine& e, Qp& qp, const SendWqe& w, ibv_wc_status status) {
  const bool told = qp.sq_sig_all || (w.flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS;
  if (!told) return;
  Completion completion;
  completion.wc.wr_id = w.wr_id;
  completion.wc.status = status;
  completion.wc.opcode = completion_opcode(w.opcode);
  completion.of_send = true;
  if (w.wants_data()) completion.wc.byte_len = w.length;
  complete(e, qp, *qp.send_cq, completion, false);
}

// A queue pair that has ended or was reset (reset()) has no completions left.
void give_place_back(const Engine& e, const Completion& completion) {
  if (completion.of_send) e.find_qp(completion.wc.qp_num)->sq.unpolled--;
}

// A datagram's completion tells which header lies in front of the data (Annex A17.4.5.1). libibverbs has no field for
// that, so cards of the mlx5 driver use the service level: bit 3 says RoCE v2, the bits below say which IP. UCX relies
// on that.
constexpr std::uint8_t kRoceV2OverIpv6 = 8 | 1, kRoceV2OverIpv4 = 8 | 2;

void complete_receive(Engine& e, Qp& qp, ibv_wc_status status, const RocePacket* packet, ibv_wc_opcode opcode,
                      std::uint32_t bytes) {
  qp.resp.has_receive = false;
  Completion completion;
  completion.wc.wr_id = qp.resp.wr_id;
  completion.wc.status = status;
  completion.wc.opcode = opcode;
  completion.wc.byte_len = bytes;
  if (packet != nullptr && (packet->traits & kOpImm) != 0) {
    completion.wc.wc_flags |= IBV_WC_WITH_IMM;
    completion.wc.imm_data = packet->imm();
  }
  if (packet != nullptr && (packet->traits & kOpInv) != 0) {
    completion.wc.wc_flags |= IBV_WC_WITH_INV;
    completion.wc.invalidated_rkey = packet->invalidated();
  }
  if (packet != nullptr && packet->service == kServiceUd) {
    completion.wc.wc_flags |= IBV_WC_GRH;
    completion.wc.sl = packet->destination.is_v4() ? kRoceV2OverIpv4 : kRoceV2OverIpv6;
    completion.wc.src_qp = packet->at<Deth>(packet->extension).source_qpn & kQpnMask;
  } else {
    completion.wc.src_qp = qp.attr.dest_qp_num;
  }
  Cq& cq = qp.type == IBV_QPT_XRC_RECV ? *qp.resp.srq->cq : *qp.receive_cq;
  complete(e, qp, cq, completion, packet != nullptr && packet->solicited);
}

}  // namespace bypass::rdma
