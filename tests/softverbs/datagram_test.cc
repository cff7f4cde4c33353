// The unreliable services: datagrams, and connections that acknowledge nothing.
#include <gtest/gtest.h>

#include "softverbs/engine/wire/roce.h"
#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

SendRequest to_peer(Half& half, Half& peer) {
  return {.ah = half.ah, .remote_qpn = Device::qpn(*peer.qp), .remote_qkey = peer.config.qkey};
}

TEST(Ud, Datagram_ArrivesBehindItsHeader) {
  Pair pair(IBV_QPT_UD);
  pair.a.end.fill(0, 1000, 2);
  pair.b.receive(3, 4096, 1040);
  SendRequest request = to_peer(pair.a, pair.b);
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm = 4;
  pair.a.send(request, 0, 1000);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  const ibv_wc received = only(pair.b.end);
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.byte_len, 1040U);
  EXPECT_EQ(received.src_qp, Device::qpn(*pair.a.qp));
  EXPECT_EQ(received.wc_flags, unsigned{IBV_WC_GRH | IBV_WC_WITH_IMM});
  EXPECT_EQ(received.imm_data, 4U);
  EXPECT_EQ(received.sl, 8 | 2);  // RoCE v2 over IPv4, as UCX expects it
  EXPECT_TRUE(pair.b.end.holds(4096 + 40, 1000, 2));
  const auto& header = *reinterpret_cast<const wire::Ipv4*>(pair.b.end.at(4096 + 20));
  EXPECT_EQ(header.version_ihl, 0x45);
  EXPECT_EQ(header.source, 0x0a090001U);
  EXPECT_EQ(header.destination, 0x0a090002U);
}

TEST(Ud, OverIpv6_TheHeaderIsTheIpv6One) {
  PairConfig config{.type = IBV_QPT_UD, .gid = 0};
  Pair pair(config);
  pair.b.receive(3, 0, 100);
  pair.a.send(to_peer(pair.a, pair.b), 0, 10);
  pair.fabric.settle();
  ASSERT_EQ(only(pair.b.end).byte_len, 50U);
  EXPECT_EQ(std::memcmp(pair.b.end.at(8), pair.a.end.gid(0).raw, 16), 0);
}

TEST(Ud, WrongQueueKey_IsDroppedInSilence) {
  Pair pair(IBV_QPT_UD);
  pair.b.receive(1, 0, 100);
  SendRequest request = to_peer(pair.a, pair.b);
  request.remote_qkey++;
  pair.a.send(request, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(pair.b.end.poll().empty());
  EXPECT_EQ(pair.b.counters().rx_bad_qkey, 1U);
}

TEST(Ud, PrivilegedKey_MeansTheQueuePairsOwn) {
  Pair pair(IBV_QPT_UD);
  pair.b.receive(1, 0, 100);
  SendRequest request = to_peer(pair.a, pair.b);
  request.remote_qkey = 0x80000000;
  pair.a.send(request, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS);
}

TEST(Ud, NoReceiveRequestOrASmallOne_DropsTheDatagramAndKeepsTheRequest) {
  Pair pair(IBV_QPT_UD);
  pair.a.send(to_peer(pair.a, pair.b), 0, 100);
  pair.fabric.settle();
  pair.b.receive(1, 0, 139);
  pair.a.send(to_peer(pair.a, pair.b), 0, 100);
  pair.fabric.settle();
  EXPECT_TRUE(pair.b.end.poll().empty());
  EXPECT_EQ(pair.b.counters().rx_no_receive, 2U);
  pair.a.send(to_peer(pair.a, pair.b), 0, 99);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).wr_id, 1U);
}

TEST(Ud, HandleDestroyedAfterPosting_IsNotNeededAnyMore) {
  Pair pair(IBV_QPT_UD);
  pair.b.receive(1, 0, 100);
  pair.a.send(to_peer(pair.a, pair.b), 0, 8);
  ASSERT_EQ(pair.a.end.device().destroy_ah(*pair.a.ah), 0);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS);
}

