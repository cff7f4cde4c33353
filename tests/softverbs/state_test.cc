// The queue pair's states: what modifying does, and what happens in them. Which modifications there are:
// qp_state_test.cc.
#include <gtest/gtest.h>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

constexpr unsigned kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr unsigned kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

TEST(QpState, ValuesOutOfRange_AreRefusedAndChangeNothing) {
  Fabric fabric;
  End& end = fabric.add_end();
  const PairConfig config;
  Half half(end, config);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  EXPECT_EQ(half.modify(attr, kInit), EINVAL);
  attr.port_num = 1;
  attr.pkey_index = 1;
  EXPECT_EQ(half.modify(attr, kInit), EINVAL);
  EXPECT_EQ(half.state(), IBV_QPS_RESET);
  attr.pkey_index = 0;
  ASSERT_EQ(half.modify(attr, kInit), 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = end.gid();
  attr.ah_attr.grh.sgid_index = 1;
  const auto refuses = [&](auto change) {
    ibv_qp_attr bad = attr;
    change(bad);
    EXPECT_EQ(half.modify(bad, kRtr), EINVAL);
    EXPECT_EQ(half.state(), IBV_QPS_INIT);
  };
  refuses([](ibv_qp_attr& a) { a.path_mtu = IBV_MTU_2048; });  // more than the wire has
  refuses([](ibv_qp_attr& a) { a.ah_attr.grh.sgid_index = 9; });
  refuses([](ibv_qp_attr& a) { a.ah_attr.grh.sgid_index = 0; });  // IPv6 to IPv4
  refuses([](ibv_qp_attr& a) { a.ah_attr.is_global = 0; });
  refuses([](ibv_qp_attr& a) { a.max_dest_rd_atomic = 200; });
  refuses([](ibv_qp_attr& a) { a.min_rnr_timer = 32; });
  attr.rate_limit = 1000;
  EXPECT_EQ(half.modify(attr, kRtr | IBV_QP_RATE_LIMIT), EOPNOTSUPP);
  EXPECT_EQ(half.modify(attr, kRtr), 0);
}

TEST(QpState, Query_TellsWhatWasSet) {
  Pair pair;
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  Device::query_qp(*pair.a.qp, attr, init);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attr.dest_qp_num, Device::qpn(*pair.b.qp));
  EXPECT_EQ(attr.timeout, 14);
  EXPECT_EQ(attr.sq_psn, 0xfffff0U);
  EXPECT_EQ(attr.cap.max_send_wr, 128U);
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
  EXPECT_GE(attr.cap.max_inline_data, 128U);
}

TEST(QpState, SendingBeforeRts_IsRefused) {
  Fabric fabric;
  End& end = fabric.add_end();
  const PairConfig config;
  Half half(end, config);
  EXPECT_EQ(half.send({}, 0, 8), EINVAL);
  EXPECT_EQ(half.receive(1, 0, 8), EINVAL);
  ASSERT_EQ(Pair::init(half), 0);
  EXPECT_EQ(half.send({}, 0, 8), EINVAL);
  EXPECT_EQ(half.receive(1, 0, 8), 0);
}

TEST(QpState, Drain_FinishesWhatHasBegunAndHoldsTheRest) {
  Pair pair;
  pair.fabric.wire().set_impairment({.delay = 50us});
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()};
  pair.a.send(write, 0, 8);
  pair.fabric.run_until([&] { return pair.a.counters().tx_packets != 0; }, 1s);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(pair.a.modify(attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  pair.a.send(write, 0, 8);
  EXPECT_TRUE(pair.a.end.events().empty()) << "not drained yet";
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 1U);
  const std::vector<AsyncEvent> events = pair.a.end.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(events[0].user, &pair.a);
  ASSERT_EQ(pair.a.to_state(IBV_QPS_RTS), 0);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 1U);
}

TEST(QpState, FirstPacketInRtr_EstablishesTheConnection) {
  Fabric fabric;
  End &end_a = fabric.add_end(), &end_b = fabric.add_end();
  const PairConfig config;
  Half a(end_a, config), b(end_b, config);
  Pair::init(a), Pair::init(b);
  Pair::to_rtr(a, b), Pair::to_rtr(b, a);
  Pair::to_rts(a);
  b.receive(1, 0, 8);
  a.send({}, 0, 8);
  fabric.settle();
  EXPECT_EQ(only(end_b).status, IBV_WC_SUCCESS) << "RTR receives";
  const std::vector<AsyncEvent> events = end_b.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(events[0].user, &b);
}

