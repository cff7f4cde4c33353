#include "stack/ip/icmp.h"

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class IcmpHost : public OneHost {
 protected:
  static const wire::Icmp& icmp(const sim::Bytes& frame) {
    return *reinterpret_cast<const wire::Icmp*>(frame.data() + 34);
  }
  static bool icmp_is_good(const sim::Bytes& frame) {
    return checksum_is_good(checksum(frame.data() + 34, frame.size() - 34));
  }
  /// A datagram as the host would have sent it, quoted by an ICMP error.
  static sim::Bytes quote(const char* from = "10.9.0.1", const char* to = "10.9.0.2", std::uint16_t from_port = 7,
                          std::uint16_t to_port = 9) {
    sim::Bytes frame = udp_frame({.from = from, .to = to}, from_port, to_port, bytes_of("data"));
    frame.erase(frame.begin(), frame.begin() + 14);
    frame.resize(28);
    return frame;
  }
  sim::Bytes unreachable(std::uint8_t code, const sim::Bytes& quoted, std::uint32_t rest = 0) {
    return icmp_frame({}, wire::kIcmpUnreachable, code, rest, quoted);
  }
};

TEST_F(IcmpHost, Echo_IsAnsweredWithTheSameBytes) {
  resolve_peer();
  for (std::size_t len : {0, 1, 56, 57, 1472}) {
    const std::string text(len, 'q');
    const auto answers = exchange(icmp_frame({.tos = 0x10}, wire::kIcmpEcho, 0, 0x12345678, bytes_of(text)));
    ASSERT_EQ(answers.size(), 1U) << len;
    EXPECT_EQ(icmp(answers[0]).type, wire::kIcmpEchoReply);
    EXPECT_EQ(icmp(answers[0]).id, 0x1234);
    EXPECT_EQ(icmp(answers[0]).sequence, 0x5678);
    EXPECT_EQ(answers[0].size(), 42 + len);
    EXPECT_EQ(ipv4(answers[0]).tos, 0x10) << "RFC 1122 §3.2.2.6";
    EXPECT_TRUE(icmp_is_good(answers[0]));
  }
  EXPECT_EQ(counters().icmp_echo, 5U);
}

TEST_F(IcmpHost, EmptyEcho_PoolDry_IsNotAnswered) {
  resolve_peer();
  std::vector<Packet*> hog(host.port().stats().buffers_total);
  hog.resize(host.port().alloc(0, hog));
  while (Packet* cached = host.ctx().queue(0).alloc()) hog.push_back(cached);
  host.port().free(std::span{hog}.first(1));  // for the request itself
  EXPECT_TRUE(exchange(icmp_frame({}, wire::kIcmpEcho, 0, 0, {})).empty());
  EXPECT_EQ(counters().icmp_echo, 0U);
  host.port().free(std::span{hog}.subspan(1));
}

TEST_F(IcmpHost, EchoFlood_IsAnsweredAtALimitedRate) {
  resolve_peer();
  std::size_t answered = 0;
  for (int i = 0; i < 30; i++) {
    for (int k = 0; k < 100; k++) world.wire().inject(0, icmp_frame({}, wire::kIcmpEcho, 0, 0, {}));
    answered += run(1us).size();
  }
  EXPECT_LE(answered, 1001U);
  EXPECT_EQ(counters().drop_icmp_rate, 3000 - answered);
}

TEST_F(IcmpHost, EchoToBroadcast_IsIgnored) {
  EXPECT_TRUE(
      exchange(icmp_frame({.to = "10.9.0.255", .to_mac = MacAddress::broadcast()}, wire::kIcmpEcho, 0, 0, {})).empty());
  EXPECT_EQ(counters().drop_icmp_ignored, 1U);
}

TEST_F(IcmpHost, ChecksumOrLengthWrong_IsCounted) {
  auto frame = icmp_frame({}, wire::kIcmpEcho, 0, 0, bytes_of("data"));
  frame.back() ^= std::byte{1};
  EXPECT_TRUE(exchange(frame).empty());
  EXPECT_TRUE(exchange(ipv4_frame({.protocol = 1}, bytes_of("short"))).empty());
  EXPECT_EQ(counters().drop_icmp_malformed, 2U);
}

TEST_F(IcmpHost, OtherTypes_AreIgnored) {
  for (std::uint8_t type : {0, 4, 5, 9, 13, 15, 17, 40, 255}) exchange(icmp_frame({}, type, 0, 0, bytes_of("body")));
  EXPECT_EQ(counters().drop_icmp_ignored, 9U);
}

