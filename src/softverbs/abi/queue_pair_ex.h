// What ibv_create_qp and ibv_create_qp_ex share.
#pragma once

#include "softverbs/abi/objects.h"

namespace bypass::softverbs {

/// Makes a queue pair of a context of ours; `attr.cap` becomes what it got. One that receives for an XRC domain has
/// that, and no protection domain; any other has a protection domain alone. Null: errno says why.
ibv_qp* create_queue_pair(ibv_context& context, ibv_pd* pd, XrcDomain* xrcd, ibv_qp_init_attr& attr);

/// Makes the request one that binds the window.
void set_bind(rdma::SendRequest& request, ibv_mw& mw, std::uint32_t rkey, const ibv_mw_bind_info& info);

/// The handle is no longer one of the openings of its queue pair. Within a turn.
void leave_openings(QueuePair& pair);

}  // namespace bypass::softverbs
