#include "stack/udp/udp.h"
#include "stack/frame/arrival.h"

#include <gtest/gtest.h>

#include "stack/frame/wire.h"
#include "stack/world.h"

namespace bypass::test {
namespace {

// Two hosts, 10.9.0.1 and 10.9.0.2, with an endpoint each on port 7.
class UdpPair : public testing::Test {
 protected:
  explicit UdpPair(const HostConfig& base = {}) : a(world.add_host(base)), b(world.add_host(second(base))) {
    at_a = *a.udp().open({a.address(), 7}, 1 << 18, {}, &at_a);
    at_b = *b.udp().open({b.address(), 7}, 1 << 18, {}, &at_b);
  }
  static HostConfig second(HostConfig config) {
    config.address = "10.9.0.2";
    return config;
  }
  static Result<std::size_t> send(Host& host, udp::Binding& from, const Endpoint& to, const std::string& text,
                                  const udp::SendOptions& options = {}) {
    const std::span<const std::byte> piece = bytes_of(text);
    const auto sent = host.udp().send(host.ctx(), from, to, {}, {&piece, 1}, options);
    host.ctx().flush();
    return sent;
  }
  static std::string text_of(const udp::Datagram& datagram) {
    std::string text;
    std::size_t skip = datagram.offset;
    for (const Packet* p = datagram.packet; p != nullptr; p = p->next_segment) {
      const std::size_t skipped = std::min<std::size_t>(skip, p->len);
      text.append(reinterpret_cast<const char*>(p->data + skipped), p->len - skipped);
      skip -= skipped;
    }
    return text;
  }
  // The oldest datagram's text, or "-" if there is no datagram.
  static std::string receive(Host& host, udp::Binding& binding, udp::Datagram* out = nullptr) {
    udp::Datagram datagram;
    if (!host.udp().front(binding, datagram)) return "-";
    if (out != nullptr) *out = datagram;
    std::string text = text_of(datagram);
    host.udp().pop(host.ctx(), binding);
    return text;
  }

  World world;
  Host& a;
  Host& b;
  udp::Binding* at_a;
  udp::Binding* at_b;
};

TEST_F(UdpPair, QueuedBytes_AreWhatTheQueueHoldsOfMemory) {
  EXPECT_EQ(b.udp().queued_bytes(*at_b), 0U);
  for (const char* text : {"hello", "again"}) {
    ASSERT_EQ(*send(a, *at_a, {b.address(), 7}, text), 5U);
    world.run_for(1ms);
  }
  const std::size_t both = b.udp().queued_bytes(*at_b);
  EXPECT_EQ(b.udp().queued(*at_b), 2U);
  EXPECT_GT(both, 10U) << "more than the payload, as ss(8) counts";
  (void)receive(b, *at_b);
  EXPECT_EQ(b.udp().queued_bytes(*at_b), both / 2);
}

TEST_F(UdpPair, FirstDatagram_WaitsForArpAndArrives) {
  ASSERT_EQ(*send(a, *at_a, {b.address(), 7}, "hello"), 5U);
  world.run_for(1ms);
  udp::Datagram datagram;
  EXPECT_EQ(receive(b, *at_b, &datagram), "hello");
  EXPECT_EQ(datagram.source, (Endpoint{a.address(), 7}));
  EXPECT_EQ(datagram.destination, b.address());
  EXPECT_EQ(datagram.ttl, 64);
  EXPECT_EQ(b.take_events(&at_b), kEventReadable);
}

TEST_F(UdpPair, PingPong_EchoesEachOne) {
  for (int i = 0; i < 100; i++) {
    ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "ping").ok());
    world.run_for(10us);
    ASSERT_EQ(receive(b, *at_b), "ping");
    ASSERT_TRUE(send(b, *at_b, {a.address(), 7}, "pong").ok());
    world.run_for(10us);
    ASSERT_EQ(receive(a, *at_a), "pong");
  }
  EXPECT_EQ(a.counters().arp_requests, 2U) << "an announcement and one question";
}

