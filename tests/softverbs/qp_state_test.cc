// The whole table of a queue pair's states: every service, every pair of states, every attribute, as the kernel's
// ib_modify_qp_is_ok answers (InfiniBand specification, 10.3.1 and table 96).
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "softverbs/engine/engine.h"
#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

constexpr std::array<ibv_qp_state, 7> kStates = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                                 IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};
constexpr unsigned kAttributes = (IBV_QP_RATE_LIMIT << 1) - 1;  // all bits there are, named or not

struct Attributes {
  unsigned required = 0, optional = 0;
};
struct Edge {
  ibv_qp_state from, to;
  Attributes attributes;
};

const std::array<Edge, 9> kRc = {{
    {IBV_QPS_RESET, IBV_QPS_INIT, {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_RTS,
     IBV_QPS_RTS,
     {0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {0, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD,
     IBV_QPS_RTS,
     {0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
             IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {}},
}};

const std::array<Edge, 9> kUc = {{
    {IBV_QPS_RESET, IBV_QPS_INIT, {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
      IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {0, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS}},
}};

const std::array<Edge, 9> kUd = {{
    {IBV_QPS_RESET, IBV_QPS_INIT, {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY}},
    {IBV_QPS_INIT, IBV_QPS_RTR, {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_RTR, IBV_QPS_RTS, {IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_QKEY}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {0, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_QKEY}},
    {IBV_QPS_SQD, IBV_QPS_SQD, {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0, IBV_QP_CUR_STATE | IBV_QP_QKEY}},
}};

const std::array<Edge, 9> kRaw = {{
    {IBV_QPS_RESET, IBV_QPS_INIT, {IBV_QP_PORT}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {}},
    {IBV_QPS_INIT, IBV_QPS_RTR, {}},
    {IBV_QPS_RTR, IBV_QPS_RTS, {0, IBV_QP_RATE_LIMIT}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0, IBV_QP_RATE_LIMIT}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {}},
    {IBV_QPS_SQD, IBV_QPS_SQD, {}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {}},
}};

struct ServiceEdges {
  const char* name;
  ibv_qp_type type;
  std::span<const Edge> edges;
};
const std::array<ServiceEdges, 4> kServiceEdges = {{{"RC", IBV_QPT_RC, kRc},
                                                    {"UC", IBV_QPT_UC, kUc},
                                                    {"UD", IBV_QPT_UD, kUd},
                                                    {"RAW_PACKET", IBV_QPT_RAW_PACKET, kRaw}}};

/// None: there is no such edge.
std::optional<Attributes> attributes_of(const ServiceEdges& service, ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) return Attributes{};
  const auto edge = std::ranges::find_if(service.edges, [&](const Edge& e) { return e.from == from && e.to == to; });
  return edge == service.edges.end() ? std::nullopt : std::optional{edge->attributes};
}

class QpStateTable : public ::testing::TestWithParam<ServiceEdges> {
 protected:
  template <typename F>
  static void each_pair(F&& f) {
    for (const ibv_qp_state from : kStates)
      for (const ibv_qp_state to : kStates) {
        SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
        f(from, to);
      }
  }
  template <typename F>
  static void each_attribute(F&& f) {
    for (unsigned bit = 1; bit <= kAttributes; bit <<= 1)
      if (bit != IBV_QP_STATE) f(bit);
  }
  static int check(ibv_qp_state from, ibv_qp_state to, unsigned mask) {
    return check_transition(GetParam().type, from, to, mask);
  }
};

TEST_P(QpStateTable, ALegalEdge_TakesWhatItMustAndMayAndNothingElse) {
  each_pair([](ibv_qp_state from, ibv_qp_state to) {
    const std::optional<Attributes> attributes = attributes_of(GetParam(), from, to);
    if (!attributes) return;
    const unsigned required = attributes->required | IBV_QP_STATE, optional = attributes->optional;
    EXPECT_EQ(check(from, to, required), 0);
    EXPECT_EQ(check(from, to, required | optional), 0);
    each_attribute([&](unsigned bit) {
      if ((required & bit) != 0) {
        EXPECT_EQ(check(from, to, required & ~bit), EINVAL) << "without " << bit;
        EXPECT_EQ(check(from, to, (required | optional) & ~bit), EINVAL) << "without " << bit;
      } else {
        EXPECT_EQ(check(from, to, required | bit), (optional & bit) != 0 ? 0 : EINVAL) << "with " << bit;
      }
    });
  });
}

TEST_P(QpStateTable, AnIllegalEdge_IsRefusedWhateverIsNamed) {
  each_pair([](ibv_qp_state from, ibv_qp_state to) {
    if (attributes_of(GetParam(), from, to)) return;
    EXPECT_EQ(check(from, to, 0), EINVAL);
    EXPECT_EQ(check(from, to, kAttributes), EINVAL);
    each_attribute([&](unsigned bit) { EXPECT_EQ(check(from, to, IBV_QP_STATE | bit), EINVAL) << bit; });
    // … and with all attributes that the legal edges out of there need.
    for (const Edge& edge : GetParam().edges)
      EXPECT_EQ(check(from, to, IBV_QP_STATE | edge.attributes.required), EINVAL) << edge.to;
  });
}

// The device answers as the table does. A refused change changes nothing.
TEST_P(QpStateTable, TheDevice_GoesWhereTheTableLetsIt) {
  Fabric fabric;
  End& end = fabric.add_end();
  for (const ibv_qp_state from : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR})
    for (const ibv_qp_state to : kStates) {
      SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
      const PairConfig config{.type = GetParam().type};
      Half half(end, config);
      if (from != IBV_QPS_RESET) {
        Pair::init(half);
      }
      if (from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD) Pair::to_rtr(half, half);
      if (from == IBV_QPS_RTS || from == IBV_QPS_SQD) Pair::to_rts(half);
      if (from == IBV_QPS_SQD || from == IBV_QPS_ERR) half.to_state(from);
      ASSERT_EQ(half.state(), from);
      const std::optional<Attributes> attributes = attributes_of(GetParam(), from, to);
      const bool nothing_required = attributes && attributes->required == 0;
      EXPECT_EQ(half.to_state(to), nothing_required ? 0 : EINVAL);
      EXPECT_EQ(half.state(), nothing_required ? to : from);
      end.device().destroy_qp(*half.qp);
    }
}

INSTANTIATE_TEST_SUITE_P(Services, QpStateTable, ::testing::ValuesIn(kServiceEdges),
                         [](const auto& service) { return std::string(service.param.name); });

TEST(QpState, TheCurrentState_MayBeNamedAndMustBeTheOneItIs) {
  Pair pair;
  ibv_qp_attr attr{};
  attr.cur_qp_state = IBV_QPS_SQD;
  EXPECT_EQ(pair.a.modify(attr, IBV_QP_CUR_STATE), EINVAL);
  attr.cur_qp_state = IBV_QPS_RTS;
  EXPECT_EQ(pair.a.modify(attr, IBV_QP_CUR_STATE), 0);
  for (const ibv_qp_state to : {IBV_QPS_ERR, IBV_QPS_RESET}) {
    attr.qp_state = to;
    EXPECT_EQ(pair.a.modify(attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL) << to;
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
  }
}

}  // namespace
}  // namespace bypass::rdma::test
