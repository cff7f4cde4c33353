// The bytes on the wire, one by one, and what the device answers to a peer without the library. The expected answers
// were seen from Linux's soft-RoCE.
#include <gtest/gtest.h>

#include <string>

#include "softverbs/engine/engine.h"
#include "softverbs/fabric.h"
#include "softverbs/on_the_wire.h"
#include "softverbs/roce_frame.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma::test {
namespace {

TEST_F(OnTheWire, APacketOfOurs_IsAsAnnexA17HasIt) {
  end.fill(0, 10, 1);
  half.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = 0x1122334455667788, .rkey = 0xaabbccdd}, 0, 10);
  const std::vector<Bytes> out = sent();
  ASSERT_EQ(out.size(), 1U);
  const Bytes& frame = out[0];
  ASSERT_EQ(frame.size(), 14U + 20 + 8 + 12 + 16 + 10 + 2 + 4);
  EXPECT_EQ(at<wire::Ethernet>(frame, 0).destination, mac(2));
  const auto& ipv4 = at<wire::Ipv4>(frame, 14);
  EXPECT_TRUE(checksum_is_good(checksum(&ipv4, 20)));
  EXPECT_EQ(ipv4.total_len, frame.size() - 14);
  EXPECT_EQ(ipv4.ttl, 64);
  EXPECT_EQ(ipv4.tos, 0);
  EXPECT_EQ(ipv4.fragment, wire::kDontFragment);
  EXPECT_NE(ipv4.id, 0);
  const auto& udp = at<wire::Udp>(frame, 34);
  EXPECT_GE(udp.source, 0xc000);
  EXPECT_EQ(udp.destination, 4791);
  EXPECT_EQ(udp.length, frame.size() - 34);
  EXPECT_EQ(udp.checksum, 0);
  EXPECT_EQ(bth(frame).opcode, 0x0a);
  EXPECT_EQ(bth(frame).flags, 2 << 4) << "two bytes of padding";
  EXPECT_EQ(bth(frame).pkey, 0xffff);
  EXPECT_EQ(bth(frame).qpn, 0x77U);
  EXPECT_EQ(bth(frame).psn & kPsnMask, 500U);
  EXPECT_NE(bth(frame).psn & kBthAckRequest, 0U);
  const auto& r = at<Reth>(frame, 54);
  EXPECT_EQ(r.address, 0x1122334455667788U);
  EXPECT_EQ(r.rkey, 0xaabbccddU);
  EXPECT_EQ(r.length, 10U);
  EXPECT_EQ(std::memcmp(frame.data() + 70, end.at(0), 10), 0);
  Bytes again = frame;
  fix_sums(again);
  EXPECT_EQ(again, frame) << "the ICRC";
}

TEST_F(OnTheWire, ToAHost_TheHopLimitIsTheRoutes) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init;
  Device::query_qp(*half.qp, attr, init);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 64) << "the program has said 1";
}

TEST(HopLimit, OfAGroup_IsTheProgramsOwn) {
  ibv_global_route grh{};
  grh.hop_limit = 3;
  std::ranges::copy(ip("239.1.1.1").bytes, grh.dgid.raw);
  EXPECT_EQ(hop_limit(grh), 3);
  std::ranges::copy(ip("10.9.0.2").bytes, grh.dgid.raw);
  EXPECT_EQ(hop_limit(grh), 64);
}

TEST_F(OnTheWire, AMessage_AsksForAnAcknowledgementAtItsEndOnly) {
  half.send({}, 0, 4096);
  const std::vector<Bytes> out = sent();
  EXPECT_EQ(show(out), "00/500 01/501 01/502 02/503");
  for (std::size_t i = 0; i < out.size(); i++) EXPECT_EQ((bth(out[i]).psn & kBthAckRequest) != 0, i == 3) << i;
}

TEST_F(OnTheWire, SendFromAStranger_IsAcknowledged) {
  half.receive(1, 0, 100);
  const std::vector<Bytes> out = exchange(0x04, 100, bytes_of_headers(std::uint64_t{7}));
  EXPECT_EQ(show(out), "11/100:1f");
  EXPECT_EQ(at<Aeth>(out[0], 54).syndrome_msn & kPsnMask, 1U) << "one message";
  EXPECT_EQ(only(end).byte_len, 8U);
}