TEST_F(UdpPair, EverySize_ArrivesWholeWithAndWithoutOffloads) {
  for (const bool offloads : {false, true}) {
    World other;
    HostConfig config;
    if (offloads) config.caps = offloading_caps();
    Host& from = other.add_host(config);
    Host& to = other.add_host(second(config));
    udp::Binding* out = *from.udp().open({from.address(), 7}, 1 << 18, {}, &from);
    udp::Binding* in = *to.udp().open({to.address(), 7}, 1 << 18, {}, &to);
    for (std::size_t len = 0; len <= 1472; len += len < 40 ? 1 : 97) {
      std::string text(len, '.');
      for (std::size_t i = 0; i < len; i++) text[i] = static_cast<char>(i * 31 + len);
      ASSERT_EQ(*send(from, *out, {to.address(), 7}, text), len);
      other.run_for(10us);
      ASSERT_EQ(receive(to, *in), text);
    }
    EXPECT_EQ(to.counters().drop_udp_malformed, 0U);
  }
}

TEST_F(UdpPair, GatheredPieces_MakeOneDatagram) {
  const std::string one = "one", two = "-", three = "three";
  const std::span<const std::byte> pieces[] = {bytes_of(one), bytes_of(two), {}, bytes_of(three)};
  ASSERT_EQ(*a.udp().send(a.ctx(), *at_a, {b.address(), 7}, {}, pieces, {}), 9U);
  a.ctx().flush();
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *at_b), "one-three");
}

TEST_F(UdpPair, JumboDatagram_SpansBuffersOnBothSides) {
  World other;
  HostConfig config;
  config.mtu = 9000;
  config.rx_segment = 500;
  Host& from = other.add_host(config);
  Host& to = other.add_host(second(config));
  udp::Binding* out = *from.udp().open({from.address(), 7}, 1 << 18, {}, &from);
  udp::Binding* in = *to.udp().open({to.address(), 7}, 1 << 18, {}, &to);
  std::string text(8972, '.');
  for (std::size_t i = 0; i < text.size(); i++) text[i] = static_cast<char>(i * 31);
  ASSERT_TRUE(send(from, *out, {to.address(), 7}, text).ok());
  other.run_for(1ms);
  EXPECT_EQ(receive(to, *in), text);
}

TEST_F(UdpPair, AboveTheMtuWithoutFragments_IsTooLarge) {
  EXPECT_EQ(send(a, *at_a, {b.address(), 7}, std::string(1473, 'x'), {.fragment = false}).error(),
            Error::kMessageTooLarge);
  EXPECT_TRUE(send(a, *at_a, {b.address(), 7}, std::string(1472, 'x'), {.fragment = false}).ok());
}

TEST_F(UdpPair, AboveIpv4sLimit_IsTooLarge) {
  EXPECT_EQ(send(a, *at_a, {b.address(), 7}, std::string(65'508, 'x')).error(), Error::kMessageTooLarge);
  EXPECT_TRUE(send(a, *at_a, {b.address(), 7}, std::string(65'507, 'x')).ok());
}

TEST_F(UdpPair, NowhereToSend_IsSaid) {
  EXPECT_EQ(send(a, *at_a, {ip("8.8.8.8"), 7}, "x").error(), Error::kNoRoute);
  EXPECT_EQ(a.udp().send(a.ctx(), *at_a, {b.address(), 7}, ip("10.9.0.77"), {}, {}).error(), Error::kNoRoute);
}

// As on Linux, where the routes of an interface go with it. A socket's own address is reached all the same.
TEST_F(UdpPair, ThroughADeviceThatHasGone_IsUnreachable) {
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "x").ok());
  a.port().set_gone(true);
  EXPECT_EQ(send(a, *at_a, {b.address(), 7}, "x").error(), Error::kNetUnreachable);
  EXPECT_TRUE(send(a, *at_a, {a.address(), 7}, "own").ok());
  a.port().set_gone(false);
  EXPECT_TRUE(send(a, *at_a, {b.address(), 7}, "x").ok());
}

TEST_F(UdpPair, TosAndTtl_TravelWithEachDatagram) {
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "x", {.tos = 0x20, .ttl = 9}).ok());
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "y", {.tos = 0, .ttl = 64}).ok());
  world.run_for(1ms);
  udp::Datagram datagram;
  receive(b, *at_b, &datagram);
  EXPECT_EQ(datagram.tos, 0x20);
  EXPECT_EQ(datagram.ttl, 9);
  receive(b, *at_b, &datagram);
  EXPECT_EQ(datagram.tos, 0);
  EXPECT_EQ(datagram.ttl, 64);
}

