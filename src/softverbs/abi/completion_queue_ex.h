// What ibv_create_cq and ibv_create_cq_ex share.
#pragma once

#include "softverbs/abi/objects.h"

namespace bypass::softverbs {

/// Makes a completion queue of a context of ours; null: errno says why.
CompletionQueue* create_queue(ibv_context* context, std::uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
                              std::uint32_t vector);

}  // namespace bypass::softverbs