TEST_F(OnTheWire, WhatRoutersAndOthersMayChange_IsAccepted) {
  half.receive(1, 0, 100);
  const Bytes frame = roce_frame(
      {.opcode = 0x04, .psn = 100, .migration = 0, .pkey = 0x7fff, .source_port = 0xc0ff, .tos = 0x62, .ttl = 3}, {});
  EXPECT_EQ(show(exchange(frame)), "11/100:1f");
}

TEST_F(OnTheWire, EthernetPadding_IsNoPartOfThePacket) {
  Bytes frame = roce_frame({.opcode = 0x11, .psn = 500}, bytes_of_headers(aeth(0x1f)));
  half.send({.opcode = IBV_WR_RDMA_WRITE}, 0, 0);
  sent();
  frame.resize(80);
  exchange(frame);
  EXPECT_EQ(only(end).status, IBV_WC_SUCCESS);
}

TEST_F(OnTheWire, PacketAhead_IsRefusedOnceUntilTheMissingOneComes) {
  for (std::uint64_t i = 0; i < 4; i++) half.receive(i, 0, 100);
  EXPECT_EQ(show(exchange(0x04, 102)), "11/100:60");
  EXPECT_EQ(show(exchange(0x04, 103)), "");
  EXPECT_EQ(show(exchange(0x04, 101)), "");
  EXPECT_EQ(show(exchange(0x04, 100)).substr(0, 3), "11/");
}

TEST_F(OnTheWire, OldPacket_IsAnsweredWithTheLatestAcknowledgement) {
  EXPECT_EQ(show(exchange(0x04, 99)), "11/99:1f") << "nothing received yet";
  half.receive(1, 0, 100);
  exchange(0x04, 100);
  EXPECT_EQ(show(exchange(0x04, 100)), "11/100:1f");
  EXPECT_EQ(end.poll().size(), 1U);
}

TEST_F(OnTheWire, NoReceiveRequest_IsAnRnrNakWithTheTimer) {
  EXPECT_EQ(show(exchange(0x04, 100)), "11/100:2c");
}

TEST_F(OnTheWire, BadIcrcUnknownQpnStrangePkeyWrongHost_AreSilence) {
  half.receive(1, 0, 100);
  Bytes frame = roce_frame({.opcode = 0x04, .psn = 100}, {});
  frame.back() ^= std::byte{1};
  EXPECT_EQ(show(exchange(frame)), "");
  EXPECT_EQ(show(exchange(roce_frame({.opcode = 0x04, .qpn = 0x99, .psn = 100}, {}))), "");
  EXPECT_EQ(show(exchange(roce_frame({.opcode = 0x04, .psn = 100, .pkey = 0x1234}, {}))), "");
  EXPECT_EQ(show(exchange(roce_frame({.opcode = 0x24, .psn = 100}, {}))), "") << "UC to an RC queue pair";
  frame = roce_frame({.opcode = 0x04, .psn = 100}, {});
  frame[14 + 15] ^= std::byte{1};  // from another host
  fix_sums(frame);
  EXPECT_EQ(show(exchange(frame)), "");
  const Counters& c = end.counters();
  EXPECT_EQ(c.rx_bad_icrc, 1U);
  EXPECT_EQ(c.rx_unknown_qp, 2U);
  EXPECT_EQ(c.rx_malformed, 1U);
  EXPECT_EQ(c.rx_wrong_peer, 1U);
  EXPECT_TRUE(end.poll().empty());
}

TEST_F(OnTheWire, ReadOfThreePackets_IsAnsweredInThree) {
  end.fill(0, 3000, 5);
  const std::vector<Bytes> out = exchange(0x0c, 100, bytes_of_headers(reth(end.address(0), end.rkey(), 3000)));
  EXPECT_EQ(show(out), "0d/100 0e/101 0f/102");
  EXPECT_EQ(std::memcmp(out[0].data() + 58, end.at(0), 1024), 0);
  EXPECT_EQ(std::memcmp(out[1].data() + 54, end.at(1024), 1024), 0) << "no acknowledgement header in the middle";
  EXPECT_EQ(show(exchange(0x0c, 101, bytes_of_headers(reth(end.address(1024), end.rkey(), 1976)))), "0d/101 0f/102")
      << "asked for again from the second on";
  EXPECT_EQ(show(exchange(0x0c, 101, bytes_of_headers(reth(end.address(0), end.rkey(), 1976)))), "")
      << "that is another read";
}

