// Raw-packet queue pairs and steering, beside RoCE on the same wire.
#include <gtest/gtest.h>

#include "softverbs/engine/wire/roce.h"
#include "softverbs/fabric.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma::test {
namespace {

using bypass::test::arp_frame;
using bypass::test::udp_frame;
using sim::Bytes;

Bytes tcp_frame(const bypass::test::Ipv4Options& options, const Bytes& payload) {
  Bytes segment(wire::kMinTcpHeader);
  segment[12] = std::byte{0x50};
  segment.insert(segment.end(), payload.begin(), payload.end());
  const std::uint16_t sum = checksum_finish(
      checksum(segment.data(), segment.size()) +
      checksum_pseudo(ip(options.from), ip(options.to), options.protocol, static_cast<std::uint32_t>(segment.size())));
  std::memcpy(&segment[16], &sum, sizeof sum);
  return bypass::test::ipv4_frame(options, segment);
}

class Raw : public ::testing::Test {
 protected:
  Raw() : end(fabric.add_end()), probe(add_probe()) {}

  sim::SimPort& add_probe() {
    sim::PortConfig config;
    config.mac = mac(2);
    return fabric.wire().add_port(config);
  }
  Half raw(std::uint32_t depth = 16) {
    PairConfig config{.type = IBV_QPT_RAW_PACKET, .depth = depth, .sges = 2};
    Half half(end, config);
    EXPECT_EQ(Pair::init(half), 0);
    EXPECT_EQ(half.to_state(IBV_QPS_RTR), 0);
    EXPECT_EQ(half.to_state(IBV_QPS_RTS), 0);
    for (std::uint64_t i = 0; i < depth / 2; i++) EXPECT_EQ(half.receive(i, i * 2048 + room_, 2048), 0);
    room_ += depth / 2 * 2048;
    return half;
  }
  Flow* steer(Half& half, const FlowRule& rule) { return end.device().create_flow(*half.qp, rule).object; }
  void inject(const Bytes& frame) {
    fabric.wire().inject(0, frame);
    fabric.run_for(1us);
  }
  // The queue pairs that got the frames since the last call.
  std::vector<std::uint32_t> takers() {
    std::vector<std::uint32_t> all;
    for (const ibv_wc& wc : end.poll()) all.push_back(wc.qp_num);
    return all;
  }
  static FlowRule to_mac(const MacAddress& address, std::uint16_t priority = 0) {
    FlowRule rule;
    rule.priority = priority;
    rule.value.destination = address;
    rule.mask.destination = MacAddress::broadcast();
    return rule;
  }
  static FlowRule to_port(std::uint16_t port, std::uint16_t priority = 0) {
    FlowRule rule;
    rule.priority = priority;
    rule.value.ether_type = wire::kEtherTypeIpv4;
    rule.mask.ether_type = 0xffff;
    rule.value.protocol = wire::kProtocolUdp;
    rule.mask.protocol = 0xff;
    rule.value.destination_port = port;
    rule.mask.destination_port = 0xffff;
    return rule;
  }
  std::vector<Bytes> sent() {
    std::vector<Bytes> all;
    std::array<Packet*, 16> packets;
    for (std::size_t n; (n = probe.receive(0, packets)) != 0;) {
      for (std::size_t i = 0; i < n; i++) all.emplace_back(packets[i]->data, packets[i]->data + packets[i]->len);
      probe.free(std::span{packets}.first(n));
    }
    return all;
  }

