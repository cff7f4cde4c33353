// What the parts of the requester share: sending (requester.cc), answers (requester_answers.cc), and time-outs
// (requester_timer.cc).
#pragma once

#include "softverbs/engine/engine.h"

namespace bypass::rdma {

/// The oldest request is complete, and local operations behind it that were executed.
void complete_head(Engine& e, Qp& qp);
/// Local operations that are behind completed requests only are complete, too.
void complete_local(Engine& e, Qp& qp);
/// Completes the oldest request with an error, which ends the queue pair.
void fail_head(Engine& e, Qp& qp, ibv_wc_status status);
/// Tells the program if its queue was to be drained (IBV_QPS_SQD), and is.
void finish_drain(Engine& e, Qp& qp);

/// Waits for the next acknowledgement from now on, if one is owed.
void restart_ack_timer(Engine& e, Qp& qp);
/// Sends again from the oldest unanswered packet on.
void go_back(Engine& e, Qp& qp);

}  // namespace bypass::rdma
