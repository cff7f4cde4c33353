// Completion queues, shared receive queues and their events.
#include <gtest/gtest.h>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

SendRequest write_request(Half& peer, unsigned flags = 0) {
  return {.opcode = IBV_WR_RDMA_WRITE, .flags = flags, .remote_addr = peer.end.address(0), .rkey = peer.end.rkey()};
}

int notifications(End& end) {
  int n = 0;
  for (void* user; end.device().take_completion_event(user); n++) EXPECT_EQ(user, &end);
  return n;
}

TEST(CompletionQueue, ArmedOnce_TellsOnce) {
  Pair pair;
  pair.a.send(write_request(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(notifications(pair.a.end), 0) << "not armed";
  pair.a.end.device().request_notify(pair.a.end.cq(), false);
  EXPECT_EQ(notifications(pair.a.end), 0) << "what waits already does not count";
  for (int i = 0; i < 3; i++) pair.a.send(write_request(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(notifications(pair.a.end), 1);
}

TEST(CompletionQueue, ArmedForSolicitedOnes_HearsOfThoseAndOfErrors) {
  Pair pair;
  for (std::uint64_t i = 0; i < 4; i++) pair.b.receive(i, 0, 8);
  Device& device = pair.b.end.device();
  device.request_notify(pair.b.end.cq(), true);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(notifications(pair.b.end), 0);
  pair.a.send({.flags = IBV_SEND_SOLICITED}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(notifications(pair.b.end), 1);
  device.request_notify(pair.b.end.cq(), true);
  pair.b.to_state(IBV_QPS_ERR);
  EXPECT_EQ(notifications(pair.b.end), 1);
}

TEST(CompletionQueue, Overrun_IsToldAndEndsTheQueuePair) {
  Pair pair;
  Device& device = pair.a.end.device();
  Cq* small = device.create_cq(4, &pair).object;
  QpInit init;
  init.send_cq = init.receive_cq = small;
  init.cap = {64, 64, 1, 1, 0};
  init.sq_sig_all = true;
  device.destroy_qp(*pair.a.qp);
  pair.a.qp = &pair.a.end.add_qp(init);
  ASSERT_EQ(Pair::init(pair.a), 0);
  ASSERT_EQ(Pair::to_rtr(pair.a, pair.b), 0);
  ASSERT_EQ(Pair::to_rts(pair.a), 0);
  pair.b.to_state(IBV_QPS_RESET);
  Pair::init(pair.b), Pair::to_rtr(pair.b, pair.a), Pair::to_rts(pair.b);
  for (int i = 0; i < 6; i++) pair.a.send(write_request(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_TRUE(Device::overrun(*small));
  EXPECT_EQ(pair.a.end.poll(*small).size(), 4U);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  const std::vector<AsyncEvent> events = pair.a.end.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(events[0].user, &pair);
  EXPECT_EQ(events[1].type, IBV_EVENT_QP_FATAL);
}

TEST(CompletionQueue, Resize_KeepsWhatWaits) {
  Pair pair;
  for (std::uint64_t i = 0; i < 10; i++) {
    SendRequest request = write_request(pair.b);
    request.wr_id = i;
    pair.a.send(request, 0, 8);
  }
  pair.fabric.settle();
  Device& device = pair.a.end.device();
  EXPECT_EQ(device.resize_cq(pair.a.end.cq(), 9), EINVAL);
  EXPECT_EQ(device.resize_cq(pair.a.end.cq(), 10), 0);
  EXPECT_EQ(Device::cqe(pair.a.end.cq()), 10U);
  const std::vector<ibv_wc> all = pair.a.end.poll();
  ASSERT_EQ(all.size(), 10U);
  for (std::size_t i = 0; i < 10; i++) EXPECT_EQ(all[i].wr_id, i);
}

TEST(CompletionQueue, WhatIsLookedAt_StaysUntilItIsTakenOff) {
  Pair pair;
  std::array<Completion, 2> seen;
  EXPECT_EQ(pair.a.end.device().peek(pair.a.end.cq(), seen), 0U);
  const Instant before = pair.fabric.now();
  for (std::uint64_t id = 1; id <= 3; id++) {
    SendRequest request = write_request(pair.b);
    request.wr_id = id;
    pair.a.send(request, 0, 8);
  }
  pair.fabric.settle();
  ASSERT_EQ(pair.a.end.device().peek(pair.a.end.cq(), seen), 2U);
  EXPECT_GE(seen[0].at, before);
  EXPECT_LE(seen[0].at, pair.fabric.now());
  EXPECT_EQ(seen[1].wc.wr_id, 2U);
  pair.a.end.device().pop(pair.a.end.cq(), 1);
  ASSERT_EQ(pair.a.end.device().peek(pair.a.end.cq(), seen), 2U);
  EXPECT_EQ(seen[0].wc.wr_id, 2U);
  pair.a.end.device().pop(pair.a.end.cq(), 2);
  EXPECT_EQ(pair.a.end.device().peek(pair.a.end.cq(), seen), 0U);
}

// --- Shared receive queues

TEST(Srq, ServesSeveralQueuePairs) {
  PairConfig config{.use_srq = true};
  Pair pair(config);
  QpInit init;
  init.cap = {16, 0, 1, 0, 0};
  init.srq = pair.b.srq;
  init.receive_cq = init.send_cq = nullptr;
  Half other_a(pair.a.end, PairConfig{}), other_b(pair.b.end, PairConfig{});
  pair.b.end.device().destroy_qp(*other_b.qp);
  other_b.qp = &pair.b.end.add_qp(init);
  for (Half* half : {&other_a, &other_b}) {
    Half& peer = half == &other_a ? other_b : other_a;
    ASSERT_EQ(Pair::init(*half), 0);
    ASSERT_EQ(Pair::to_rtr(*half, peer), 0);
    ASSERT_EQ(Pair::to_rts(*half), 0);
  }
  for (std::uint64_t i = 0; i < 4; i++) ASSERT_EQ(pair.b.receive(i, i * 64, 64), 0);
  pair.a.send({}, 0, 8);
  other_a.send({}, 0, 8);
  pair.fabric.settle();
  const std::vector<ibv_wc> all = pair.b.end.poll();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[0].qp_num, all[1].qp_num);
  EXPECT_EQ(all[0].wr_id + all[1].wr_id, 1U);
}

TEST(Srq, FallingBelowTheLimit_IsToldOnce) {
  PairConfig config{.use_srq = true};
  Pair pair(config);
  Device& device = pair.b.end.device();
  for (std::uint64_t i = 0; i < 5; i++) pair.b.receive(i, 0, 8);
  ASSERT_EQ(device.modify_srq(*pair.b.srq, {0, 0, 4}, IBV_SRQ_LIMIT), 0);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_TRUE(pair.b.end.events().empty());
  pair.a.send({}, 0, 8);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  const std::vector<AsyncEvent> events = pair.b.end.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(events[0].user, &pair.b);
  EXPECT_EQ(Device::query_srq(*pair.b.srq).srq_limit, 0U);
}

TEST(Srq, EmptyOne_IsNotReady) {
  PairConfig config{.rnr_retries = 1, .use_srq = true};
  Pair pair(config);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(Srq, QueuePairInError_TellsOfItsLastRequestAndLeavesTheOthersTheirs) {
  PairConfig config{.use_srq = true};
  Pair pair(config);
  pair.b.receive(1, 0, 8);
  ASSERT_EQ(pair.b.to_state(IBV_QPS_ERR), 0);
  const std::vector<AsyncEvent> events = pair.b.end.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_TRUE(pair.b.end.poll().empty()) << "shared requests are not flushed";
}

TEST(Srq, Resize_KeepsWhatWaits) {
  PairConfig config{.use_srq = true};
  Pair pair(config);
  Device& device = pair.b.end.device();
  for (std::uint64_t i = 0; i < 5; i++) pair.b.receive(i, 0, 8);
  EXPECT_EQ(device.modify_srq(*pair.b.srq, {4, 0, 0}, IBV_SRQ_MAX_WR), EINVAL);
  EXPECT_EQ(device.modify_srq(*pair.b.srq, {5, 0, 0}, IBV_SRQ_MAX_WR), 0);
  EXPECT_EQ(pair.b.receive(5, 0, 8), ENOMEM);
  for (int i = 0; i < 5; i++) pair.a.send({}, 0, 8);
  pair.fabric.settle();
  const std::vector<ibv_wc> all = pair.b.end.poll();
  ASSERT_EQ(all.size(), 5U);
  for (std::size_t i = 0; i < 5; i++) EXPECT_EQ(all[i].wr_id, i);
}

TEST(Port, LinkThatGoesAndComes_IsToldOnceEach) {
  Pair pair;
  pair.a.end.port().set_link(LinkState::kDown);
  pair.fabric.run_for(1ms);
  pair.a.end.port().set_link(LinkState::kUp);
  pair.fabric.run_for(1ms);
  const std::vector<AsyncEvent> events = pair.a.end.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].type, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(events[1].type, IBV_EVENT_PORT_ERR);
}

}  // namespace
}  // namespace bypass::rdma::test
