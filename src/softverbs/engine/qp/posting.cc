// Posting requests: what a request must be, and how it takes its place in a queue.
// Tests: tests/softverbs/refusal_test.cc, tests/softverbs/queue_test.cc.
#include <cerrno>
#include <cstring>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

bool operation_fits(const Qp& qp, ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
      return true;
    case IBV_WR_SEND_WITH_INV:
      return qp.is_reliable();
    case IBV_WR_BIND_MW:
    case IBV_WR_LOCAL_INV:
      return qp.is_reliable() || qp.type == IBV_QPT_UC;
    case IBV_WR_SEND_WITH_IMM:
      return qp.type != IBV_QPT_RAW_PACKET;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return qp.is_reliable() || qp.type == IBV_QPT_UC;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return qp.is_reliable();
    case IBV_WR_TSO:
      return qp.type == IBV_QPT_RAW_PACKET;
    default:
      return false;
  }
}

std::uint64_t length_of(const SendRequest& request) {
  std::uint64_t length = 0;
  for (const ibv_sge& sge : request.sges) length += sge.length;
  return length;
}

bool tso_fits(const Engine& e, const Qp& qp, const SendRequest& request) {
  const PortCaps& caps = e.tx.port().caps();
  return caps.tso && caps.tx_l4_checksum && length_of(request) <= caps.tso_max_bytes && request.tso_mss != 0 &&
         request.tso_header.size() <= qp.cap.max_inline_data && (request.flags & IBV_SEND_INLINE) == 0;
}

int check_request(const Engine& e, const Qp& qp, const SendRequest& request) {
  const bool is_atomic = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  // Checked before the elements are read: a negative count of the program is a large number.
  if (qp.type == IBV_QPT_XRC_RECV || !operation_fits(qp, request.opcode) || request.sges.size() > qp.cap.max_send_sge)
    return EINVAL;
  const std::uint64_t length = length_of(request);
  if (length > e.config.limits.max_message) return EINVAL;
  if (request.opcode == IBV_WR_BIND_MW && request.window == nullptr) return EINVAL;
  if (is_atomic && (length < 8 || (request.remote_addr & 7) != 0)) return EINVAL;
  const bool inlined = (request.flags & IBV_SEND_INLINE) != 0;
  if (inlined && (length > qp.cap.max_inline_data || request.opcode == IBV_WR_RDMA_READ || is_atomic)) return EINVAL;
  if (qp.is_datagram() && (request.ah == nullptr || request.ah->pd != qp.pd)) return EINVAL;
  if (request.opcode == IBV_WR_TSO && !tso_fits(e, qp, request)) return EINVAL;
  return 0;
}

void copy_inline(std::byte* to, std::span<const ibv_sge> sges) {
  for (const ibv_sge& sge : sges) {
    if (sge.length == 0) continue;
    std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);  // the program's own pointer
    to += sge.length;
  }
}

void fill_wqe(Engine& e, Qp& qp, std::uint32_t n, const SendRequest& request) {
  SendWqe& w = qp.sq.at(n);
  w = SendWqe{};
  w.wr_id = request.wr_id;
  w.opcode = request.opcode;
  w.flags = request.flags;
  w.imm = request.imm;
  w.remote_addr = request.remote_addr;
  w.rkey = request.rkey;
  w.compare_add = request.compare_add;
  w.swap = request.swap;
  w.remote_qpn = request.remote_qpn & kQpnMask;
  w.remote_qkey = request.remote_qkey;
  w.remote_srqn = request.remote_srqn & kQpnMask;
  if (w.opcode == IBV_WR_BIND_MW) {
    w.remote_addr = request.bind_addr;
    w.compare_add = request.bind_length;
    w.swap = request.bind_access;
    w.window_place = MemoryTable::place(request.window->key);
    w.region_key = request.region != nullptr ? request.region->key : 0;
  }
  if (w.is_local()) {
    w.flags &= ~unsigned{IBV_SEND_INLINE};
    return;
  }
  w.length = w.is_atomic() ? 8 : static_cast<std::uint32_t>(length_of(request));
  if ((w.flags & IBV_SEND_INLINE) != 0) {
    copy_inline(qp.sq.inlined(n), request.sges);
  } else {
    w.sges = static_cast<std::uint16_t>(request.sges.size());
    std::ranges::copy(request.sges, qp.sq.sges(n));
  }
  if (w.opcode == IBV_WR_TSO) {
    w.tso_header = static_cast<std::uint16_t>(request.tso_header.size());
    w.tso_mss = request.tso_mss;
    std::ranges::copy(request.tso_header, qp.sq.inlined(n));
  }
  if (qp.is_datagram()) {
    qp.sq.path(n) = request.ah->path;
    hold_path(e, qp.sq.path(n));
  }
}

void flush_now(Engine& e, Qp& qp, const SendRequest& request) {
  SendWqe w;
  w.wr_id = request.wr_id;
  w.opcode = request.opcode;
  complete_send(e, qp, w, IBV_WC_WR_FLUSH_ERR);
}

}  // namespace

int Device::check_send(const Qp& qp, const SendRequest& request) const {
  const ibv_qp_state state = qp.state();
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) return EINVAL;
  return check_request(*engine_, qp, request);
}

int Device::post_send(Qp& qp, const SendRequest& request) {
  Engine& e = *engine_;
  if (const int error = check_send(qp, request)) return error;
  if (qp.sq.room() == 0) return ENOMEM;
  if (qp.state() == IBV_QPS_ERR) {
    flush_now(e, qp, request);
    return 0;
  }
  fill_wqe(e, qp, qp.sq.tail, request);
  qp.sq.tail++;
  wake(e, qp);
  return 0;
}

std::uint32_t Device::send_room(const Qp& qp) {
  return qp.sq.room();
}

int Device::post_receive(Qp& qp, const ReceiveRequest& request) {
  Engine& e = *engine_;
  if (qp.srq != nullptr || qp.is_xrc() || qp.state() == IBV_QPS_RESET) return EINVAL;
  if (qp.state() != IBV_QPS_ERR) return qp.rq.post(request);
  if (request.sges.size() > qp.rq.max_sge()) return EINVAL;
  qp.resp.wr_id = request.wr_id;
  complete_receive(e, qp, IBV_WC_WR_FLUSH_ERR, nullptr, IBV_WC_RECV, 0);
  return 0;
}

}  // namespace bypass::rdma