struct Shape {
  const char* name;
  std::uint8_t opcode;
  std::size_t payload;
};
class OutOfShape : public OnTheWire, public ::testing::WithParamInterface<Shape> {};

TEST_P(OutOfShape, IsAnInvalidRequest) {
  for (std::uint64_t i = 0; i < 2; i++) half.receive(i, 0, 4096);
  EXPECT_EQ(show(exchange(GetParam().opcode, 100, Bytes(GetParam().payload))), "11/100:61");
  EXPECT_EQ(half.state(), IBV_QPS_ERR);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OutOfShape,
                         ::testing::Values(Shape{"MiddleWithoutAFirst", 0x01, 1024}, Shape{"ShortFirst", 0x00, 1000},
                                           Shape{"LastWithoutAFirst", 0x02, 10}, Shape{"LongOnly", 0x04, 1028}),
                         [](const auto& shape) { return std::string(shape.param.name); });

TEST_F(OnTheWire, AnswersToNothing_AreIgnored) {
  exchange(roce_frame({.opcode = 0x11, .psn = 500}, bytes_of_headers(aeth(0x1f))));
  exchange(roce_frame({.opcode = 0x11, .psn = 499}, bytes_of_headers(aeth(0x62))));
  exchange(roce_frame({.opcode = 0x10, .psn = 500}, bytes_of_headers(aeth(0x1f), std::uint64_t{})));
  exchange(roce_frame({.opcode = 0x12, .psn = 500}, bytes_of_headers(aeth(0x1f), std::uint64_t{})));
  EXPECT_EQ(half.state(), IBV_QPS_RTS);
  EXPECT_EQ(end.counters().rx_late_response, 4U);
}

TEST_F(OnTheWire, DataForARequestThatWantsNone_IsABadResponse) {
  half.send({}, 0, 8);
  sent();
  exchange(roce_frame({.opcode = 0x10, .psn = 500}, bytes_of_headers(aeth(0x1f), std::uint64_t{})));
  EXPECT_EQ(only(end).status, IBV_WC_BAD_RESP_ERR);
  EXPECT_EQ(half.state(), IBV_QPS_ERR);
}

TEST_F(OnTheWire, ReadAnswerOfTheWrongLength_IsABadResponseAndWritesNothing) {
  half.send({.opcode = IBV_WR_RDMA_READ}, 0, 8);
  sent();
  const Bytes nine(9, std::byte{0xee});
  Bytes rest = bytes_of_headers(aeth(0x1f));
  rest.insert(rest.end(), nine.begin(), nine.end());
  exchange(roce_frame({.opcode = 0x10, .psn = 500}, rest));
  EXPECT_EQ(only(end).status, IBV_WC_BAD_RESP_ERR);
  EXPECT_EQ(*end.at(0), std::byte{});
}

TEST_F(OnTheWire, RepeatedSequenceNak_RestartsOnceOnly) {
  half.send({}, 0, 4096);
  sent();
  const Bytes nak = roce_frame({.opcode = 0x11, .psn = 501}, bytes_of_headers(aeth(0x60)));
  EXPECT_EQ(show(exchange(nak)), "01/501 01/502 02/503");
  EXPECT_EQ(show(exchange(nak)), "");
  EXPECT_EQ(end.counters().timeouts, 0U);
}

// --- Neighbours

TEST(Neighbours, FirstPacket_AsksAndPeersLearnFromTheQuestion) {
  Pair pair;
  std::size_t questions = 0;
  pair.fabric.wire().set_filter([&](std::size_t, std::span<const std::byte> frame) {
    if (frame[12] == std::byte{8} && frame[13] == std::byte{6})
      questions += std::to_integer<std::size_t>(frame[21]) & 1;
    return sim::Fate{};
  });
  pair.b.receive(1, 0, 8);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(questions, 1U) << "the answering side knows whom it answers";
}