TEST_F(IcmpHost, PortNobodyHas_IsReportedWithAQuote) {
  resolve_peer();
  const auto asked = udp_frame({}, 9, 4242, bytes_of("anybody there?"));
  const auto answers = exchange(asked);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(icmp(answers[0]).type, wire::kIcmpUnreachable);
  EXPECT_EQ(icmp(answers[0]).code, 3);
  EXPECT_TRUE(icmp_is_good(answers[0]));
  EXPECT_TRUE(std::equal(asked.begin() + 14, asked.end(), answers[0].begin() + 42));
  EXPECT_EQ(counters().drop_udp_no_socket, 1U);
  EXPECT_EQ(counters().icmp_errors_out, 1U);
}

TEST_F(IcmpHost, LongDatagramNobodyWants_IsQuotedWithin576Bytes) {
  resolve_peer();
  const auto answers = exchange(udp_frame({}, 9, 4242, bytes_of(std::string(1400, 'x'))));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(ipv4(answers[0]).total_len, 576);
  EXPECT_TRUE(icmp_is_good(answers[0]));
}

TEST_F(IcmpHost, BroadcastDatagramNobodyWants_IsNotReported) {
  EXPECT_TRUE(exchange(udp_frame({.to = "10.9.0.255", .to_mac = MacAddress::broadcast()}, 9, 4242, {})).empty());
  EXPECT_EQ(counters().drop_udp_no_socket, 1U);
}

TEST_F(IcmpHost, ManyUnwantedDatagrams_AreReportedAtALimitedRate) {
  resolve_peer();
  std::size_t answered = 0;
  for (int i = 0; i < 10; i++) {
    for (int k = 0; k < 50; k++) world.wire().inject(0, udp_frame({}, 9, 4242, {}));
    answered += run(1us).size();
  }
  EXPECT_EQ(answered, 50U);
  EXPECT_EQ(counters().drop_icmp_rate, 450U);
}

TEST_F(IcmpHost, PortUnreachable_ReachesTheConnectedEndpoint) {
  udp::Binding* endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 16, {}, this);
  host.udp().connect(*endpoint, {ip("10.9.0.2"), 9});
  exchange(unreachable(3, quote()));
  EXPECT_EQ(host.take_events(this), kEventError);
  EXPECT_EQ(host.udp().take_error(*endpoint), Error::kRefused);
  EXPECT_EQ(host.udp().take_error(*endpoint), Error::kNone);
  EXPECT_EQ(counters().icmp_errors_in, 1U);
}

TEST_F(IcmpHost, ErrorsForOthers_ReachNobody) {
  udp::Binding* endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 16, {}, this);
  exchange(unreachable(3, quote()));  // not connected
  host.udp().connect(*endpoint, {ip("10.9.0.2"), 9});
  exchange(unreachable(3, quote("10.9.0.1", "10.9.0.2", 7, 10)));
  exchange(unreachable(3, quote("10.9.0.1", "10.9.0.3")));
  exchange(unreachable(3, quote("10.9.0.8")));  // we never were 10.9.0.8
  EXPECT_EQ(host.udp().take_error(*endpoint), Error::kNone);
}

// As on Linux: only fatal errors reach a datagram socket that did not ask for all.
TEST_F(IcmpHost, HostUnreachable_DoesNotDisturbADatagramSocket) {
  udp::Binding* endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 16, {}, this);
  host.udp().connect(*endpoint, {ip("10.9.0.2"), 9});
  exchange(unreachable(1, quote()));
  EXPECT_EQ(host.udp().take_error(*endpoint), Error::kNone);
  exchange(unreachable(4, quote(), 1400));
  EXPECT_EQ(host.udp().take_error(*endpoint), Error::kMessageTooLarge);
}

TEST_F(IcmpHost, QuotesCutShort_AreIgnored) {
  for (std::size_t len = 0; len < 28; len++) {
    sim::Bytes quoted = quote();
    quoted.resize(len);
    exchange(unreachable(3, quoted));
  }
  EXPECT_EQ(counters().icmp_errors_in, 0U);
  EXPECT_EQ(counters().drop_icmp_ignored, 28U);
}

TEST(NeighbourUnreachable, TcpFrame_NamesItsConnection) {
  sim::Bytes l4(20);
  l4[1] = std::byte{80};
  l4[3] = std::byte{81};
  l4[7] = std::byte{5};
  sim::Bytes frame = ipv4_frame({.from = "10.9.0.1", .to = "10.9.0.2", .protocol = 6}, l4);
  Packet packet{};
  packet.data = frame.data();
  packet.len = packet.frame_len = static_cast<std::uint32_t>(frame.size());
  const auto error = neighbour_unreachable(packet);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error, Error::kHostUnreachable);
  EXPECT_TRUE(error->hard) << "ends a connection attempt, as on Linux";
  EXPECT_EQ(error->local, (Endpoint{ip("10.9.0.1"), 80}));
  EXPECT_EQ(error->remote, (Endpoint{ip("10.9.0.2"), 81}));
  EXPECT_EQ(error->sequence, 5U);
}

}  // namespace
}  // namespace bypass::test