TEST(Ud, DatagramToNobody_IsSentAsFarAsAnybodyCanTell) {
  Pair pair(IBV_QPT_UD);
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.grh.sgid_index = 1;
  attr.grh.dgid = pair.b.end.gid();
  attr.grh.dgid.raw[15] = 77;
  Ah* nobody = pair.a.end.device().create_ah(pair.a.end.pd(), attr).object;
  SendRequest request = to_peer(pair.a, pair.b);
  request.ah = nobody;
  pair.a.send(request, 0, 8);
  pair.b.receive(1, 0, 100);
  pair.a.send(to_peer(pair.a, pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 2U);
  EXPECT_EQ(pair.a.counters().no_neighbour, 1U);
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_SUCCESS) << "the next one leaves all the same";
}

TEST(Ud, Group_ReachesEveryMember) {
  Pair pair(IBV_QPT_UD);
  ibv_gid group{};
  group.raw[10] = group.raw[11] = 0xff;
  group.raw[12] = 239;
  group.raw[15] = 5;
  Half third(pair.b.end, pair.config);
  Pair::init(third), Pair::to_rtr(third, pair.a), Pair::to_rts(third);
  Device& device = pair.b.end.device();
  ASSERT_EQ(device.attach_multicast(*pair.b.qp, group), 0);
  ASSERT_EQ(device.attach_multicast(*third.qp, group), 0);
  EXPECT_EQ(device.destroy_qp(*third.qp), EBUSY);
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.grh.sgid_index = 1;
  attr.grh.dgid = group;
  SendRequest request = to_peer(pair.a, pair.b);
  request.ah = pair.a.end.device().create_ah(pair.a.end.pd(), attr).object;
  request.remote_qpn = kMulticastQpn;
  pair.b.receive(1, 0, 100);
  third.receive(2, 200, 100);
  pair.a.send(request, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(pair.b.end.poll().size(), 2U);
  ASSERT_EQ(device.detach_multicast(*third.qp, group), 0);
  EXPECT_EQ(device.detach_multicast(*third.qp, group), EINVAL);
  EXPECT_EQ(device.destroy_qp(*third.qp), 0);
  device.leave_groups(*pair.b.qp);
  pair.a.send(request, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(pair.b.end.poll().size(), 0U);
  EXPECT_EQ(device.detach_multicast(*pair.b.qp, group), EINVAL);
}

// --- UC

TEST(Uc, SendsAndWrites_Arrive) {
  Pair pair(IBV_QPT_UC);
  pair.a.end.fill(0, 5000, 1);
  pair.b.receive(1, 10'000, 5000);
  pair.b.receive(2, 0, 0);
  pair.a.send({.wr_id = 1}, 0, 5000);
  const SendRequest write{.wr_id = 2,
                          .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                          .imm = 6,
                          .remote_addr = pair.b.end.address(20'000),
                          .rkey = pair.b.end.rkey()};
  pair.a.send(write, 0, 3000);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 2U);
  const std::vector<ibv_wc> received = pair.b.end.poll();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[1].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received[1].byte_len, 3000U);
  EXPECT_TRUE(pair.b.end.holds(10'000, 5000, 1));
  EXPECT_TRUE(pair.b.end.holds(20'000, 3000, 1));
  EXPECT_LE(pair.b.counters().tx_packets, 0U) << "nothing is acknowledged";
}

TEST(Uc, LostPacket_CostsItsMessageOnly) {
  Pair pair(IBV_QPT_UC);
  std::size_t packets = 0;
  pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    return sim::Fate{.copies = from == 0 && frame.size() > 1000 && ++packets == 5 ? 0U : 1U};
  });
  for (std::uint64_t i = 0; i < 3; i++) pair.b.receive(i, i * 4096, 4096);
  for (std::uint64_t i = 0; i < 3; i++) pair.a.send({.wr_id = i}, i * 3072, 3072);
  for (std::size_t i = 0; i < 3; i++) pair.a.end.fill(i * 3072, 3072, static_cast<unsigned>(i));
  pair.fabric.settle();
  EXPECT_EQ(pair.a.end.poll().size(), 3U);
  const std::vector<ibv_wc> received = pair.b.end.poll();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_TRUE(pair.b.end.holds(0, 3072, 0));
  EXPECT_TRUE(pair.b.end.holds(4096, 3072, 2)) << "the second request serves the third message";
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

TEST(Uc, WriteWithoutTheRight_IsDroppedInSilence) {
  Pair pair(IBV_QPT_UC);
  SendRequest write{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()};
  pair.a.end.fill(0, 100, 1);
  write.rkey ^= 0x10000;
  pair.a.send(write, 0, 100);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(*pair.b.end.at(5), std::byte{});
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

}  // namespace
}  // namespace bypass::rdma::test