TEST(Neighbours, Resolve_AnswersKnownOrUnreachable) {
  Fabric fabric;
  End &a = fabric.add_end(), &b = fabric.add_end();
  ibv_gid nobody = b.gid();
  nobody.raw[15] = 99;
  EXPECT_EQ(a.device().resolve(a.gid(), fabric.now()), Resolution::kKnown) << "itself";
  for (const std::size_t index : {0U, 1U}) {
    EXPECT_EQ(a.device().resolve(b.gid(index), fabric.now()), Resolution::kAsked);
    fabric.run_for(1ms);
    EXPECT_EQ(a.device().resolve(b.gid(index), fabric.now()), Resolution::kKnown);
    MacAddress found;
    EXPECT_TRUE(a.device().neighbour(b.gid(index), found));
    EXPECT_EQ(found, b.device().mac());
  }
  Resolution last = Resolution::kAsked;
  fabric.run_until([&] { return (last = a.device().resolve(nobody, fabric.now())) != Resolution::kAsked; }, 10s);
  EXPECT_EQ(last, Resolution::kUnreachable);
}

TEST(Neighbours, PeerWithAnotherCard_IsFoundAgain) {
  Pair pair;
  pair.b.receive(1, 0, 8);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  // The peer's address is announced from another MAC. The device follows.
  pair.fabric.wire().inject(
      0, bypass::test::arp_frame({.from_mac = mac(9), .sender_mac = mac(9), .target_ip = "10.9.0.2"}));
  pair.fabric.run_for(1us);
  MacAddress found;
  ASSERT_TRUE(pair.a.end.device().neighbour(pair.b.end.gid(), found));
  EXPECT_EQ(found, mac(9));
  pair.fabric.run_for(40s);
  ASSERT_TRUE(pair.a.end.device().neighbour(pair.b.end.gid(), found));
  EXPECT_EQ(found, mac(2)) << "asked again after a while";
}

TEST(Neighbours, Farewell_IsOverWhenEverybodyHasTakenWhatWasSent) {
  for (const std::size_t gid : {0U, 1U}) {
    Pair pair({.gid = gid});
    Device& device = pair.a.end.device();
    EXPECT_EQ(device.farewell(pair.fabric.now()), 0U) << "nobody was sent anything";
    pair.b.receive(1, 0, 8);
    pair.a.send({}, 0, 8);
    pair.fabric.run_until([&] { return !pair.a.end.poll().empty(); }, 1s);
    pair.fabric.wire().set_impairment({.delay = 50us});
    EXPECT_EQ(device.farewell(pair.fabric.now()), 1U);
    pair.fabric.run_for(90us);
    EXPECT_EQ(device.farewell(pair.fabric.now()), 1U) << "its answer is still on its way";
    pair.fabric.run_for(20us);
    EXPECT_EQ(device.farewell(pair.fabric.now()), 0U);
  }
}

TEST(Neighbours, MemoryThatIsLetGoOf_IsNotWrittenTo) {
  Pair pair({.gid = 0});
  pair.b.receive(1, 0, 8);
  pair.b.end.device().let_go_of_memory();
  pair.a.send({}, 0, 8);
  pair.fabric.run_for(1ms);
  EXPECT_TRUE(pair.b.end.poll().empty());
  EXPECT_EQ(pair.b.end.device().counters().rx_wrong_state, 1U);
  EXPECT_EQ(pair.a.end.device().farewell(pair.fabric.now()), 1U);
  pair.fabric.run_for(1ms);
  EXPECT_EQ(pair.a.end.device().farewell(pair.fabric.now()), 0U) << "neighbours are heard";
}

TEST(Neighbours, WhereAKernelAnswers_TheDeviceDoesNot) {
  Fabric fabric;
  EndConfig config;
  config.device.answer_neighbours = false;
  End& end = fabric.add_end(config);
  fabric.wire().inject(0, bypass::test::arp_frame({}));
  fabric.run_for(1ms);
  EXPECT_EQ(end.port().stats().tx_frames, 0U);
}

}  // namespace
}  // namespace bypass::rdma::test