TEST(QpState, ResetAndAgain_StartsAfresh) {
  Pair pair;
  pair.b.receive(1, 0, 8);
  for (int round = 0; round < 3; round++) {
    for (Half* half : {&pair.a, &pair.b}) {
      Half& peer = half == &pair.a ? pair.b : pair.a;
      ASSERT_EQ(half->to_state(IBV_QPS_RESET), 0);
      ASSERT_EQ(Pair::init(*half), 0);
      ASSERT_EQ(Pair::to_rtr(*half, peer), 0);
      ASSERT_EQ(Pair::to_rts(*half), 0);
    }
    pair.b.receive(2, 0, 8);
    pair.a.send({}, 0, 8);
    pair.fabric.settle();
    EXPECT_EQ(only(pair.b.end).wr_id, 2U) << "what was posted before is forgotten";
    EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  }
}

// Two queue pairs share a completion queue. Completions of the other one can still be polled.
TEST(QpState, Reset_ForgetsCompletionsThatNobodyHasSeen) {
  constexpr std::uint32_t kDepth = 4;
  Pair pair(PairConfig{.depth = kDepth});
  Half other(pair.a.end, pair.a.config), its_peer(pair.b.end, pair.a.config);
  Pair::init(other), Pair::init(its_peer);
  Pair::to_rtr(other, its_peer), Pair::to_rtr(its_peer, other);
  ASSERT_EQ(Pair::to_rts(other), 0);
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()};
  const auto send = [&](Half& from, std::uint64_t id) {
    SendRequest request = write;
    request.wr_id = id;
    return from.send(request, 0, 8);
  };
  EXPECT_EQ(send(pair.a, 1), 0);
  EXPECT_EQ(send(other, 2), 0);
  EXPECT_EQ(send(pair.a, 3), 0);
  EXPECT_EQ(send(other, 4), 0);
  pair.fabric.settle();
  for (Half* half : {&pair.a, &pair.b}) {
    ASSERT_EQ(half->to_state(IBV_QPS_RESET), 0);
    ASSERT_EQ(Pair::init(*half), 0);
  }
  Pair::to_rtr(pair.a, pair.b), Pair::to_rtr(pair.b, pair.a);
  ASSERT_EQ(Pair::to_rts(pair.a), 0);
  const std::vector<ibv_wc> left = pair.a.end.poll();
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].wr_id, 2U);
  EXPECT_EQ(left[1].wr_id, 4U);
  for (std::uint64_t i = 0; i < kDepth; i++) EXPECT_EQ(send(pair.a, 10 + i), 0);
  EXPECT_EQ(send(pair.a, 10 + kDepth), ENOMEM) << "its queue is as long as before";
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), kDepth);
  EXPECT_EQ(send(pair.a, 20), 0);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.device().destroy_qp(*pair.a.qp), 0);
  EXPECT_TRUE(pair.a.end.poll().empty());
}

TEST(QpState, ObjectsInUse_AreNotDestroyed) {
  PairConfig config{.use_srq = true};
  Pair pair(config);
  Device& device = pair.a.end.device();
  EXPECT_EQ(device.destroy_cq(pair.a.end.cq()), EBUSY);
  EXPECT_EQ(device.destroy_srq(*pair.a.srq), EBUSY);
  EXPECT_EQ(device.dealloc_pd(pair.a.end.pd()), EBUSY);
  EXPECT_EQ(device.destroy_qp(*pair.a.qp), 0);
  EXPECT_EQ(device.destroy_srq(*pair.a.srq), 0);
  EXPECT_EQ(device.destroy_cq(pair.a.end.cq()), 0);
  EXPECT_EQ(device.dereg_mr(pair.a.end.mr()), 0);
  EXPECT_EQ(device.dealloc_pd(pair.a.end.pd()), 0);
}

TEST(QpState, NumbersAreNotReusedAtOnce) {
  Fabric fabric;
  End& end = fabric.add_end();
  QpInit init;
  init.cap = {1, 1, 1, 1, 0};
  Qp& first = end.add_qp(init);
  EXPECT_EQ(Device::qpn(first), 0x11U);
  end.device().destroy_qp(first);
  EXPECT_EQ(Device::qpn(end.add_qp(init)), 0x12U);
}

}  // namespace
}  // namespace bypass::rdma::test
