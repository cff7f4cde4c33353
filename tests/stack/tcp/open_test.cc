// Opening: RFC 9293 §3.5, §3.10.7.2 and §3.10.7.3.
#include <set>

#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

TEST(PassiveOpen, Handshake_Establishes) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000));
  s.expect(seg().syn().seq(0).ack(1).mss(1460)).nothing_more();
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 0U);
  s.inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 1U);
  s.accept();
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.info().mss, 1000U);
}

TEST(PassiveOpen, DataOnHandshakeAck_IsDelivered) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).ignore_all();
  s.inject(seg().seq(1).ack(1).text("hello")).accept();
  EXPECT_EQ(s.read(), "hello");
}

TEST(PassiveOpen, RepeatedSyn_GetsSynAckAgain) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1));
  s.inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 1U);
}

TEST(PassiveOpen, UnansweredSynAck_IsRepeatedThenGivenUp) {
  Given given;
  given.stack.tcp.synack_retries = 2;
  Script s(given);
  s.listen().inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1));
  s.at(999ms).nothing_more().at(1001ms).expect(seg().syn().ack(1)).nothing_more();
  s.at(3001ms).expect(seg().syn().ack(1)).nothing_more();
  s.at(60s).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.counters().tcp_timeouts, 1U);
}

TEST(PassiveOpen, WrongAckOfSynAck_IsReset) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).ignore_all();
  s.inject(seg().seq(1).ack(500)).expect(seg().rst().seq(500));
  EXPECT_EQ(s.counters().drop_tcp_bad_ack, 1U);
  EXPECT_EQ(s.connections(), 1U);
}

TEST(PassiveOpen, ResetInSynReceived_ReturnsToListen) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).ignore_all().inject(seg().rst().seq(1)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  s.inject(seg().syn().seq(0)).expect(seg().syn().ack(1));
}

// As on Linux, where the routes of an interface go with it. A connection that is there goes on when the device is back.
TEST(ActiveOpen, ThroughADeviceThatHasGone_IsUnreachable) {
  Script s;
  s.establish();
  s.host().port().set_gone(true);
  const auto refused = s.engine().connect(s.ctx(), {}, {ip("10.9.0.2"), 80}, {}, &s);
  EXPECT_EQ(refused.error(), Error::kNetUnreachable);
  EXPECT_EQ(s.connections(), 1U);
  s.host().port().set_gone(false);
  s.write(10).expect(seg().seq(1).len(10));
  EXPECT_TRUE(s.engine().connect(s.ctx(), {}, {ip("10.9.0.2"), 80}, {}, &s).ok());
  s.ignore_all();
}

TEST(ActiveOpen, Handshake_Establishes) {
  Script s;
  s.connect().expect(seg().syn().seq(0).mss(1460).sack_ok());
  EXPECT_EQ(s.state(), State::kSynSent);
  s.inject(seg().syn().seq(0).ack(1).mss(1000)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.events(), kEventConnected | kEventWritable);
}

TEST(ActiveOpen, ResetToSyn_IsRefused) {
  Script s;
  s.connect().ignore_all().inject(seg().rst().seq(0).ack(1));
  EXPECT_EQ(s.error(), Error::kRefused);
  EXPECT_EQ(s.state(), State::kClosed);
  EXPECT_TRUE((s.events() & kEventError) != 0);
  s.close();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(ActiveOpen, ResetWithoutAcceptableAck_IsIgnored) {
  Script s;
  s.connect().ignore_all().inject(seg().rst().seq(0));
  EXPECT_EQ(s.state(), State::kSynSent);
  EXPECT_EQ(s.counters().drop_tcp_bad_rst, 1U);
}

TEST(ActiveOpen, SynAckOfAnotherSyn_IsReset) {
  Script s;
  s.connect().ignore_all().inject(seg().syn().seq(0).ack(77)).expect(seg().rst().seq(77));
  EXPECT_EQ(s.state(), State::kSynSent);
}

TEST(ActiveOpen, SegmentWithoutSyn_IsDropped) {
  Script s;
  s.connect().ignore_all().inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.state(), State::kSynSent);
  EXPECT_EQ(s.counters().drop_tcp_out_of_window, 1U);
}

TEST(ActiveOpen, UnansweredSyn_BacksOffAndTimesOut) {
  Given given;
  given.options.syn_retries = 2;
  Script s(given);
  s.connect().expect(seg().syn().seq(0)).at(1001ms).expect(seg().syn().seq(0)).nothing_more();
  s.at(3001ms).expect(seg().syn().seq(0)).nothing_more();
  s.at(8s).nothing_more();
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(ActiveOpen, BothAtOnce_Establishes) {
  Script s;
  s.connect().expect(seg().syn().seq(0)).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1));
  EXPECT_EQ(s.state(), State::kSynReceived);
  s.inject(seg().syn().seq(0).ack(1)).expect(seg().seq(1).ack(1).len(0));
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_TRUE((s.events() & kEventConnected) != 0);
}

TEST(ActiveOpen, BothAtOnce_WindowOfTheSynAckIsNotScaled) {  // RFC 7323 §2.2
  Script s;
  s.connect().inject(seg().syn().seq(0).mss(1000).scale(2).window(1000)).ignore_all();
  s.inject(seg().syn().seq(0).ack(1).mss(1000).scale(2).window(1000));
  EXPECT_EQ(s.info().snd_wnd, 1000U);
  s.inject(seg().seq(1).ack(1).window(1000));
  EXPECT_EQ(s.info().snd_wnd, 4000U);
}