  Fabric fabric;
  End& end;
  sim::SimPort& probe;
  std::size_t room_ = 100'000;
};

TEST_F(Raw, FrameForTheRule_ArrivesWhole) {
  Half half = raw();
  FlowRule rule = to_mac(mac(1));
  rule.flow_tag = 99;
  steer(half, rule);
  const Bytes frame = udp_frame({}, 9, 7, bypass::test::bytes_of("hello"));
  inject(frame);
  std::array<Completion, 1> completion;
  ASSERT_EQ(end.device().peek(end.cq(), completion), 1U);
  EXPECT_EQ(completion[0].flow_tag, 99U);
  const ibv_wc wc = only(end);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, frame.size());
  EXPECT_EQ(std::memcmp(end.at(100'000), frame.data(), frame.size()), 0);
}

TEST_F(Raw, FrameWithoutARule_GoesNowhere) {
  raw();
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_TRUE(takers().empty());
  EXPECT_EQ(end.counters().rx_unsteered, 1U);
}

TEST_F(Raw, MoreSpecificRuleOfTheSamePriority_Wins) {
  Half all = raw(), one = raw();
  steer(all, to_mac(mac(1)));
  Flow* flow = steer(one, to_port(7));
  inject(udp_frame({}, 9, 7, {}));
  inject(udp_frame({}, 9, 8, {}));
  EXPECT_EQ(takers(), (std::vector{Device::qpn(*all.qp), Device::qpn(*all.qp)})) << "48 bits are more than 40";
  end.device().destroy_flow(*flow);
  FlowRule rule = to_port(7);
  rule.value.ip_destination = ip("10.9.0.1");
  rule.mask.ip_destination = IpAddress::from_v4(0xffffffff);
  steer(one, rule);
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*one.qp)});
}

TEST_F(Raw, LowerPriorityNumber_IsAskedFirst) {
  Half all = raw(), one = raw();
  steer(all, to_mac(mac(1), 2));
  Flow* flow = steer(one, to_port(7, 1));
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*one.qp)});
  EXPECT_EQ(end.device().destroy_qp(*one.qp), EBUSY);
  EXPECT_EQ(end.device().destroy_flow(*flow), 0);
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*all.qp)});
}

TEST_F(Raw, ManyConnectionRules_EachTakeTheirOwn) {
  std::vector<Half> halves;
  for (std::uint16_t i = 0; i < 4; i++) halves.push_back(raw());
  for (std::uint16_t port = 1000; port < 2000; port++) steer(halves[port % 4], to_port(port));
  for (const std::uint16_t port : {1001, 1502, 1999}) {
    inject(udp_frame({}, 9, port, {}));
    EXPECT_EQ(takers(), std::vector{Device::qpn(*halves[port % 4].qp)});
  }
}

TEST_F(Raw, AddressPrefix_MatchesUnderItsMask) {
  Half half = raw();
  FlowRule rule;
  rule.value.ip_source = ip("10.9.0.0");
  rule.mask.ip_source = IpAddress::from_v4(0xffffff00);
  steer(half, rule);
  inject(udp_frame({.from = "10.9.0.2"}, 1, 2, {}));
  EXPECT_EQ(takers().size(), 1U);
  inject(udp_frame({.from = "10.8.0.2"}, 1, 2, {}));
  inject(arp_frame({}));
  EXPECT_TRUE(takers().empty());
}

TEST_F(Raw, DropRule_TakesTheFrameAway) {
  Half half = raw();
  steer(half, to_mac(mac(1), 1));
  FlowRule rule = to_port(7, 0);
  rule.drop = true;
  steer(half, rule);
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_TRUE(takers().empty());
}

TEST_F(Raw, Broadcast_IsCopiedToEveryQueuePairOnceAndAnsweredByTheDevice) {
  Half one = raw(), two = raw();
  steer(one, to_mac(MacAddress::broadcast()));
  FlowRule all;
  all.type = IBV_FLOW_ATTR_ALL_DEFAULT;
  all.priority = 5;
  steer(one, all);
  FlowRule groups = all;
  groups.type = IBV_FLOW_ATTR_MC_DEFAULT;
  steer(two, groups);
  inject(arp_frame({}));
  EXPECT_EQ(takers().size(), 2U);
  ASSERT_EQ(sent().size(), 1U) << "the device's own answer";
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*one.qp)}) << "unicast: the default for all";
}

