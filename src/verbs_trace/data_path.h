// Verbs that libibverbs' header has inline: they go through pointers in the device's context, in extended queue pairs
// and in extended completion queues. The trace puts its own functions there, and keeps the device's.
#pragma once

#include <infiniband/verbs.h>

namespace bypass::verbs_trace {

/// Called once a context, before the program has it.
void trace_data_path(ibv_context& context);
/// For a queue pair that builds its requests call by call (ibv_wr_start(3)).
void trace_requests(ibv_qp_ex& pair);
/// For a completion queue that is polled call by call (ibv_start_poll).
void trace_polls(ibv_cq_ex& queue);

}  // namespace bypass::verbs_trace