TEST_F(UdpPair, ArrivalTime_IsTheBatchs) {
  world.wire().set_impairment({.delay = 3ms});
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "x").ok());
  ASSERT_TRUE(world.run_until([&] { return b.udp().queued(*at_b) == 1; }));
  world.run_for(1s);
  udp::Datagram datagram;
  receive(b, *at_b, &datagram);
  EXPECT_EQ(datagram.arrived, Instant{9ms}) << "question, answer, datagram";
}

TEST_F(UdpPair, ArrivalTime_IsThePortsWhereItSaysOneAndNeverLaterThanNow) {
  world.run_for(1s);
  const Instant now = world.now();
  for (const Instant told : {now - 5us, now + 1ms}) {
    Packet* frame = nullptr;
    ASSERT_EQ(b.port().alloc(0, {&frame, 1}), 1U);
    const sim::Bytes bytes = udp_frame({.from = "10.9.0.1", .to = "10.9.0.2", .to_mac = mac(2)}, 9, 7, bytes_of("x"));
    std::memcpy(frame->data, bytes.data(), bytes.size());
    frame->len = frame->frame_len = static_cast<std::uint32_t>(bytes.size());
    set_arrival(*frame, told);
    frame->flags = kRxArrival;
    b.ctx().now = now;
    b.stack().on_frames(b.ctx(), 0, {&frame, 1});
    udp::Datagram datagram;
    EXPECT_EQ(receive(b, *at_b, &datagram), "x");
    EXPECT_EQ(datagram.arrived, std::min(told, now));
  }
}

TEST_F(UdpPair, Connected_TakesItsPeersDatagramsAlone) {
  udp::Binding* stranger = *a.udp().open({a.address(), 8}, 1 << 16, {}, this);
  b.udp().connect(*at_b, {a.address(), 7});
  ASSERT_TRUE(send(a, *stranger, {b.address(), 7}, "stranger").ok());
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "peer").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *at_b), "peer");
  EXPECT_EQ(receive(b, *at_b), "-");
  b.udp().connect(*at_b, {});
  ASSERT_TRUE(send(a, *stranger, {b.address(), 7}, "stranger").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *at_b), "stranger");
}

TEST_F(UdpPair, MostSpecificEndpoint_Wins) {
  udp::Binding* any = *b.udp().open({{}, 9}, 1 << 16, {.address = true}, &any);
  udp::Binding* bound = *b.udp().open({b.address(), 9}, 1 << 16, {.address = true}, &bound);
  udp::Binding* connected = *b.udp().open({{}, 9}, 1 << 16, {.address = true}, &connected);
  b.udp().connect(*connected, {a.address(), 7});
  ASSERT_TRUE(send(a, *at_a, {b.address(), 9}, "1").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *connected), "1");
  b.udp().close(b.ctx(), *connected);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 9}, "2").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *bound), "2");
  b.udp().close(b.ctx(), *bound);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 9}, "3").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *any), "3");
}

TEST_F(UdpPair, EqualEndpoints_TheNewestWins) {
  udp::Binding* older = *b.udp().open({b.address(), 9}, 1 << 16, {.address = true}, &older);
  udp::Binding* newer = *b.udp().open({b.address(), 9}, 1 << 16, {.address = true}, &newer);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 9}, "x").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *newer), "x");
  EXPECT_EQ(receive(b, *older), "-");
}

TEST_F(UdpPair, SharedPort_SpreadsTheFlows) {
  std::array<udp::Binding*, 3> sharing{};
  for (auto& each : sharing) each = *b.udp().open({{}, 9}, 1 << 16, {.port = true}, &each);
  std::array<unsigned, 3> got{};
  for (std::uint16_t port = 1000; port < 1120; port++) {
    udp::Binding* sender = *a.udp().open({a.address(), port}, 1 << 16, {}, this);
    ASSERT_TRUE(send(a, *sender, {b.address(), 9}, "1").ok());
    ASSERT_TRUE(send(a, *sender, {b.address(), 9}, "2").ok());
    world.run_for(1ms);
    for (std::size_t i = 0; i < sharing.size(); i++) {
      if (b.udp().queued(*sharing[i]) == 0) continue;
      EXPECT_EQ(receive(b, *sharing[i]), "1");
      EXPECT_EQ(receive(b, *sharing[i]), "2") << "a flow stays where it is";
      got[i]++;
    }
    a.udp().close(a.ctx(), *sender);
  }
  EXPECT_EQ(got[0] + got[1] + got[2], 120U);
  for (const unsigned each : got) EXPECT_GT(each, 20U);
  b.udp().close(b.ctx(), *sharing[1]);
  b.udp().close(b.ctx(), *sharing[2]);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 9}, "left over").ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *sharing[0]), "left over");
  EXPECT_EQ(b.udp().open({{}, 9}, 1 << 16, {.address = true}, this).error(), Error::kAddressInUse);
}

