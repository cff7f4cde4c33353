// Extended completion queues: ibv_start_poll, ibv_next_poll, and a function for each field of a completion.
//
// The polling thread holds a lock of the queue from start to end, as with hardware providers. The adapter's lock is
// taken once for up to 16 completions.
#include "softverbs/abi/completion_queue_ex.h"

#include <sched.h>
#include <time.h>

#include <cerrno>
#include <utility>

#include "softverbs/abi/operations.h"

namespace bypass::softverbs {
namespace {

constexpr std::uint64_t kFields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                                  IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                                  IBV_WC_EX_WITH_DLID_PATH_BITS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                  IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

const rdma::Completion& current(ibv_cq_ex* cq) {
  const CompletionQueue& queue = CompletionQueue::of(cq);
  return queue.oldest[queue.place];
}

int show(CompletionQueue& queue) {
  const ibv_wc& wc = queue.oldest[queue.place].wc;
  queue.status = wc.status;
  queue.wr_id = wc.wr_id;
  return 0;
}

// Takes off the completions that were looked at, and looks for more. `idle`: there was nothing for a while.
int refill(CompletionQueue& queue, bool& idle) {
  Adapter::Turn turn(*Context::of(queue.context).adapter);
  if (!turn) return EIO;
  turn->pop(*queue.engine, std::exchange(queue.oldest_count, 0));
  queue.place = 0;
  queue.oldest_count = turn->peek(*queue.engine, queue.oldest);
  if (queue.oldest_count == 0) {
    turn.look(queue.looks_seen);
    queue.oldest_count = turn->peek(*queue.engine, queue.oldest);
  }
  idle = turn.found(queue.oldest_count);
  return queue.oldest_count != 0 ? show(queue) : ENOENT;
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0) return EINVAL;
  CompletionQueue& queue = CompletionQueue::of(cq);
  bool idle = false;
  pthread_mutex_lock(&queue.polling);
  const int error = refill(queue, idle);
  if (error != 0) pthread_mutex_unlock(&queue.polling);
  if (idle) sched_yield();
  return error;
}

int next_poll(ibv_cq_ex* cq) {
  CompletionQueue& queue = CompletionQueue::of(cq);
  bool idle = false;
  if (queue.place + 1 >= queue.oldest_count) return refill(queue, idle);
  queue.place++;
  return show(queue);
}

// Completions that were not looked at stay for the next poll.
void end_poll(ibv_cq_ex* cq) {
  CompletionQueue& queue = CompletionQueue::of(cq);
  const std::size_t seen = std::exchange(queue.oldest_count, 0) == 0 ? 0 : queue.place + 1;
  if (seen != 0) {
    Adapter::Turn turn(*Context::of(queue.context).adapter);
    if (turn) turn->pop(*queue.engine, seen);
  }
  pthread_mutex_unlock(&queue.polling);
}

std::uint64_t timestamp(ibv_cq_ex* cq) {
  return static_cast<std::uint64_t>(current(cq).at.time_since_epoch().count());
}

// The engine's clock is steady. The wall-clock time follows from the present difference of the two.
std::uint64_t wallclock(ibv_cq_ex* cq) {
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const Duration age = Context::of(cq->context).adapter->now() - current(cq).at;
  return static_cast<std::uint64_t>(wall.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(wall.tv_nsec) -
         static_cast<std::uint64_t>(age.count());
}

void set_readers(CompletionQueue& queue, std::uint64_t fields) {
  queue.start_poll = start_poll;
  queue.next_poll = next_poll;
  queue.end_poll = end_poll;
  queue.read_opcode = [](ibv_cq_ex* cq) { return current(cq).wc.opcode; };
  queue.read_vendor_err = [](ibv_cq_ex* cq) { return current(cq).wc.vendor_err; };
  queue.read_wc_flags = [](ibv_cq_ex* cq) { return current(cq).wc.wc_flags; };
  if ((fields & IBV_WC_EX_WITH_BYTE_LEN) != 0)
    queue.read_byte_len = [](ibv_cq_ex* cq) { return current(cq).wc.byte_len; };
  if ((fields & IBV_WC_EX_WITH_IMM) != 0) queue.read_imm_data = [](ibv_cq_ex* cq) { return current(cq).wc.imm_data; };
  if ((fields & IBV_WC_EX_WITH_QP_NUM) != 0) queue.read_qp_num = [](ibv_cq_ex* cq) { return current(cq).wc.qp_num; };
  if ((fields & IBV_WC_EX_WITH_SRC_QP) != 0) queue.read_src_qp = [](ibv_cq_ex* cq) { return current(cq).wc.src_qp; };
  if ((fields & IBV_WC_EX_WITH_SLID) != 0)
    queue.read_slid = [](ibv_cq_ex* cq) -> std::uint32_t { return current(cq).wc.slid; };
  if ((fields & IBV_WC_EX_WITH_SL) != 0) queue.read_sl = [](ibv_cq_ex* cq) { return current(cq).wc.sl; };
  if ((fields & IBV_WC_EX_WITH_DLID_PATH_BITS) != 0)
    queue.read_dlid_path_bits = [](ibv_cq_ex* cq) { return current(cq).wc.dlid_path_bits; };
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) queue.read_completion_ts = timestamp;
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) queue.read_completion_wallclock_ns = wallclock;
  if ((fields & IBV_WC_EX_WITH_FLOW_TAG) != 0) queue.read_flow_tag = [](ibv_cq_ex* cq) { return current(cq).flow_tag; };
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