TEST(ActiveOpen, TextOnSynAck_WindowIsNotScaled) {
  Script s;
  s.connect().ignore_all().inject(seg().syn().seq(0).ack(1).mss(1000).scale(2).window(1000).text("hi"));
  EXPECT_EQ(s.read(), "hi");
  EXPECT_EQ(s.info().snd_wnd, 1000U);
}

TEST(ActiveOpen, BothAtOnceThenReset_IsRefused) {
  Script s;
  s.connect().inject(seg().syn().seq(0)).inject(seg().rst().seq(1));
  EXPECT_EQ(s.error(), Error::kRefused);
}

TEST(ActiveOpen, TextAndFinOnSynAck_AreTaken) {
  Script s;
  s.connect().ignore_all().inject(seg().syn().fin().seq(0).ack(1).text("hi")).expect(seg().seq(1).ack(4));
  EXPECT_EQ(s.read(), "hi");
  EXPECT_EQ(s.state(), State::kCloseWait);
}

TEST(SynOptions, PeerWithoutOptions_GetsDefaults) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).expect(seg().syn().ack(1).mss(1460).scale(0).sack_ok(false));
  s.inject(seg().seq(1).ack(1)).accept();
  EXPECT_EQ(s.info().mss, 536U);
  EXPECT_FALSE(s.info().timestamps);
  EXPECT_FALSE(s.info().sack);
  EXPECT_EQ(s.info().rcv_scale, 0U);
}

TEST(SynOptions, PeerWithAll_GetsAll) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1460).sack_ok().ts(700, 0).scale(9));
  s.expect(seg().syn().ack(1).mss(1460).scale(7).sack_ok().echo(700));
  s.inject(seg().seq(1).ack(1).ts(701, 0).window(100)).accept();
  EXPECT_EQ(s.info().mss, 1448U);
  EXPECT_EQ(s.info().snd_scale, 9U);
  EXPECT_EQ(s.info().snd_wnd, 100U << 9);
}

TEST(SynOptions, TinyMss_IsRaised) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1)).inject(seg().seq(1).ack(1)).accept();
  EXPECT_EQ(s.info().mss, 48U);
}

struct HookLog {
  std::string seen;
  unsigned attempts = 0;
};

TEST(Hooks, SynOptions_AreAddedAndSeen) {
  Script s;
  HookLog log;
  Hooks hooks;
  hooks.self = &log;
  hooks.add_syn_options = [](void* self, tcp::Tcb&, bool, unsigned attempt, std::span<std::byte> room) {
    static_cast<HookLog*>(self)->attempts = attempt;
    const std::uint8_t option[] = {253, 4, 'o', 'k'};
    std::memcpy(room.data(), option, sizeof option);
    return sizeof option;
  };
  hooks.see_syn_option = [](void* self, Context&, tcp::Tcb&, bool, std::uint8_t kind, std::span<const std::byte> body) {
    static_cast<HookLog*>(self)->seen += std::to_string(kind) + ":" + std::to_string(body.size()) + ";";
  };
  s.ctx().hooks = &hooks;
  s.connect().expect(seg().syn()).at(1001ms).ignore_all();
  EXPECT_EQ(log.attempts, 1U);
  s.inject(seg().syn().seq(0).ack(1).raw({254, 3, 9, 1}));
  EXPECT_EQ(log.seen, "254:1;");
}

TEST(Hooks, SourcePort_IsChosen) {
  Script s;
  Hooks hooks;
  hooks.choose_source_port = [](void*, const Endpoint&, const Endpoint&) { return std::uint16_t{4242}; };
  s.ctx().hooks = &hooks;
  s.connect();
  EXPECT_EQ(s.engine().local(*s.tcb()).port, 4242);
}

TEST(SourcePort, Ephemeral_IsInRangeAndUnique) {
  Given given;
  given.stack.tcp.port_first = 5000;
  given.stack.tcp.port_last = 5003;
  Script s(given);
  std::set<std::uint16_t> ports;
  for (int i = 0; i < 4; i++) ports.insert(s.connect().local_port);
  EXPECT_EQ(ports, (std::set<std::uint16_t>{5000, 5001, 5002, 5003}));
  const auto more = s.engine().connect(s.ctx(), {}, {ip("10.9.0.2"), s.peer_port}, {}, &s);
  EXPECT_EQ(more.error(), Error::kAddressNotAvailable);
}

TEST(SourcePort, TakenTuple_IsAddressInUse) {
  Script s;
  s.connect(7000);
  const auto again = s.engine().connect(s.ctx(), {s.host().address(), 7000}, {ip("10.9.0.2"), s.peer_port}, {}, &s);
  EXPECT_EQ(again.error(), Error::kAddressInUse);
}

TEST(InitialSequence, SameEndpointsLater_GoesOnAbove) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).ignore_all();
  const std::uint32_t first = s.host_iss;
  s.inject(seg().rst().seq(1)).at(100ms).inject(seg().syn().seq(0));
  EXPECT_EQ(s.host_iss - first, 25000U);  // a tick every 4 us (RFC 6528 §3)
}

}  // namespace
}  // namespace bypass::test