TEST_F(Raw, RoceForTheDevice_IsSeenBySniffersOnly) {
  Half all = raw(), sniffer = raw();
  FlowRule rule;
  rule.type = IBV_FLOW_ATTR_ALL_DEFAULT;
  steer(all, rule);
  rule.type = IBV_FLOW_ATTR_SNIFFER;
  steer(sniffer, rule);
  inject(udp_frame({}, 0xc000, kRocePort, bypass::test::bytes_of("not quite a packet")));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*sniffer.qp)});
  EXPECT_EQ(end.counters().rx_packets, 1U);
  inject(udp_frame({}, 0xc000, 53, {}));
  EXPECT_EQ(takers().size(), 2U);
}

TEST_F(Raw, NoReceiveRequestOrASmallOne_DropsTheFrame) {
  Half half = raw(2);
  steer(half, to_mac(mac(1)));
  inject(udp_frame({}, 9, 7, {}));
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_EQ(takers().size(), 1U);
  half.receive(5, 0, 40);
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_TRUE(takers().empty());
  EXPECT_EQ(end.counters().rx_no_receive, 2U);
}

TEST_F(Raw, MoreFramesThanReceiveRequests_WaitOnTheWire) {
  Half half = raw();  // 8 of them
  steer(half, to_mac(mac(1)));
  for (unsigned i = 0; i < 200; i++) fabric.wire().inject(0, udp_frame({}, 9, static_cast<std::uint16_t>(i), {}));
  std::vector<unsigned> ports;
  for (unsigned turn = 0; turn < 40; turn++) {
    fabric.run_for(1us);
    for (const ibv_wc& wc : end.poll()) {
      const auto& udp = *reinterpret_cast<const wire::Udp*>(end.at(100'000 + wc.wr_id * 2048 + 34));
      ports.push_back(udp.destination);
      half.receive(wc.wr_id, 100'000 + wc.wr_id * 2048, 2048);
    }
  }
  ASSERT_EQ(ports.size(), 200U);
  for (unsigned i = 0; i < 200; i++) EXPECT_EQ(ports[i], i);
  EXPECT_EQ(end.counters().rx_no_receive, 0U);
}

TEST_F(Raw, FrameBeyondTheMtu_WaitsForAReceiveRequestAPiece) {
  EndConfig config;
  config.caps.rx_checksum = true;
  End& other = fabric.add_end(config);
  Half half(other, {.type = IBV_QPT_RAW_PACKET, .depth = 4});
  Pair::init(half);
  half.to_state(IBV_QPS_RTR);
  ASSERT_EQ(other.device().create_flow(*half.qp, to_mac(mac(2))).error, 0);
  Bytes payload(20'000), got;
  for (std::size_t i = 0; i < payload.size(); i++) payload[i] = static_cast<std::byte>(i % 251);
  fabric.wire().inject(2, tcp_frame({.to_mac = mac(2), .protocol = wire::kProtocolTcp}, payload));
  std::size_t pieces = 0;
  for (unsigned turn = 0; turn < 10; turn++) {
    half.receive(turn, 0, 2048);
    half.receive(turn, 2048, 2048);
    fabric.run_for(1us);
    for (const ibv_wc& wc : other.poll()) {
      const std::byte* const piece = other.at(pieces++ % 2 * 2048);
      got.insert(got.end(), piece + 54, piece + wc.byte_len);
    }
  }
  EXPECT_EQ(pieces, 14U);
  EXPECT_EQ(got, payload);
  EXPECT_EQ(other.counters().rx_no_receive, 0U);
  fabric.run_for(1s);
  EXPECT_EQ(other.port().buffers_out(), 0U);
}

TEST_F(Raw, QueuePairThatNobodyLooksAfter_HoldsUpTheOthersForAMoment) {
  Half stopped = raw(2), other = raw(64);
  steer(stopped, to_port(7));
  steer(other, to_port(8));
  for (const std::uint16_t port : {7, 7, 8}) fabric.wire().inject(0, udp_frame({}, 9, port, {}));
  fabric.run_for(1ms);
  EXPECT_EQ(takers(), std::vector{Device::qpn(*stopped.qp)});
  EXPECT_TRUE(end.device().holds_wire());
  fabric.wire().inject(0, udp_frame({}, 9, 8, {}));
  fabric.run_for(100ms);
  EXPECT_EQ(takers(), (std::vector{Device::qpn(*other.qp), Device::qpn(*other.qp)}));
  EXPECT_EQ(end.counters().rx_no_receive, 1U);
  for (const std::uint16_t port : {7, 8}) inject(udp_frame({}, 9, port, {}));
  EXPECT_EQ(takers(), std::vector{Device::qpn(*other.qp)}) << "it is not waited for again so soon";
  EXPECT_FALSE(end.device().holds_wire());
  fabric.run_for(1s);
  inject(udp_frame({}, 9, 7, {}));
  EXPECT_TRUE(end.device().holds_wire());
  stopped.receive(1, 0, 2048);
  fabric.run_for(1us);
  EXPECT_EQ(takers(), std::vector{Device::qpn(*stopped.qp)});
}

// --- Sending

TEST_F(Raw, FrameIsSentAsItIs) {
  Half half = raw();
  const Bytes frame = udp_frame({.from_mac = mac(1), .to_mac = mac(2)}, 9, 7, bypass::test::bytes_of("hello"));
  std::memcpy(end.at(0), frame.data(), frame.size());
  const std::array<ibv_sge, 2> sges = {end.sge(0, 20), end.sge(20, frame.size() - 20)};
  ASSERT_EQ(half.send({}, sges), 0);
  fabric.run_for(1us);
  const std::vector<Bytes> out = sent();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0], frame);
  EXPECT_EQ(only(end).status, IBV_WC_SUCCESS);
}

TEST_F(Raw, ChecksumsAreFilledOnDemand) {
  Half half = raw();
  const Bytes frame = udp_frame({.from_mac = mac(1), .to_mac = mac(2)}, 9, 7, bypass::test::bytes_of("hello"));
  Bytes without = frame;
  for (const std::size_t at : {24U, 25U, 40U, 41U}) without[at] = std::byte{0x77};
  std::memcpy(end.at(0), without.data(), without.size());
  half.send({.flags = IBV_SEND_IP_CSUM}, 0, without.size());
  fabric.run_for(1us);
  const std::vector<Bytes> out = sent();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0], frame);
}

