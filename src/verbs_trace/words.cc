#include "verbs_trace/words.h"

#include <arpa/inet.h>

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "verbs_trace/output.h"

namespace bypass::verbs_trace {

namespace {

using Word = std::pair<unsigned, std::string_view>;

std::string word(std::span<const Word> words, unsigned value) {
  for (const auto& [known, text] : words)
    if (known == value) return std::string(text);
  return std::to_string(value);
}

std::string words_of(std::span<const Word> words, unsigned flags) {
  std::string text;
  for (const auto& [bit, name] : words) {
    if ((flags & bit) == 0) continue;
    if (!text.empty()) text += '|';
    text.append(name);
    flags &= ~bit;
  }
  if (flags != 0) text += (text.empty() ? "" : "|") + hex_text(flags);
  return text.empty() ? "0" : text;
}

}  // namespace

std::string state_word(ibv_qp_state state) {
  static constexpr std::array<Word, 7> kWords{{{IBV_QPS_RESET, "RESET"},
                                               {IBV_QPS_INIT, "INIT"},
                                               {IBV_QPS_RTR, "RTR"},
                                               {IBV_QPS_RTS, "RTS"},
                                               {IBV_QPS_SQD, "SQD"},
                                               {IBV_QPS_SQE, "SQE"},
                                               {IBV_QPS_ERR, "ERR"}}};
  return word(kWords, state);
}

std::string type_word(ibv_qp_type type) {
  static constexpr std::array<Word, 7> kWords{{{IBV_QPT_RC, "RC"},
                                               {IBV_QPT_UC, "UC"},
                                               {IBV_QPT_UD, "UD"},
                                               {IBV_QPT_RAW_PACKET, "RAW_PACKET"},
                                               {IBV_QPT_XRC_SEND, "XRC_SEND"},
                                               {IBV_QPT_XRC_RECV, "XRC_RECV"},
                                               {IBV_QPT_DRIVER, "DRIVER"}}};
  return word(kWords, type);
}

std::string opcode_word(ibv_wr_opcode opcode) {
  static constexpr std::array<Word, 12> kWords{{{IBV_WR_RDMA_WRITE, "RDMA_WRITE"},
                                                {IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM"},
                                                {IBV_WR_SEND, "SEND"},
                                                {IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM"},
                                                {IBV_WR_RDMA_READ, "RDMA_READ"},
                                                {IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP"},
                                                {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD"},
                                                {IBV_WR_LOCAL_INV, "LOCAL_INV"},
                                                {IBV_WR_BIND_MW, "BIND_MW"},
                                                {IBV_WR_SEND_WITH_INV, "SEND_WITH_INV"},
                                                {IBV_WR_TSO, "TSO"},
                                                {IBV_WR_DRIVER1, "DRIVER1"}}};
  return word(kWords, opcode);
}

std::string completion_word(ibv_wc_opcode opcode) {
  static constexpr std::array<Word, 10> kWords{{{IBV_WC_SEND, "SEND"},
                                                {IBV_WC_RDMA_WRITE, "RDMA_WRITE"},
                                                {IBV_WC_RDMA_READ, "RDMA_READ"},
                                                {IBV_WC_COMP_SWAP, "COMP_SWAP"},
                                                {IBV_WC_FETCH_ADD, "FETCH_ADD"},
                                                {IBV_WC_BIND_MW, "BIND_MW"},
                                                {IBV_WC_LOCAL_INV, "LOCAL_INV"},
                                                {IBV_WC_TSO, "TSO"},
                                                {IBV_WC_RECV, "RECV"},
                                                {IBV_WC_RECV_RDMA_WITH_IMM, "RECV_RDMA_WITH_IMM"}}};
  return word(kWords, opcode);
}

std::string status_word(ibv_wc_status status) {
  static constexpr std::array<std::string_view, 24> kWords{"SUCCESS",
                                                           "LOC_LEN_ERR",
                                                           "LOC_QP_OP_ERR",
                                                           "LOC_EEC_OP_ERR",
                                                           "LOC_PROT_ERR",
                                                           "WR_FLUSH_ERR",
                                                           "MW_BIND_ERR",
                                                           "BAD_RESP_ERR",
                                                           "LOC_ACCESS_ERR",
                                                           "REM_INV_REQ_ERR",
                                                           "REM_ACCESS_ERR",
                                                           "REM_OP_ERR",
                                                           "RETRY_EXC_ERR",
                                                           "RNR_RETRY_EXC_ERR",
                                                           "LOC_RDD_VIOL_ERR",
                                                           "REM_INV_RD_REQ_ERR",
                                                           "REM_ABORT_ERR",
                                                           "INV_EECN_ERR",
                                                           "INV_EEC_STATE_ERR",
                                                           "FATAL_ERR",
                                                           "RESP_TIMEOUT_ERR",
                                                           "GENERAL_ERR",
                                                           "TM_ERR",
                                                           "TM_RNDV_INCOMPLETE"};
  const auto number = static_cast<unsigned>(status);
  return number < kWords.size() ? std::string(kWords[number]) : std::to_string(number);
}

std::string event_word(ibv_event_type event) {
  static constexpr std::array<std::string_view, 20> kWords{"CQ_ERR",
                                                           "QP_FATAL",
                                                           "QP_REQ_ERR",
                                                           "QP_ACCESS_ERR",
                                                           "COMM_EST",
                                                           "SQ_DRAINED",
                                                           "PATH_MIG",
                                                           "PATH_MIG_ERR",
                                                           "DEVICE_FATAL",
                                                           "PORT_ACTIVE",
                                                           "PORT_ERR",
                                                           "LID_CHANGE",
                                                           "PKEY_CHANGE",
                                                           "SM_CHANGE",
                                                           "SRQ_ERR",
                                                           "SRQ_LIMIT_REACHED",
                                                           "QP_LAST_WQE_REACHED",
                                                           "CLIENT_REREGISTER",
                                                           "GID_CHANGE",
                                                           "WQ_FATAL"};
  const auto number = static_cast<unsigned>(event);
  return number < kWords.size() ? std::string(kWords[number]) : std::to_string(number);
}

std::string mtu_word(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? std::to_string(128U << mtu) : std::to_string(mtu);
}

std::string port_state_word(ibv_port_state state) {
  static constexpr std::array<Word, 6> kWords{{{IBV_PORT_NOP, "NOP"},
                                               {IBV_PORT_DOWN, "DOWN"},
                                               {IBV_PORT_INIT, "INIT"},
                                               {IBV_PORT_ARMED, "ARMED"},
                                               {IBV_PORT_ACTIVE, "ACTIVE"},
                                               {IBV_PORT_ACTIVE_DEFER, "ACTIVE_DEFER"}}};
  return word(kWords, state);
}

std::string access_words(unsigned flags) {
  static constexpr std::array<Word, 9> kWords{{{IBV_ACCESS_LOCAL_WRITE, "LOCAL_WRITE"},
                                               {IBV_ACCESS_REMOTE_WRITE, "REMOTE_WRITE"},
                                               {IBV_ACCESS_REMOTE_READ, "REMOTE_READ"},
                                               {IBV_ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"},
                                               {IBV_ACCESS_MW_BIND, "MW_BIND"},
                                               {IBV_ACCESS_ZERO_BASED, "ZERO_BASED"},
                                               {IBV_ACCESS_ON_DEMAND, "ON_DEMAND"},
                                               {IBV_ACCESS_HUGETLB, "HUGETLB"},
                                               {IBV_ACCESS_RELAXED_ORDERING, "RELAXED_ORDERING"}}};
  return words_of(kWords, flags);
}

std::string send_words(unsigned flags) {
  static constexpr std::array<Word, 5> kWords{{{IBV_SEND_FENCE, "FENCE"},
                                               {IBV_SEND_SIGNALED, "SIGNALED"},
                                               {IBV_SEND_SOLICITED, "SOLICITED"},
                                               {IBV_SEND_INLINE, "INLINE"},
                                               {IBV_SEND_IP_CSUM, "IP_CSUM"}}};
  return words_of(kWords, flags);
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.raw, text, sizeof text) != nullptr ? text : "?";
}

}  // namespace bypass::verbs_trace
