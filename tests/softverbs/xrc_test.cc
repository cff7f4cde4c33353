// XRC: receive queues that requests name, their domains, and what is refused (InfiniBand specification, annex A14).
#include <gtest/gtest.h>

#include <algorithm>

#include "softverbs/engine/qp/qp.h"
#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

class Xrc : public ::testing::Test {
 protected:
  Xrc() : pair(IBV_QPT_XRC_SEND), a(pair.a), b(pair.b) {}
  Srq* another_queue(Xrcd& xrcd, Pd& pd, Cq& cq) {
    return b.end.device().create_xrc_srq(pd, xrcd, cq, {16, 4, 0}, nullptr).object;
  }
  std::vector<ibv_event_type> events_of_b() {
    std::vector<ibv_event_type> types;
    for (const AsyncEvent& event : b.end.events()) types.push_back(event.type);
    return types;
  }

  Pair pair;
  Half &a, &b;
};

TEST_F(Xrc, Send_ArrivesInTheNamedQueue) {
  Device& device = b.end.device();
  Cq* const cq = device.create_cq(16, nullptr).object;
  Srq* const other = another_queue(*b.xrcd, b.end.pd(), *cq);
  ASSERT_NE(Device::srq_number(*other), Device::srq_number(*b.srq));
  ASSERT_EQ(b.receive(1, 10'000, 5000), 0);
  const ibv_sge sge = b.end.sge(20'000, 5000);
  ASSERT_EQ(device.post_srq_receive(*other, {2, {&sge, 1}}), 0);
  a.end.fill(0, 5000, 3);
  a.remote_srqn = Device::srq_number(*other);
  ASSERT_EQ(a.send({.opcode = IBV_WR_SEND_WITH_IMM, .imm = 77}, 0, 5000), 0);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(b.end.poll().empty());
  const std::vector<ibv_wc> done = b.end.poll(*cq);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].wr_id, 2U);
  EXPECT_EQ(done[0].byte_len, 5000U);
  EXPECT_EQ(done[0].imm_data, 77U);
  EXPECT_EQ(done[0].qp_num, Device::qpn(*b.qp));
  EXPECT_EQ(done[0].src_qp, Device::qpn(*a.qp));
  EXPECT_TRUE(b.end.holds(20'000, 5000, 3));
}

TEST_F(Xrc, WritesReadsAndAtomicOperations_UseTheQueuesDomain) {
  a.end.fill(0, 3000, 5);
  a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = b.end.address(8000), .rkey = b.end.rkey()}, 0, 3000);
  a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = b.end.address(8000), .rkey = b.end.rkey()}, 50'000, 3000);
  const std::uint64_t before = 40;
  std::memcpy(b.end.at(0), &before, sizeof before);
  a.send(
      {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_addr = b.end.address(0), .rkey = b.end.rkey(), .compare_add = 2},
      60'000, 8);
  pair.fabric.settle();
  const std::vector<ibv_wc> done = a.end.poll();
  ASSERT_EQ(done.size(), 3U);
  for (const ibv_wc& wc : done) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_TRUE(b.end.holds(8000, 3000, 5));
  EXPECT_TRUE(a.end.holds(50'000, 3000, 5));
  std::uint64_t after = 0;
  std::memcpy(&after, b.end.at(0), sizeof after);
  EXPECT_EQ(after, 42U);
}

TEST_F(Xrc, AKeyOfAnotherProtectionDomain_IsRefused) {
  Device& device = b.end.device();
  Pd* const pd = device.alloc_pd().object;
  Srq* const other = another_queue(*b.xrcd, *pd, b.end.cq());
  a.remote_srqn = Device::srq_number(*other);
  a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = b.end.address(8000), .rkey = b.end.rkey()}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Xrc, AQueueOfAnotherDomain_OrOfNoDomain_IsRefused) {
  for (const std::uint32_t number : {0U, 2U, 999U}) {
    Pair fresh(IBV_QPT_XRC_SEND);
    Device& device = fresh.b.end.device();
    Xrcd* const xrcd = device.open_xrcd(nullptr, true, false).object;
    Srq* const foreign = device.create_xrc_srq(fresh.b.end.pd(), *xrcd, fresh.b.end.cq(), {4, 1, 0}, nullptr).object;
    ASSERT_EQ(Device::srq_number(*foreign), 2U);
    fresh.a.remote_srqn = number;
    fresh.b.receive(1, 0, 100);
    fresh.a.send({.opcode = IBV_WR_SEND}, 0, 8);
    fresh.fabric.settle();
    EXPECT_EQ(only(fresh.a.end).status, IBV_WC_REM_INV_RD_REQ_ERR) << number;
    EXPECT_TRUE(fresh.b.end.poll().empty());
    EXPECT_EQ(fresh.b.state(), IBV_QPS_ERR);
    std::vector<ibv_event_type> types;
    for (const AsyncEvent& event : fresh.b.end.events()) types.push_back(event.type);
    EXPECT_EQ(std::ranges::count(types, IBV_EVENT_QP_ACCESS_ERR), 1);
    EXPECT_EQ(std::ranges::count(types, IBV_EVENT_QP_LAST_WQE_REACHED), 1);
  }
}

TEST_F(Xrc, ADestroyedQueue_GetsNoMoreOfAMessage) {
  b.receive(1, 0, 500'000);
  a.send({.opcode = IBV_WR_SEND}, 0, 500'000);
  pair.fabric.run_until([&] { return b.qp->resp.message == Message::kSend; }, 1s);
  ASSERT_EQ(b.qp->resp.message, Message::kSend);
  EXPECT_EQ(b.end.device().destroy_srq(*b.srq), 0);
  pair.fabric.settle();
  EXPECT_NE(only(a.end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(b.end.poll().empty());
  EXPECT_EQ(b.state(), IBV_QPS_ERR);
}

TEST_F(Xrc, AnEmptyQueue_LetsThePeerWait) {
  a.send({.opcode = IBV_WR_SEND}, 0, 8);
  pair.fabric.run_for(1ms);
  EXPECT_GT(b.counters().tx_rnr_nak, 0U);
  b.receive(1, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(a.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(only(b.end).status, IBV_WC_SUCCESS);
}

TEST_F(Xrc, TheLimit_IsReportedOnce) {
  ASSERT_EQ(b.end.device().modify_srq(*b.srq, {0, 0, 2}, IBV_SRQ_LIMIT), 0);
  for (const std::uint64_t i : {1U, 2U, 3U}) b.receive(i, 0, 8);
  for (int i = 0; i < 3; i++) a.send({.opcode = IBV_WR_SEND}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(std::ranges::count(events_of_b(), IBV_EVENT_SRQ_LIMIT_REACHED), 1);
}

TEST_F(Xrc, WhatOnlySends_ReceivesNothing_AndTheOtherWay) {
  const ibv_sge sge = a.end.sge(0, 8);
  EXPECT_EQ(a.end.device().post_receive(*a.qp, {1, {&sge, 1}}), EINVAL);
  EXPECT_EQ(b.end.device().post_receive(*b.qp, {1, {&sge, 1}}), EINVAL);
  EXPECT_EQ(b.send({.opcode = IBV_WR_SEND}, 0, 8), EINVAL);
  Xrceth xrc;
  xrc.srqn = 1;
  const RoceOptions options{.opcode = kServiceXrc | 0x04, .qpn = Device::qpn(*a.qp), .psn = a.config.psn};
  pair.fabric.wire().inject(0, roce_frame(options, bytes_of_headers(xrc, std::uint64_t{1})));
  pair.fabric.run_for(1us);
  EXPECT_EQ(a.counters().rx_wrong_state, 1U);
  EXPECT_EQ(a.state(), IBV_QPS_RTS);
}

// Programs name the same attributes for both directions.
TEST_F(Xrc, AttributesOfTheOtherDirection_AreIgnored) {
  for (Half* const half : {&a, &b}) {
    half->to_state(IBV_QPS_RESET);
    ASSERT_EQ(Pair::init(*half), 0);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = (half == &a ? b : a).end.gid();
    attr.ah_attr.grh.sgid_index = 1;
    attr.path_mtu = IBV_MTU_1024;
    attr.max_dest_rd_atomic = 255;  // too many for one that has any
    constexpr unsigned kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    EXPECT_EQ(half->modify(attr, kMask), half == &a ? 0 : EINVAL);
    attr.max_dest_rd_atomic = 1;
    if (half == &b) {
      EXPECT_EQ(half->modify(attr, kMask), 0);
    }
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(half->modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                     IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }
}

TEST_F(Xrc, Domains_LiveWhileTheyAreUsed) {
  Device& device = b.end.device();
  EXPECT_EQ(device.close_xrcd(*b.xrcd), EBUSY);
  EXPECT_EQ(device.destroy_qp(*b.qp), 0);
  EXPECT_EQ(device.close_xrcd(*b.xrcd), EBUSY);
  EXPECT_EQ(device.destroy_cq(b.end.cq()), EBUSY);
  EXPECT_EQ(device.destroy_srq(*b.srq), 0);
  EXPECT_EQ(device.close_xrcd(*b.xrcd), 0);
  EXPECT_EQ(device.destroy_cq(b.end.cq()), 0);
}

TEST_F(Xrc, AFile_NamesADomain) {
  Device& device = b.end.device();
  const XrcFile file{1, 2};
  EXPECT_EQ(device.open_xrcd(&file, false, false).error, EAGAIN);
  Xrcd* const first = device.open_xrcd(&file, true, true).object;
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(device.open_xrcd(&file, true, true).error, EINVAL);
  EXPECT_EQ(device.open_xrcd(&file, false, false).object, first);
  const XrcFile another{1, 3};
  EXPECT_NE(device.open_xrcd(&another, true, false).object, first);
  EXPECT_EQ(device.close_xrcd(*first), 0);
  EXPECT_EQ(device.close_xrcd(*first), 0);
  EXPECT_EQ(device.open_xrcd(&file, false, false).error, EAGAIN);
}

TEST_F(Xrc, AQueuePairThatIsOpenedAgain_EndsWithItsLastOpening) {
  Device& device = b.end.device();
  Xrcd* const other = device.open_xrcd(nullptr, true, false).object;
  EXPECT_EQ(device.open_qp(*other, Device::qpn(*b.qp)).error, EINVAL);
  EXPECT_EQ(device.open_qp(*b.xrcd, 999).error, EINVAL);
  EXPECT_EQ(device.open_qp(*b.xrcd, Device::qpn(*b.qp)).object, b.qp);
  const std::uint32_t before = device.qp_count();
  EXPECT_EQ(device.destroy_qp(*b.qp), 0);
  EXPECT_EQ(device.qp_count(), before);
  EXPECT_EQ(device.destroy_qp(*b.qp), 0);
  EXPECT_EQ(device.qp_count(), before - 1);
}

}  // namespace
}  // namespace bypass::rdma::test
