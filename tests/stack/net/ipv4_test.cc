// Ethernet and IPv4 input: which frames are accepted. Each reason to drop is counted under its own name.
#include "stack/ip/ipv4.h"

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class Ipv4Input : public OneHost {
 protected:
  Ipv4Input() { endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 20, {}, this); }

  /// A right datagram to port 7.
  static sim::Bytes good(const Ipv4Options& options = {}) { return udp_frame(options, 9, 7, bytes_of("payload")); }
  bool taken(const sim::Bytes& frame) {
    const std::size_t before = host.udp().queued(*endpoint);
    exchange(frame);
    return host.udp().queued(*endpoint) == before + 1;
  }
  template <typename Change>
  static sim::Bytes changed(Change change, bool fix = true) {
    sim::Bytes frame = good();
    change(*reinterpret_cast<wire::Ipv4*>(frame.data() + 14));
    if (fix) fix_ip_checksum(frame);
    return frame;
  }

  udp::Binding* endpoint;
};

TEST_F(Ipv4Input, GoodPacket_IsTaken) {
  EXPECT_TRUE(taken(good()));
}

TEST_F(Ipv4Input, FrameShorterThanEthernet_IsCounted) {
  exchange(sim::Bytes(13));
  EXPECT_EQ(counters().drop_eth_short, 1U);
}

TEST_F(Ipv4Input, UnicastToAnotherMac_IsCounted) {
  EXPECT_FALSE(taken(good({.to_mac = mac(42)})));
  EXPECT_EQ(counters().drop_eth_not_ours, 1U);
}

TEST_F(Ipv4Input, UnknownEtherType_IsCounted) {
  auto frame = good();
  frame[12] = std::byte{0x86};
  frame[13] = std::byte{0xdd};
  EXPECT_FALSE(taken(frame));
  EXPECT_EQ(counters().drop_eth_type, 1U);
}

TEST_F(Ipv4Input, UnicastPacketInBroadcastFrame_IsDropped) {
  EXPECT_FALSE(taken(good({.to_mac = MacAddress::broadcast()})));
  EXPECT_EQ(counters().drop_ip_not_ours, 1U);
}

TEST_F(Ipv4Input, AnotherAddress_IsCounted) {
  EXPECT_FALSE(taken(good({.to = "10.9.0.3"})));
  EXPECT_FALSE(taken(good({.to = "224.0.0.1", .to_mac = {{0x01, 0, 0x5e, 0, 0, 1}}})));
  EXPECT_EQ(counters().drop_ip_not_ours, 2U);
}

TEST_F(Ipv4Input, Options_AreSkipped) {
  for (std::size_t words = 1; words <= 10; words++) EXPECT_TRUE(taken(good({.option_words = words}))) << words;
}

TEST_F(Ipv4Input, PaddingOfShortFrames_IsTrimmed) {
  auto frame = good();
  frame.resize(60, std::byte{0xee});
  ASSERT_TRUE(taken(frame));
  udp::Datagram datagram;
  ASSERT_TRUE(host.udp().front(*endpoint, datagram));
  EXPECT_EQ(datagram.length, 7U);
  EXPECT_EQ(datagram.packet->frame_len, 14U + 20 + 8 + 7);
}

TEST_F(Ipv4Input, MalformedHeaders_AreCounted) {
  const std::vector<sim::Bytes> wrong = {
      changed([](wire::Ipv4& h) { h.version_ihl = 0x65; }), changed([](wire::Ipv4& h) { h.version_ihl = 0x44; }),
      changed([](wire::Ipv4& h) { h.total_len = 19; }),     changed([](wire::Ipv4& h) { h.total_len = 1000; }),
      changed([](wire::Ipv4& h) { h.ttl = 63; }, false),  // the checksum no longer fits
  };
  for (const auto& frame : wrong) EXPECT_FALSE(taken(frame));
  auto longer_than_frame = good();
  longer_than_frame[14] = std::byte{0x4f};
  EXPECT_FALSE(taken(longer_than_frame));
  auto cut = good();
  cut.resize(30);
  EXPECT_FALSE(taken(cut));
  EXPECT_EQ(counters().drop_ip_malformed, 7U);
}

TEST_F(Ipv4Input, SourcesThatNobodyHas_AreCounted) {
  for (const char* from : {"0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255", "10.9.0.255", "10.9.0.1"})
    EXPECT_FALSE(taken(good({.from = from}))) << from;
  EXPECT_EQ(counters().drop_ip_source, 6U);
}

TEST_F(Ipv4Input, UnknownProtocol_IsCounted) {
  exchange(ipv4_frame({.protocol = 47}, bytes_of("gre?")));
  EXPECT_EQ(counters().drop_ip_protocol, 1U);
}

TEST_F(Ipv4Input, TtlOfOne_IsGoodEnoughForUs) {
  EXPECT_TRUE(taken(good({.ttl = 1})));
}

TEST_F(Ipv4Input, TcpToBroadcast_IsDropped) {
  const sim::Bytes header(20);
  exchange(ipv4_frame({.to = "10.9.0.255", .to_mac = MacAddress::broadcast(), .protocol = 6}, header));
  EXPECT_EQ(counters().drop_ip_not_ours, 1U);
}

