// Reliable connections: every operation, on a wire without loss.
#include <gtest/gtest.h>

#include "softverbs/engine/qp/qp.h"
#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

SendRequest send_of(std::uint64_t wr_id) {
  return {.wr_id = wr_id, .opcode = IBV_WR_SEND};
}

TEST(Rc, Send_ArrivesInTheReceiveRequest) {
  Pair pair;
  pair.a.end.fill(0, 100, 1);
  ASSERT_EQ(pair.b.receive(7, 4096, 200), 0);
  ASSERT_EQ(pair.a.send(send_of(5), 0, 100), 0);
  pair.fabric.settle();
  const ibv_wc received = only(pair.b.end), sent = only(pair.a.end);
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.opcode, IBV_WC_RECV);
  EXPECT_EQ(received.wr_id, 7U);
  EXPECT_EQ(received.byte_len, 100U);
  EXPECT_EQ(received.qp_num, Device::qpn(*pair.b.qp));
  EXPECT_EQ(received.src_qp, Device::qpn(*pair.a.qp));
  EXPECT_EQ(received.wc_flags, 0U);
  EXPECT_TRUE(pair.b.end.holds(4096, 100, 1));
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.opcode, IBV_WC_SEND);
  EXPECT_EQ(sent.wr_id, 5U);
}