TEST_F(Raw, FrameThatTheWireHasNoRoomFor_IsLostAndHarmsNobody) {
  Half half = raw();
  EXPECT_EQ(end.device().wire_mtu(), 1500U);
  for (const std::size_t length : {1515U, 1U << 20, 1514U}) half.send({}, 0, length);
  fabric.run_for(1us);
  const std::vector<ibv_wc> done = end.poll();
  ASSERT_EQ(done.size(), 3U);
  for (const ibv_wc& wc : done) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent().size(), 1U);
  EXPECT_EQ(end.counters().tx_too_long, 2U);
  EXPECT_EQ(half.state(), IBV_QPS_RTS);
}

TEST_F(Raw, FrameWithoutAHeader_IsALengthError) {
  Half half = raw();
  half.send({}, 0, 13);
  fabric.run_for(1us);
  EXPECT_EQ(end.poll().front().status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(Raw, LargeSegments_AreRefusedWhereThePortCutsNone) {
  Half half = raw();
  const std::array<std::byte, 54> header{};
  EXPECT_EQ(half.send({.opcode = IBV_WR_TSO, .tso_header = header, .tso_mss = 1000}, 0, 5000), EINVAL);
  EXPECT_EQ(end.device().max_tso(), 0U);
}

// A card's own checksums. They are requested with the lengths that say where they lie, and reported if they were right.
TEST(RawOffload, ThePortsChecksums_AreUsedInBothDirections) {
  Fabric fabric;
  EndConfig config;
  config.caps = bypass::test::offloading_caps();
  End& end = fabric.add_end(config);
  sim::PortConfig probe_config;
  probe_config.mac = mac(2);
  sim::SimPort& probe = fabric.wire().add_port(probe_config);
  Half half(end, {.type = IBV_QPT_RAW_PACKET});
  Pair::init(half), half.to_state(IBV_QPS_RTR), half.to_state(IBV_QPS_RTS);
  const Bytes frame = udp_frame({.from_mac = mac(1), .to_mac = mac(2)}, 9, 7, bypass::test::bytes_of("hello"));
  Bytes without = frame;
  without[40] = without[41] = std::byte{0x77};
  std::memcpy(end.at(0), without.data(), without.size());
  half.send({.flags = IBV_SEND_IP_CSUM}, 0, without.size());
  fabric.run_for(1us);
  Packet* out = nullptr;
  ASSERT_EQ(probe.receive(0, {&out, 1}), 1U);
  EXPECT_EQ(std::memcmp(out->data, frame.data(), frame.size()), 0);
  probe.free({&out, 1});
  end.poll();

  FlowRule all;
  all.type = IBV_FLOW_ATTR_ALL_DEFAULT;
  ASSERT_NE(end.device().create_flow(*half.qp, all).object, nullptr);
  Bytes good = udp_frame({}, 9, 7, bypass::test::bytes_of("hello")), bad = good;
  bad.back() ^= std::byte{1};
  for (const Bytes* one : {&good, &bad}) {
    half.receive(1, 4096, 2048);
    fabric.wire().inject(0, *one);
    fabric.run_for(1us);
    EXPECT_EQ((only(end).wc_flags & IBV_WC_IP_CSUM_OK) != 0, one == &good);
  }
}

TEST(RawTso, LargeSegment_IsCutByThePort) {
  Fabric fabric;
  EndConfig config;
  config.caps = bypass::test::offloading_caps();
  End& end = fabric.add_end(config);
  sim::PortConfig probe_config;
  probe_config.mac = mac(2);
  sim::SimPort& probe = fabric.wire().add_port(probe_config);
  Half half(end, {.type = IBV_QPT_RAW_PACKET});
  Pair::init(half), half.to_state(IBV_QPS_RTR), half.to_state(IBV_QPS_RTS);
  EXPECT_EQ(end.device().max_tso(), 60'000U);
  Bytes tcp(20);
  tcp[12] = std::byte{0x50};
  Bytes header = bypass::test::ipv4_frame({.from_mac = mac(1), .to_mac = mac(2), .protocol = 6}, tcp);
  reinterpret_cast<wire::Ipv4*>(header.data() + 14)->total_len = 40 + 5000;
  ASSERT_EQ(half.send({.opcode = IBV_WR_TSO, .tso_header = header, .tso_mss = 1000}, 0, 5000), 0);
  fabric.run_for(1us);
  std::array<Packet*, 16> frames;
  const std::size_t n = probe.receive(0, frames);
  EXPECT_EQ(n, 5U);
  for (std::size_t i = 0; i < n; i++) EXPECT_EQ(frames[i]->frame_len, 1054U);
  probe.free(std::span{frames}.first(n));
  EXPECT_EQ(only(end).opcode, IBV_WC_TSO);

  // A frame that cannot be cut is too long. It is lost, as on a card's way out.
  const auto lost = [&](auto change, std::uint16_t mss = 1000) {
    Bytes bad = header;
    change(bad);
    const std::uint64_t before = end.counters().tx_too_long;
    ASSERT_EQ(half.send({.opcode = IBV_WR_TSO, .tso_header = bad, .tso_mss = mss}, 0, 5000), 0);
    fabric.run_for(1us);
    EXPECT_EQ(only(end).status, IBV_WC_SUCCESS);
    EXPECT_EQ(end.counters().tx_too_long, before + 1);
    EXPECT_EQ(probe.receive(0, frames), 0U);
  };
  lost([](Bytes& b) { b[12] = std::byte{0x86}, b[13] = std::byte{0xdd}; });  // IPv6
  lost([](Bytes& b) { b[23] = std::byte{17}; });                             // UDP
  lost([](Bytes& b) { b[46] = std::byte{0x40}; });                           // a TCP header of 16 bytes
  lost([](Bytes& b) { b[46] = std::byte{0xf0}; });                           // … of more than there is
  lost([](Bytes& b) { b[20] = std::byte{0x20}; });                           // a fragment
  lost([](Bytes&) {}, 1461);                                                 // parts that are too long themselves
}

}  // namespace
}  // namespace bypass::rdma::test