TEST_F(UdpPair, OpenConflicts_AreInUse) {
  EXPECT_EQ(b.udp().open({b.address(), 7}, 1, {}, this).error(), Error::kAddressInUse);
  EXPECT_EQ(b.udp().open({{}, 7}, 1, {.address = true}, this).error(), Error::kAddressInUse);
  EXPECT_EQ(b.udp().open({ip("10.9.0.77"), 9}, 1, {}, this).error(), Error::kAddressNotAvailable);
  EXPECT_EQ(b.udp().open({{}, 0}, 1, {}, this).error(), Error::kInvalid);
  b.udp().close(b.ctx(), *at_b);
  EXPECT_TRUE(b.udp().open({b.address(), 7}, 1, {}, this).ok());
}

TEST_F(UdpPair, Broadcast_NeedsPermissionAndReachesEverySocket) {
  udp::Binding* first = *b.udp().open({{}, 9}, 1 << 16, {.address = true}, &first);
  udp::Binding* second_one = *b.udp().open({{}, 9}, 1 << 16, {.address = true}, &second_one);
  udp::Binding* elsewhere = *b.udp().open({b.address(), 9}, 1 << 16, {.address = true}, &elsewhere);
  EXPECT_EQ(send(a, *at_a, {ip("10.9.0.255"), 9}, "all").error(), Error::kAccess);
  ASSERT_TRUE(send(a, *at_a, {ip("10.9.0.255"), 9}, "all", {.broadcast = true}).ok());
  world.run_for(1ms);
  EXPECT_EQ(receive(b, *first), "all");
  EXPECT_EQ(receive(b, *second_one), "all");
  EXPECT_EQ(receive(b, *elsewhere), "-") << "bound to the unicast address";
}

TEST_F(UdpPair, ChecksumWrong_IsCounted) {
  auto frame =
      udp_frame({.from = "10.9.0.1", .to = "10.9.0.2", .from_mac = mac(1), .to_mac = mac(2)}, 7, 7, bytes_of("data"));
  frame.back() ^= std::byte{1};
  world.wire().inject(1, frame);
  world.run_for(1us);
  EXPECT_EQ(b.counters().drop_udp_malformed, 1U);
}

TEST_F(UdpPair, NoChecksum_IsTaken) {
  auto frame =
      udp_frame({.from = "10.9.0.1", .to = "10.9.0.2", .from_mac = mac(1), .to_mac = mac(2)}, 7, 7, bytes_of("data"));
  frame[40] = frame[41] = std::byte{0};
  world.wire().inject(1, frame);
  world.run_for(1us);
  EXPECT_EQ(receive(b, *at_b), "data");
}

TEST_F(UdpPair, LengthField_IsCheckedAndTrims) {
  for (const std::uint8_t len : {0, 7, 13, 200}) {
    auto frame =
        udp_frame({.from = "10.9.0.1", .to = "10.9.0.2", .from_mac = mac(1), .to_mac = mac(2)}, 7, 7, bytes_of("data"));
    frame[39] = static_cast<std::byte>(len);
    frame[40] = frame[41] = std::byte{0};
    world.wire().inject(1, frame);
  }
  auto shorter =
      udp_frame({.from = "10.9.0.1", .to = "10.9.0.2", .from_mac = mac(1), .to_mac = mac(2)}, 7, 7, bytes_of("data"));
  shorter[39] = std::byte{10};
  shorter[40] = shorter[41] = std::byte{0};
  world.wire().inject(1, shorter);
  world.run_for(1us);
  EXPECT_EQ(b.counters().drop_udp_malformed, 4U);
  udp::Datagram datagram;
  ASSERT_TRUE(b.udp().front(*at_b, datagram));
  EXPECT_EQ(datagram.length, 2U) << "what lies behind is not the datagram's";
}