TEST(Rc, MessagesOfEveryLengthAroundThePacketSize_AreWhole) {
  Pair pair;
  for (const std::size_t length : {0U, 1U, 3U, 1023U, 1024U, 1025U, 2047U, 2048U, 2049U, 5000U, 65536U, 300000U}) {
    pair.a.end.fill(0, length, static_cast<unsigned>(length));
    ASSERT_EQ(pair.b.receive(length, 400'000, 300'000), 0);
    ASSERT_EQ(pair.a.send(send_of(length), 0, length), 0);
    pair.fabric.settle();
    const ibv_wc received = only(pair.b.end);
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.byte_len, length);
    EXPECT_TRUE(pair.b.end.holds(400'000, length, static_cast<unsigned>(length))) << length;
    EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  }
}

TEST(Rc, LargeMtu_IsSentInSeveralBuffersAndReceivedInOddOnes) {
  PairConfig config{.mtu = IBV_MTU_4096};
  config.end.mtu = 4200;
  config.end.rx_segment = 700;
  Pair pair(config);
  EXPECT_EQ(pair.a.end.device().active_mtu(), IBV_MTU_4096);
  pair.a.end.fill(1, 100'001, 9);
  pair.b.receive(1, 500'003, 200'000);
  pair.a.send(send_of(1), 1, 100'001);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(pair.b.end.holds(500'003, 100'001, 9));
}

TEST(Rc, Immediate_IsHandedOver) {
  Pair pair;
  pair.b.receive(1, 0, 64);
  pair.a.send({.opcode = IBV_WR_SEND_WITH_IMM, .imm = 0x12345678}, 0, 8);
  pair.fabric.settle();
  const ibv_wc received = only(pair.b.end);
  EXPECT_EQ(received.wc_flags, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(received.imm_data, 0x12345678U);
}

TEST(Rc, Elements_AreGatheredAndScattered) {
  Pair pair;
  for (std::size_t i = 0; i < 3000; i++) *pair.a.end.at(i) = static_cast<std::byte>(i * 7);
  const std::array<ibv_sge, 3> from = {pair.a.end.sge(0, 1000), pair.a.end.sge(1000, 0), pair.a.end.sge(1000, 2000)};
  const std::array<ibv_sge, 4> to = {pair.b.end.sge(100, 1), pair.b.end.sge(5000, 1500), pair.b.end.sge(9000, 500),
                                     pair.b.end.sge(20'000, 5000)};
  ASSERT_EQ(pair.b.end.device().post_receive(*pair.b.qp, {1, to}), 0);
  ASSERT_EQ(pair.a.send(send_of(1), from), 0);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).byte_len, 3000U);
  std::vector<std::byte> got;
  for (const ibv_sge& sge : to) {
    const auto* p = reinterpret_cast<const std::byte*>(sge.addr);
    got.insert(got.end(), p, p + sge.length);
  }
  EXPECT_EQ(std::memcmp(got.data(), pair.a.end.at(0), 3000), 0);
}

TEST(Rc, Inline_TakesTheBytesAtOnceAndFromAnywhere) {
  Pair pair;
  std::string text = "not registered";
  const ibv_sge sge{reinterpret_cast<std::uintptr_t>(text.data()), static_cast<std::uint32_t>(text.size()), 0};
  pair.b.receive(1, 0, 64);
  ASSERT_EQ(pair.a.send({.flags = IBV_SEND_INLINE}, std::span{&sge, 1}), 0);
  text.assign(text.size(), 'x');
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(pair.b.end.at(0), "not registered", 14), 0);
}

TEST(Rc, Write_ArrivesWithoutAWordToTheTarget) {
  Pair pair;
  pair.a.end.fill(0, 10'000, 3);
  pair.a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(777), .rkey = pair.b.end.rkey()}, 0,
              10'000);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).opcode, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(pair.b.end.poll().empty());
  EXPECT_TRUE(pair.b.end.holds(777, 10'000, 3));
}

TEST(Rc, WriteWithImmediate_TakesAReceiveRequest) {
  for (const std::size_t length : {0U, 500U, 5000U}) {
    Pair pair;
    pair.a.end.fill(0, length, 4);
    pair.b.receive(11, 0, 0);
    pair.a.send({.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                 .imm = 99,
                 .remote_addr = pair.b.end.address(1000),
                 .rkey = pair.b.end.rkey()},
                0, length);
    pair.fabric.settle();
    const ibv_wc received = only(pair.b.end);
    EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received.wr_id, 11U);
    EXPECT_EQ(received.byte_len, length);
    EXPECT_EQ(received.imm_data, 99U);
    EXPECT_TRUE(pair.b.end.holds(1000, length, 4));
  }
}

TEST(Rc, Read_FetchesWhatTheTargetHas) {
  for (const std::size_t length : {0U, 1U, 1024U, 5001U, 200'000U}) {
    Pair pair;
    pair.b.end.fill(50, length, 6);
    pair.a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = pair.b.end.address(50), .rkey = pair.b.end.rkey()}, 300'001,
                length);
    pair.fabric.settle();
    const ibv_wc done = only(pair.a.end);
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    EXPECT_EQ(done.opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(done.byte_len, length);
    EXPECT_TRUE(pair.a.end.holds(300'001, length, 6)) << length;
  }
}

std::uint64_t word(End& end, std::size_t offset) {
  std::uint64_t v;
  std::memcpy(&v, end.at(offset), sizeof v);
  return v;
}

TEST(Rc, FetchAndAdd_AnswersWhatWasThere) {
  Pair pair;
  const std::uint64_t before = 0x1122334455667788;
  std::memcpy(pair.b.end.at(64), &before, 8);
  pair.a.send({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
               .remote_addr = pair.b.end.address(64),
               .rkey = pair.b.end.rkey(),
               .compare_add = 3},
              8, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(word(pair.b.end, 64), before + 3);
  EXPECT_EQ(word(pair.a.end, 8), before);
}

TEST(Rc, CompareAndSwap_SwapsOnlyWhatIsEqual) {
  Pair pair;
  const SendRequest swap{.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                         .remote_addr = pair.b.end.address(64),
                         .rkey = pair.b.end.rkey(),
                         .compare_add = 0,
                         .swap = 42};
  pair.a.send(swap, 8, 8);
  pair.a.send(swap, 16, 8);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 2U);
  EXPECT_EQ(word(pair.b.end, 64), 42U);
  EXPECT_EQ(word(pair.a.end, 8), 0U);
  EXPECT_EQ(word(pair.a.end, 16), 42U) << "found, and not equal to 0";
}

// That many reads, posted at once, all come whole.
void expect_reads(Pair& pair, std::size_t count) {
  for (std::size_t i = 0; i < count; i++) {
    pair.b.end.fill(i * 3000, 3000, static_cast<unsigned>(i));
    pair.a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = pair.b.end.address(i * 3000), .rkey = pair.b.end.rkey()},
                i * 3000, 3000);
  }
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), count);
  for (std::size_t i = 0; i < count; i++) EXPECT_TRUE(pair.a.end.holds(i * 3000, 3000, static_cast<unsigned>(i)));
  EXPECT_EQ(pair.b.counters().tx_nak, 0U);
}

TEST(Rc, ReadsBeyondTheLimit_WaitForTheirTurn) {
  Pair pair(PairConfig{.rd_atomic = 1});
  expect_reads(pair, 20);
}

// The counters run for the life of a connection. After 2^32 reads they begin again.
TEST(Rc, ReadsCountersWrapRound_NothingIsLost) {
  for (const std::uint8_t limit : {1, 3, 10, 127}) {
    Pair pair(PairConfig{.rd_atomic = limit});
    pair.a.qp->req.read_head = pair.a.qp->req.read_tail = 0xffff'fffa;
    pair.b.qp->resp.resource_head = pair.b.qp->resp.resource_tail = 0xffff'fffa;
    expect_reads(pair, 100);
  }
}

TEST(Rc, OperationsOfAllKinds_CompleteInOrder) {
  Pair pair;
  for (std::uint64_t i = 0; i < 10; i++) pair.b.receive(i, 4096 * i, 4096);
  std::uint64_t id = 0;
  for (int round = 0; round < 10; round++) {
    const std::uint64_t at = pair.b.end.address(500'000);
    pair.a.send({.wr_id = id++, .opcode = IBV_WR_RDMA_WRITE, .remote_addr = at, .rkey = pair.b.end.rkey()}, 0, 3000);
    pair.a.send({.wr_id = id++, .opcode = IBV_WR_RDMA_READ, .remote_addr = at, .rkey = pair.b.end.rkey()}, 8192, 2500);
    pair.a.send({.wr_id = id++, .opcode = IBV_WR_SEND}, 0, 2000);
    pair.a.send({.wr_id = id++, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_addr = at, .rkey = pair.b.end.rkey()},
                16'384, 8);
  }
  pair.fabric.settle();
  const std::vector<ibv_wc> done = pair.a.end.poll();
  ASSERT_EQ(done.size(), id);
  for (std::size_t i = 0; i < done.size(); i++) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(pair.b.end.poll().size(), 10U);
}

TEST(Rc, BothDirectionsAtOnce_DoNotDisturbEachOther) {
  Pair pair;
  for (Half* half : {&pair.a, &pair.b}) {
    Half& peer = half == &pair.a ? pair.b : pair.a;
    half->end.fill(0, 100'000, half == &pair.a ? 1 : 2);
    for (std::uint64_t i = 0; i < 4; i++)
      half->send(
          {.wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .remote_addr = peer.end.address(500'000), .rkey = peer.end.rkey()},
          0, 100'000);
  }
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 4U);
  EXPECT_EQ(pair.b.end.poll().size(), 4U);
  EXPECT_TRUE(pair.a.end.holds(500'000, 100'000, 2));
  EXPECT_TRUE(pair.b.end.holds(500'000, 100'000, 1));
}

TEST(Rc, UnsignalledRequests_SayNothingButFreeTheirPlaces) {
  PairConfig config{.depth = 8, .sq_sig_all = false};
  Pair pair(config);
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()};
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 8; i++) ASSERT_EQ(pair.a.send(write, 0, 8), 0);
    EXPECT_EQ(pair.a.send(write, 0, 8), ENOMEM);
    pair.fabric.settle();
  }
  SendRequest last = write;
  last.flags = IBV_SEND_SIGNALED;
  last.wr_id = 77;
  pair.a.send(last, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).wr_id, 77U);
}

TEST(Rc, Loopback_ToTheSameDevice) {
  Fabric fabric;
  End& end = fabric.add_end();
  const PairConfig config;
  Half a(end, config), b(end, config);
  for (Half* half : {&a, &b}) {
    Half& peer = half == &a ? b : a;
    ASSERT_EQ(Pair::init(*half), 0);
    ASSERT_EQ(Pair::to_rtr(*half, peer), 0);
    ASSERT_EQ(Pair::to_rts(*half), 0);
  }
  end.fill(0, 50'000, 5);
  a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = end.address(500'000), .rkey = end.rkey()}, 0, 50'000);
  fabric.settle();
  EXPECT_EQ(only(end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(end.holds(500'000, 50'000, 5));
  EXPECT_EQ(end.port().stats().tx_frames, 0U);
}

TEST(Rc, OverIpv6_WithTheLinkLocalAddress) {
  PairConfig config{.gid = 0};
  Pair pair(config);
  pair.a.end.fill(0, 5000, 8);
  pair.b.receive(1, 0, 5000);
  pair.a.send(send_of(1), 0, 5000);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(pair.b.end.holds(0, 5000, 8));
}

TEST(Rc, Burst_IsAcknowledgedOnce) {
  Pair pair;
  pair.fabric.settle();
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()};
  pair.a.send(write, 0, 8);
  pair.fabric.settle();  // the addresses are known now
  const std::uint64_t before = pair.b.counters().tx_packets;
  for (int i = 0; i < 10; i++) pair.a.send(write, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(pair.b.counters().tx_packets - before, 1U);
  EXPECT_EQ(pair.a.end.poll().size(), 11U);
}

TEST(Rc, NothingIsLeftBehind_InThePorts) {
  Pair pair;
  for (int i = 0; i < 50; i++) {
    pair.b.receive(1, 0, 20'000);
    pair.a.send(send_of(1), 0, 20'000);
  }
  pair.fabric.settle();
  // Frames that are ready for sending do not count.
  EXPECT_LE(pair.a.end.port().buffers_out(), 32U);
  EXPECT_LE(pair.b.end.port().buffers_out(), 32U);
}

}  // namespace
}  // namespace bypass::rdma::test
