// Extended completion queues: ibv_start_poll, ibv_next_poll, and a function for each field of a completion.
//
// A completion is taken out of the queue when it is looked at, so no lock is held between start and end.
#include "softverbs/abi/completion_queue_ex.h"

#include <sched.h>
#include <time.h>

#include <cerrno>

#include "softverbs/abi/operations.h"

namespace bypass::softverbs {
namespace {

constexpr std::uint64_t kFields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                                  IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                                  IBV_WC_EX_WITH_DLID_PATH_BITS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                  IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

bool take(CompletionQueue& queue) {
  const rdma::Completion* const front = rdma::Device::front(*queue.engine);
  if (front == nullptr) return false;
  queue.current = *front;
  rdma::Device::pop(*queue.engine);
  queue.status = queue.current.wc.status;
  queue.wr_id = queue.current.wc.wr_id;
  return true;
}

int next_poll(ibv_cq_ex* cq) {
  CompletionQueue& queue = CompletionQueue::of(cq);
  bool found = false;
  bool others_turn = false;
  {
    Adapter::Turn turn(*Context::of(cq->context).adapter);
    if (!turn) return EIO;
    found = take(queue);
    if (!found) {
      turn.look();
      found = take(queue);
    }
    others_turn = turn.found(found ? 1 : 0);
  }
  if (others_turn) sched_yield();
  return found ? 0 : ENOENT;
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  return attr->comp_mask != 0 ? EINVAL : next_poll(cq);
}

void end_poll(ibv_cq_ex* /*cq*/) {}

const ibv_wc& current(ibv_cq_ex* cq) {
  return CompletionQueue::of(cq).current.wc;
}

std::uint64_t timestamp(ibv_cq_ex* cq) {
  return static_cast<std::uint64_t>(CompletionQueue::of(cq).current.at.time_since_epoch().count());
}

// The engine's clock is steady; what it was by the wall then follows from how far both are apart now.
std::uint64_t wallclock(ibv_cq_ex* cq) {
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const Duration age = Context::of(cq->context).adapter->now() - CompletionQueue::of(cq).current.at;
  return static_cast<std::uint64_t>(wall.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(wall.tv_nsec) -
         static_cast<std::uint64_t>(age.count());
}

void set_readers(CompletionQueue& queue, std::uint64_t fields) {
  queue.start_poll = start_poll;
  queue.next_poll = next_poll;
  queue.end_poll = end_poll;
  queue.read_opcode = [](ibv_cq_ex* cq) { return current(cq).opcode; };
  queue.read_vendor_err = [](ibv_cq_ex* cq) { return current(cq).vendor_err; };
  queue.read_wc_flags = [](ibv_cq_ex* cq) { return current(cq).wc_flags; };
  if ((fields & IBV_WC_EX_WITH_BYTE_LEN) != 0) queue.read_byte_len = [](ibv_cq_ex* cq) { return current(cq).byte_len; };
  if ((fields & IBV_WC_EX_WITH_IMM) != 0) queue.read_imm_data = [](ibv_cq_ex* cq) { return current(cq).imm_data; };
  if ((fields & IBV_WC_EX_WITH_QP_NUM) != 0) queue.read_qp_num = [](ibv_cq_ex* cq) { return current(cq).qp_num; };
  if ((fields & IBV_WC_EX_WITH_SRC_QP) != 0) queue.read_src_qp = [](ibv_cq_ex* cq) { return current(cq).src_qp; };
  if ((fields & IBV_WC_EX_WITH_SLID) != 0)
    queue.read_slid = [](ibv_cq_ex* cq) -> std::uint32_t { return current(cq).slid; };
  if ((fields & IBV_WC_EX_WITH_SL) != 0) queue.read_sl = [](ibv_cq_ex* cq) { return current(cq).sl; };
  if ((fields & IBV_WC_EX_WITH_DLID_PATH_BITS) != 0)
    queue.read_dlid_path_bits = [](ibv_cq_ex* cq) { return current(cq).dlid_path_bits; };
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) queue.read_completion_ts = timestamp;
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) queue.read_completion_wallclock_ns = wallclock;
  if ((fields & IBV_WC_EX_WITH_FLOW_TAG) != 0)
    queue.read_flow_tag = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.flow_tag; };
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr std::uint32_t kFlags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  const bool has_flags = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
  if ((attr->comp_mask & ~static_cast<std::uint32_t>(IBV_CQ_INIT_ATTR_MASK_FLAGS)) != 0 ||
      (has_flags && (attr->flags & ~kFlags) != 0) || (attr->wc_flags & ~kFields) != 0)
    return refuse<ibv_cq_ex>(EOPNOTSUPP);
  CompletionQueue* const queue = create_queue(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
  if (queue != nullptr) set_readers(*queue, attr->wc_flags);
  return queue;
}

}  // namespace bypass::softverbs