TEST_F(UdpPair, ReceiveBuffer_BoundsMemoryNotJustPayload) {
  b.udp().set_receive_bytes(*at_b, 16384);
  for (int i = 0; i < 200; i++) ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "x").ok());
  world.run_for(1ms);
  const std::size_t kept = b.udp().queued(*at_b);
  EXPECT_GE(kept, 7U);
  EXPECT_LE(kept, 64U) << "no datagram costs less than 256 bytes";
  EXPECT_EQ(b.counters().drop_udp_queue_full + b.counters().udp_in, 200U - a.counters().drop_arp_queue);
}

TEST_F(UdpPair, TinyReceiveBuffer_StillTakesOne) {
  b.udp().set_receive_bytes(*at_b, 1);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, std::string(1400, 'x')).ok());
  world.run_for(1ms);
  EXPECT_EQ(b.udp().queued(*at_b), 1U);
}

TEST_F(UdpPair, LongQueue_LeavesThePortItsFrames) {
  b.udp().set_receive_bytes(*at_b, 1 << 24);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "first").ok());
  world.run_for(1ms);
  for (int i = 0; i < 3000; i++) {
    ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "small").ok());
    if (i % 50 == 0) world.run_for(10us);
  }
  world.run_for(10us);
  EXPECT_EQ(b.udp().queued(*at_b), 3001U);
  EXPECT_LE(b.port().buffers_out(), 16U + 128U) << "a few in the queue, the caches";
  for (int i = 0; i < 3001; i++) ASSERT_NE(receive(b, *at_b), "-");
  b.ctx().queue(0).drain();
  EXPECT_EQ(b.port().buffers_out(), 0U);
}

TEST_F(UdpPair, ManyLargeDatagrams_LeaveThePortHalfItsFrames) {
  b.udp().set_receive_bytes(*at_b, 1 << 24);
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "first").ok());
  world.run_for(1ms);
  for (int i = 0; i < 900; i++) {
    ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, std::string(1400, 'x')).ok());
    if (i % 50 == 0) world.run_for(10us);
  }
  world.run_for(10us);
  EXPECT_EQ(b.udp().queued(*at_b), 901U);
  EXPECT_LE(b.port().buffers_out(), 256U + 128U);
}

TEST_F(UdpPair, Close_GivesEverythingBack) {
  for (int i = 0; i < 40; i++) ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "x").ok());
  world.run_for(1ms);
  const std::size_t used = b.memory().stats().used_bytes;
  b.udp().close(b.ctx(), *at_b);
  b.ctx().queue(0).drain();
  EXPECT_EQ(b.port().buffers_out(), 0U);
  EXPECT_LE(b.memory().stats().used_bytes, used);
  EXPECT_TRUE(b.stack().events().empty());
}

TEST_F(UdpPair, PeersPortClosed_RefusesTheConnectedSender) {
  b.udp().close(b.ctx(), *at_b);
  a.udp().connect(*at_a, {b.address(), 7});
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "anybody?").ok());
  world.run_for(1ms);
  EXPECT_EQ(a.take_events(&at_a), kEventError);
  EXPECT_EQ(send(a, *at_a, {b.address(), 7}, "again").error(), Error::kRefused) << "once, as on Linux";
  EXPECT_TRUE(send(a, *at_a, {b.address(), 7}, "again").ok());
}

TEST_F(UdpPair, DeviceFull_WouldBlockAndTakesNothing) {
  ASSERT_TRUE(send(a, *at_a, {b.address(), 7}, "first").ok());
  world.run_for(1ms);
  world.wire().set_impairment({.bits_per_second = 1'000'000});
  Result<std::size_t> sent = 1;
  int n = 0;
  for (; n < 2000 && sent; n++) sent = send(a, *at_a, {b.address(), 7}, std::string(1000, 'x'));
  EXPECT_EQ(sent.error(), Error::kWouldBlock);
  EXPECT_EQ(a.counters().udp_out, static_cast<std::uint64_t>(n));
}

}  // namespace
}  // namespace bypass::test
