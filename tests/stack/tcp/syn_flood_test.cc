// A listener whose SYN queue is full: SYN cookies (RFC 4987 §3.6), fewer repeats, and real clients among forged SYNs.
#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/tcp/open/isn.h"
#include "stack/tcp/open/syn_cookie.h"
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

// One connection fills the queue, and its peer never answers.
Given full_queue() {
  Given given;
  given.stack.tcp.syn_queue = 1;
  return given;
}
Script& fill(Script& s) {
  s.listen().new_peer(9);
  s.inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1));
  s.new_peer(1000, 77'000);
  return s;
}

TEST(SynCookie, Established_LeavesNothingUntilTheAck) {
  Script s(full_queue());
  fill(s).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1).mss(1460)).nothing_more();
  EXPECT_EQ(s.connections(), 1U);
  EXPECT_EQ(s.counters().tcp_cookies_out, 1U);
  s.inject(seg().seq(1).ack(1)).nothing_more().accept();
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.counters().tcp_cookies_in, 1U);
  s.write(1500).expect(seg().seq(1).len(536)).expect(seg().seq(537).len(536));  // 1000, rounded down
  s.expect(seg().seq(1073).len(428)).inject(seg().seq(1).ack(1501).text("hello")).expect(seg().seq(1501).ack(6));
  EXPECT_EQ(s.read(), "hello");
}

// Linux: the window scale and SACK are encoded in the timestamp.
TEST(SynCookie, WithTimestamps_KeepsScaleAndSack) {
  Script s(full_queue());
  fill(s).wait(1h);
  s.inject(seg().syn().seq(0));  // fills it again
  s.new_peer(1001, 77'000);
  s.ignore_all().inject(seg().syn().seq(0).mss(1460).sack_ok().ts(5, 0).scale(7));
  const std::uint32_t clock = static_cast<std::uint32_t>((s.world().now() - Instant{}).count() >> 20);
  const std::uint32_t offset =
      tcp::timestamp_offset({0x0123456789abcdef, 0xfedcba9876543210}, {s.host().address(), 80}, {ip("10.9.0.2"), 1001});
  tcp::SegmentOptions syn;
  syn.sack_permitted = syn.has_window_scale = true;
  syn.window_scale = 7;
  const std::uint32_t value = tcp::make_cookie_timestamp(clock, syn) + offset;
  s.expect(seg().syn().ack(1).sack_ok().scale(7).echo(5)).inject(seg().seq(1).ack(1).ts(6, value).window(100)).accept();
  EXPECT_TRUE(s.info().timestamps);
  EXPECT_TRUE(s.info().sack);
  EXPECT_EQ(s.info().snd_scale, 7);
  EXPECT_EQ(s.info().snd_wnd, 100U << 7);
  EXPECT_EQ(s.info().rcv_scale, 7);
  EXPECT_EQ(s.info().srtt, Duration{}) << "a rounded timestamp is no sample";
}

TEST(SynCookie, AckLost_DataOpensToo) {
  Script s(full_queue());
  fill(s).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1));
  s.inject(seg().seq(1).ack(1).text("hello")).expect(seg().seq(1).ack(6)).accept();
  EXPECT_EQ(s.read(), "hello");
}

TEST(SynCookie, TooOld_IsReset) {
  Script s(full_queue());
  fill(s).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1)).ignore_all();
  const std::uint32_t cookie = s.host_iss;
  s.at(119s).ignore_all().host_iss = cookie;  // the other one's SYN-ACK was repeated meanwhile
  s.inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.counters().tcp_cookies_in, 1U) << "the second minute has not ended";
  s.at(130s).ignore_all();
  s.new_peer(1001, 77'000);
  s.inject(seg().seq(1).ack(1)).expect(seg().rst().seq(1)).nothing_more();
  EXPECT_EQ(s.counters().tcp_cookies_bad, 0U) << "none is out";
}

TEST(SynCookie, Forged_IsReset) {
  Script s(full_queue());
  fill(s).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1));
  s.inject(seg().seq(1).ack(100)).expect(seg().rst().seq(100));
  s.inject(seg().seq(2).ack(1)).expect(seg().rst().seq(1));
  s.peer_port = 1001;
  s.inject(seg().seq(1).ack(1)).expect(seg().rst().seq(1)).nothing_more();
  EXPECT_EQ(s.counters().tcp_cookies_bad, 3U);
  EXPECT_EQ(s.connections(), 1U);
}

TEST(SynCookie, AcceptQueueFull_AckIsDropped) {
  Given given = full_queue();
  given.backlog = 0;
  Script s(given);
  fill(s).inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1));
  s.inject(seg().seq(1).ack(1));
  const std::uint32_t iss = s.host_iss;
  s.new_peer(1001, 99'000);
  s.inject(seg().syn().seq(0));
  EXPECT_EQ(s.counters().drop_tcp_accept_queue, 1U);
  s.host_iss = iss;
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 1U);
}