TEST_F(Ipv4Input, TcpHeaderWrong_IsCounted) {
  sim::Bytes header(20);
  header[12] = std::byte{0x40};  // 16 bytes: shorter than TCP's fixed part
  exchange(ipv4_frame({.protocol = 6}, header));
  header[12] = std::byte{0x60};  // 24 bytes of 20
  exchange(ipv4_frame({.protocol = 6}, header));
  header.resize(19);
  exchange(ipv4_frame({.protocol = 6}, header));
  EXPECT_EQ(counters().drop_tcp_malformed, 3U);
}

TEST_F(Ipv4Input, TcpChecksumWrong_IsCounted) {
  sim::Bytes header(20);
  header[12] = std::byte{0x50};
  exchange(ipv4_frame({.protocol = 6}, header));
  EXPECT_EQ(counters().drop_tcp_checksum, 1U);
}

// Sending: the cached prefix is copied and changed.
TEST_F(Ipv4Input, SentPackets_CarryRightHeaders) {
  resolve_peer();
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  for (std::size_t len = 1; len < 1480; len += 37) {
    path.tos = static_cast<std::uint8_t>(len);
    path.ttl = static_cast<std::uint8_t>(len / 3 + 1);
    ASSERT_TRUE(send_on(path, std::string(len, 'x')));
    const auto sent = run(1us);
    ASSERT_EQ(sent.size(), 1U);
    const wire::Ipv4& header = ipv4(sent[0]);
    EXPECT_TRUE(checksum_is_good(checksum(&header, 20))) << len;
    EXPECT_EQ(header.total_len, len + 20);
    EXPECT_EQ(header.tos, path.tos);
    EXPECT_EQ(header.ttl, path.ttl);
    EXPECT_EQ(header.fragment, wire::kDontFragment);
    EXPECT_EQ(header.protocol, 17);
  }
}

// RFC 6864 §4.1: with DF the identification has no meaning. A counter there would tell each peer how much is sent to
// the others.
TEST_F(Ipv4Input, DontFragment_IdentificationIsZero) {
  resolve_peer();
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  ASSERT_TRUE(send_on(path));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(ipv4(sent[0]).id, 0U);
  EXPECT_EQ(ipv4(sent[1]).id, 0U);
}

// RFC 7739 §5.3
TEST_F(Ipv4Input, MayBeFragmented_IdentificationCountsUpForEachPeerAlone) {
  resolve_peer();
  Path path, other;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.255"), other));
  set_fragment(path, 0);
  set_fragment(other, 0);
  ASSERT_TRUE(send_on(path));
  for (int i = 0; i < 10; i++) ASSERT_TRUE(send_on(other));
  ASSERT_TRUE(send_on(path));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 12U);
  EXPECT_EQ(static_cast<std::uint16_t>(ipv4(sent[0]).id + 1), ipv4(sent[11]).id);
  EXPECT_NE(ipv4(sent[0]).id, ipv4(sent[1]).id);
}

TEST_F(Ipv4Input, NoFrameLeft_IsCountedAndSaid) {
  resolve_peer();
  std::vector<Packet*> taken_away(2000);
  const std::size_t n = host.port().alloc(0, taken_away);
  Result<bool> sent = true;
  for (int i = 0; i < 200 && sent; i++) {
    sent = send_to("10.9.0.2");
    host.port().alloc(0, std::span{taken_away}.subspan(n + static_cast<std::size_t>(i), 1));
  }
  EXPECT_EQ(sent.error(), Error::kNoMemory);
  EXPECT_EQ(counters().drop_no_frame, 1U);
}

// parse_ipv4 on a chain: the bytes that packet.h promises in the head must lie there.
TEST(ParseIpv4, HeaderBeyondTheHead_IsMalformed) {
  sim::Bytes frame = udp_frame({.option_words = 5}, 9, 7, bytes_of("payload"));
  for (std::size_t split = 1; split < 14 + 40; split++) {
    Packet head{}, tail{};
    head.data = frame.data();
    head.len = static_cast<std::uint32_t>(split);
    head.frame_len = static_cast<std::uint32_t>(frame.size());
    head.next_segment = &tail;
    tail.data = frame.data() + split;
    tail.len = static_cast<std::uint32_t>(frame.size() - split);
    L4Input input;
    EXPECT_EQ(parse_ipv4(head, input), Ipv4Check::kMalformed) << split;
  }
}

TEST(ParseIpv4, PaddingInTheTail_IsTrimmedThere) {
  sim::Bytes frame = udp_frame({}, 9, 7, bytes_of("payload"));
  frame.resize(80);
  Packet head{}, tail{};
  head.data = frame.data();
  head.len = 45;
  head.frame_len = 80;
  head.next_segment = &tail;
  tail.data = frame.data() + 45;
  tail.len = 35;
  L4Input input;
  ASSERT_EQ(parse_ipv4(head, input), Ipv4Check::kGood);
  EXPECT_EQ(head.frame_len, 49U);
  EXPECT_EQ(head.len, 45U);
  EXPECT_EQ(tail.len, 4U);
  EXPECT_EQ(input.l4_len, 15U);
}

}  // namespace
}  // namespace bypass::test
