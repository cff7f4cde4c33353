// Memory windows: making them, and binding those of type 1. Those of type 2 are bound by requests (IBV_WR_BIND_MW).
#include <cerrno>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/queue_pair_ex.h"

namespace bypass::softverbs {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  Context& ours = Context::of(pd->context);
  const Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<ibv_mw>(EIO);
  const auto made = turn->alloc_mw(*ProtectionDomain::of(pd).engine, type);
  if (made.error != 0) return refuse<ibv_mw>(made.error);
  auto* const mw = new MemoryWindow;
  mw->engine = made.object;
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = type;
  mw->rkey = mw->handle = rdma::Device::rkey(*made.object);
  ours.mws.push_back(*mw);
  return mw;
}

int dealloc_mw(ibv_mw* mw) {
  const Adapter::Turn turn(*Context::of(mw->context).adapter);
  MemoryWindow* const window = &MemoryWindow::of(mw);
  if (turn) turn->dealloc_mw(*window->engine);
  delete window;
  return 0;
}

// The key is the device's to choose, and is valid when the request has completed.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  Adapter::Turn turn(*Context::of(qp->context).adapter);
  if (!turn) return EIO;
  const std::uint32_t rkey = ibv_inc_rkey(mw->rkey);
  rdma::SendRequest request;
  request.wr_id = bind->wr_id;
  request.flags = bind->send_flags;
  set_bind(request, *mw, rkey, bind->bind_info);
  const int error = turn->post_send(*QueuePair::of(qp).engine, request);
  if (error != 0) return error;
  mw->rkey = rkey;
  turn.post();
  return 0;
}

}  // namespace bypass::softverbs
