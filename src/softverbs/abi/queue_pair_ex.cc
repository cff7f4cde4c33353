// Extended queue pairs: ibv_create_qp_ex, and requests that are built call by call (ibv_wr_*).
//
// Between ibv_wr_start and ibv_wr_complete only one thread uses the queue pair's batch, by a mutex, as hardware
// providers hold their send queue's lock. The adapter's lock is taken only to post.
#include "softverbs/abi/queue_pair_ex.h"

#include <cerrno>

#include "softverbs/abi/operations.h"

namespace bypass::softverbs {
namespace {

constexpr std::uint64_t kConnectedOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                               IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                               IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
constexpr std::uint64_t kReliableOperations = kConnectedOperations | IBV_QP_EX_WITH_RDMA_READ |
                                              IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                              IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

std::uint64_t operations_of(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
      return kReliableOperations;
    case IBV_QPT_UC:
      return kConnectedOperations;
    case IBV_QPT_UD:
      return IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    case IBV_QPT_RAW_PACKET:
      return IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
    default:
      return 0;
  }
}

RequestBatch& batch_of(ibv_qp_ex* qp) {
  return QueuePair::of(qp).batch;
}

// A new request with the id and flags that the program has set; its data follows.
rdma::SendRequest& add(ibv_qp_ex* qp, ibv_wr_opcode opcode) {
  RequestBatch& batch = batch_of(qp);
  RequestBatch::Request& made = batch.requests.emplace_back();
  made.first_sge = batch.sges.size();
  made.request.wr_id = qp->wr_id;
  made.request.flags = qp->wr_flags;
  made.request.opcode = opcode;
  return made.request;
}

rdma::SendRequest& add(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t remote_addr) {
  rdma::SendRequest& request = add(qp, opcode);
  request.rkey = rkey;
  request.remote_addr = remote_addr;
  return request;
}

// The request that is being built. Null if there is none: the batch has then failed.
RequestBatch::Request* last(ibv_qp_ex* qp) {
  RequestBatch& batch = batch_of(qp);
  if (!batch.requests.empty()) return &batch.requests.back();
  batch.error = EINVAL;
  return nullptr;
}

void set_sges(ibv_qp_ex* qp, std::span<const ibv_sge> sges) {
  RequestBatch::Request* const request = last(qp);
  if (request == nullptr) return;
  std::vector<ibv_sge>& all = batch_of(qp).sges;
  all.resize(request->first_sge);
  all.insert(all.end(), sges.begin(), sges.end());
  request->sges = sges.size();
  request->in_batch = false;
}

// The program may reuse inline bytes and headers at once, so they are copied until the batch is posted.
void keep(RequestBatch& batch, const void* bytes, std::size_t length) {
  const auto* const begin = static_cast<const std::byte*>(bytes);
  batch.inlined.insert(batch.inlined.end(), begin, begin + length);
}

void set_inline(ibv_qp_ex* qp, std::span<const ibv_data_buf> buffers) {
  RequestBatch::Request* const request = last(qp);
  if (request == nullptr) return;
  const std::vector<std::byte>& bytes = batch_of(qp).inlined;
  const std::size_t at = bytes.size();
  for (const ibv_data_buf& buffer : buffers) keep(batch_of(qp), buffer.addr, buffer.length);
  request->request.flags |= IBV_SEND_INLINE;
  const ibv_sge sge{at, static_cast<std::uint32_t>(bytes.size() - at), 0};
  set_sges(qp, {&sge, sge.length == 0 ? std::size_t{0} : std::size_t{1}});
  request->in_batch = true;
}

void wr_start(ibv_qp_ex* qp) {
  pthread_mutex_lock(&QueuePair::of(qp).batch_mutex);
  batch_of(qp).clear();
}

void wr_abort(ibv_qp_ex* qp) {
  pthread_mutex_unlock(&QueuePair::of(qp).batch_mutex);
}

// Sets the requests' elements, after the last one was added.
void join(RequestBatch& batch) {
  for (RequestBatch::Request& item : batch.requests) {
    const auto sges = std::span(batch.sges).subspan(item.first_sge, item.sges);
    if (item.in_batch && !sges.empty()) sges[0].addr += reinterpret_cast<std::uintptr_t>(batch.inlined.data());
    item.request.sges = sges;
    if (item.header_size != 0)
      item.request.tso_header = std::span(batch.inlined).subspan(item.header_at, item.header_size);
  }
}

// Posts all requests, or none if one is wrong or there is not room for all.
int post(QueuePair& pair, Adapter::Turn& turn) {
  RequestBatch& batch = pair.batch;
  if (batch.error != 0) return batch.error;
  if (batch.requests.size() > turn->send_room(*pair.engine)) return ENOMEM;
  join(batch);
  for (const RequestBatch::Request& item : batch.requests)
    if (const int error = turn->check_send(*pair.engine, item.request)) return error;
  for (const RequestBatch::Request& item : batch.requests)
    static_cast<void>(turn->post_send(*pair.engine, item.request));
  turn.post();
  return 0;
}

int wr_complete(ibv_qp_ex* qp) {
  QueuePair& pair = QueuePair::of(qp);
  int error = EIO;
  {
    Adapter::Turn turn(*Context::of(qp->qp_base.context).adapter);
    if (turn) error = post(pair, turn);
  }
  pthread_mutex_unlock(&pair.batch_mutex);
  return error;
}

void set_send_operations(QueuePair& pair) {
  pair.wr_send = [](ibv_qp_ex* qp) { add(qp, IBV_WR_SEND); };
  pair.wr_send_imm = [](ibv_qp_ex* qp, __be32 imm) { add(qp, IBV_WR_SEND_WITH_IMM).imm = imm; };
  pair.wr_send_inv = [](ibv_qp_ex* qp, std::uint32_t key) { add(qp, IBV_WR_SEND_WITH_INV).rkey = key; };
  pair.wr_local_inv = [](ibv_qp_ex* qp, std::uint32_t key) { add(qp, IBV_WR_LOCAL_INV).rkey = key; };
  pair.wr_bind_mw = [](ibv_qp_ex* qp, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* info) {
    rdma::SendRequest& request = add(qp, IBV_WR_BIND_MW);
    if (mw->type == IBV_MW_TYPE_2) set_bind(request, *mw, rkey, *info);
  };
  pair.wr_send_tso = [](ibv_qp_ex* qp, void* header, std::uint16_t bytes, std::uint16_t mss) {
    add(qp, IBV_WR_TSO).tso_mss = mss;
    RequestBatch::Request& item = batch_of(qp).requests.back();
    item.header_at = batch_of(qp).inlined.size();
    item.header_size = bytes;
    keep(batch_of(qp), header, bytes);
  };
}

void set_remote_operations(QueuePair& pair) {
  pair.wr_rdma_write = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr) {
    add(qp, IBV_WR_RDMA_WRITE, rkey, addr);
  };
  pair.wr_rdma_write_imm = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, __be32 imm) {
    add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr).imm = imm;
  };
  pair.wr_rdma_read = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr) {
    add(qp, IBV_WR_RDMA_READ, rkey, addr);
  };
  pair.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, std::uint64_t compare,
                              std::uint64_t swap) {
    rdma::SendRequest& request = add(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
    request.compare_add = compare;
    request.swap = swap;
  };
  pair.wr_atomic_fetch_add = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, std::uint64_t value) {
    add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr).compare_add = value;
  };
}

