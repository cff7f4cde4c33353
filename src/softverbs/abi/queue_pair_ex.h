// What ibv_create_qp and ibv_create_qp_ex share.
#pragma once

#include "softverbs/abi/objects.h"

namespace bypass::softverbs {

/// Makes a queue pair of a context of ours; `attr.cap` becomes what it got. Null: errno says why.
ibv_qp* create_queue_pair(ibv_pd* pd, ibv_qp_init_attr& attr);

}  // namespace bypass::softverbs
