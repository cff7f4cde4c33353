// The verbs' constants, as their manual pages write them without the prefix: RTR, RDMA_WRITE, LOCAL_WRITE|REMOTE_READ.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace bypass::verbs_trace {

std::string state_word(ibv_qp_state state);
std::string type_word(ibv_qp_type type);
std::string opcode_word(ibv_wr_opcode opcode);
std::string completion_word(ibv_wc_opcode opcode);
std::string status_word(ibv_wc_status status);
std::string event_word(ibv_event_type event);
std::string mtu_word(ibv_mtu mtu);
std::string port_state_word(ibv_port_state state);
/// IBV_ACCESS_*
std::string access_words(unsigned flags);
/// IBV_SEND_*
std::string send_words(unsigned flags);
/// fe80::1 or ::ffff:10.9.0.1, as inet_ntop(3) writes it
std::string gid_text(const ibv_gid& gid);

}  // namespace bypass::verbs_trace