TEST(SynQueue, HalfFull_SynAcksAreRepeatedTwice) {
  Given given;
  given.stack.tcp.syn_queue = 4;
  Script s(given);
  s.listen();
  for (std::uint16_t port = 1; port <= 3; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0));
  }
  s.at(8s);  // 1 + 2 + 4
  EXPECT_EQ(s.listener()->half_open, 2U) << "the last two are not under pressure any more";
}

TEST(DeferAccept, Waiting_TakesNoPlaceInTheSynQueue) {
  Given given = full_queue();
  given.options.defer_accept_s = 10;
  Script s(given);
  s.listen().inject(seg().syn().seq(0)).ignore_all().inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.listener()->half_open, 0U);
  EXPECT_EQ(s.listener()->deferred, 1U);
  s.new_peer(1001);
  s.inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1)).inject(seg().seq(1).ack(1));
  EXPECT_EQ(s.counters().tcp_cookies_out, 0U);
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 1U) << "as many may wait as the SYN queue holds";
}

// Forged SYNs from a subnet, 6,500 a second, and a client every 10 ms. The wire delays the client by 1 ms.
struct Flood {
  struct Given {
    bool forged = true, cookies = true;
    int clients = 100;
    Duration patience = 60s;
  };
  explicit Flood(const Given& given)
      : server(world.add_host(config("10.9.0.1", given.cookies))),
        client(world.add_host(config("10.9.0.2"))),
        patience(given.patience) {
    world.wire().set_impairment({.delay = 1ms});
    (void)server.tcp().listen({{}, 80}, 1024, {}, this);
    for (int i = 0; i < 3 && given.forged; i++) attack(5000);
    for (int i = 0; i < given.clients; i++) {
      if (given.forged) attack(65);
      connect();
    }
  }
  static HostConfig config(const char* address, bool cookies = true) {
    HostConfig config;
    config.stack.tcp.syn_cookies = cookies;
    config.address = address;
    config.buffers = 8192;
    return config;
  }
  void attack(int count) {
    for (int i = 0; i < count; i++, forged_ports++) {
      sim::Bytes l4(20);
      auto& h = *reinterpret_cast<tcp::TcpHeader*>(l4.data());
      h.source = static_cast<std::uint16_t>(1 + forged_ports % 65000);
      h.destination = 80;
      h.seq = static_cast<std::uint32_t>(forged_ports * 2654435761U);
      h.data_offset = 0x50;
      h.flags = tcp::kSyn;
      h.window = 1000;
      h.checksum.set_raw(checksum_finish(checksum(l4.data(), l4.size()) +
                                         checksum_pseudo(ip("10.9.0.77"), ip("10.9.0.1"), wire::kProtocolTcp, 20)));
      world.wire().inject(0, ipv4_frame({.from = "10.9.0.77", .protocol = wire::kProtocolTcp}, l4));
      if (i % 256 == 255) world.run_for(10us);
    }
  }
  void connect() {
    const Instant begin = world.now();
    client.ctx().now = begin;
    auto tcb = client.tcp().connect(client.ctx(), {}, {ip("10.9.0.1"), 80}, {}, &client);
    if (world.run_until([&] { return client.tcp().state(**tcb) == State::kEstablished; }, patience)) {
      connected++;
      longest = std::max(longest, world.now() - begin);
      EXPECT_TRUE(world.run_until([&] { return server.tcp().accept(server.ctx(), listener(), this).ok(); }, 60s));
    }
    world.run_until([] { return false; }, 10ms);
    client.tcp().abort(client.ctx(), **tcb);
  }
  tcp::Listener& listener() {
    tcp::Listener* found = nullptr;
    server.tcp().impl().listeners.for_each([&](tcp::Listener& each) { found = &each; });
    return *found;
  }

  World world;
  Host& server;
  Host& client;
  std::uint32_t forged_ports = 0;
  Duration patience;
  Duration longest{};
  int connected = 0;
};

TEST(SynFlood, RealClients_ConnectInTwiceTheirTime) {
  const Flood quiet({.forged = false}), flooded({});
  EXPECT_EQ(quiet.connected, 100);
  EXPECT_EQ(flooded.connected, 100);
  EXPECT_GT(flooded.server.counters().tcp_cookies_in, 50U);
  EXPECT_EQ(flooded.server.tcp().impl().config.syn_queue, 4096U);
  EXPECT_LE(flooded.longest, 2 * quiet.longest);
  EXPECT_LT(flooded.server.memory().stats().used_bytes, std::size_t{8} << 20) << "the bound of a listener's SYN queue";
}

TEST(SynFlood, WithoutCookies_RealClientsFindNoPlace) {
  const Flood flooded({.cookies = false, .clients = 4, .patience = 1s});
  EXPECT_EQ(flooded.server.counters().tcp_cookies_out, 0U);
  EXPECT_GT(flooded.server.counters().drop_tcp_syn_queue, 10'000U);
  EXPECT_EQ(flooded.connected, 0);
}

}  // namespace
}  // namespace bypass::test
