// What a work request, a completion or a queue pair's attributes say, as text.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace bypass::verbs_trace {

class Call;

/// Each request of the list: "[1] RDMA_WRITE wr_id 0x1 64 B SIGNALED to 0x7f..:0x1001"
std::string requests_text(const ibv_qp& qp, const ibv_send_wr* list);
std::string requests_text(const ibv_recv_wr* list);
std::string completion_text(const ibv_wc& completion);
void describe(Call& call, const ibv_qp_attr& attributes, int mask);
void describe(Call& call, const ibv_qp_cap& capacities);
void describe(Call& call, const ibv_ah_attr& address);

}  // namespace bypass::verbs_trace