void set_data_setters(QueuePair& pair) {
  pair.wr_set_ud_addr = [](ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t remote_qpn, std::uint32_t remote_qkey) {
    RequestBatch::Request* const item = last(qp);
    if (item == nullptr) return;
    item->request.ah = AddressHandle::of(ah).engine;
    item->request.remote_qpn = remote_qpn;
    item->request.remote_qkey = remote_qkey;
  };
  pair.wr_set_xrc_srqn = [](ibv_qp_ex* qp, std::uint32_t remote_srqn) {
    RequestBatch::Request* const item = last(qp);
    if (item != nullptr) item->request.remote_srqn = remote_srqn;
  };
  pair.wr_set_inline_data = [](ibv_qp_ex* qp, void* addr, std::size_t length) {
    const ibv_data_buf buffer{addr, length};
    set_inline(qp, {&buffer, 1});
  };
  pair.wr_set_inline_data_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* buffers) {
    set_inline(qp, {buffers, count});
  };
  pair.wr_set_sge = [](ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length) {
    const ibv_sge sge{addr, length, lkey};
    set_sges(qp, {&sge, 1});
  };
  pair.wr_set_sge_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_sge* sges) { set_sges(qp, {sges, count}); };
  pair.wr_start = wr_start;
  pair.wr_complete = wr_complete;
  pair.wr_abort = wr_abort;
}

bool cuts_segments(ibv_context& context) {
  Adapter::Turn turn(*Context::of(&context).adapter);
  return turn && turn->max_tso() != 0;
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kMask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
                                  IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool extended = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if ((attr->comp_mask & ~kMask) != 0 ||
      ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0) ||
      (extended && (attr->send_ops_flags & ~operations_of(attr->qp_type)) != 0))
    return refuse<ibv_qp>(EOPNOTSUPP);
  // Receiving for an XRC domain needs that domain, everything else a protection domain.
  const bool receives = attr->qp_type == IBV_QPT_XRC_RECV;
  const auto needed = receives ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD;
  if ((attr->comp_mask & needed) == 0 || (receives ? attr->xrcd->context : attr->pd->context) != context)
    return refuse<ibv_qp>(EINVAL);
  if (extended && (attr->send_ops_flags & IBV_QP_EX_WITH_TSO) != 0 && !cuts_segments(*context))
    return refuse<ibv_qp>(EOPNOTSUPP);
  // Both structures begin with the same members, which are those of the older one.
  ibv_qp_init_attr base{attr->qp_context, attr->send_cq, attr->recv_cq,   attr->srq,
                        attr->cap,        attr->qp_type, attr->sq_sig_all};
  // A large segment's headers are stored like inline bytes.
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER) != 0)
    base.cap.max_inline_data = std::max(base.cap.max_inline_data, std::uint32_t{attr->max_tso_header});
  ibv_qp* const qp =
      create_queue_pair(*context, receives ? nullptr : attr->pd, receives ? &XrcDomain::of(attr->xrcd) : nullptr, base);
  if (qp == nullptr) return nullptr;
  attr->cap = base.cap;
  if (extended) {
    QueuePair& pair = QueuePair::of(qp);
    pair.extended = true;
    pair.batch.reserve(attr->cap);
    set_send_operations(pair);
    set_remote_operations(pair);
    set_data_setters(pair);
  }
  return qp;
}

}  // namespace bypass::softverbs
