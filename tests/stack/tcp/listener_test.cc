// The listener's queues (as in Linux), and unexpected segments (RFC 9293 §3.10.7.1).
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

Given with_backlog(unsigned backlog) {
  Given given;
  given.backlog = backlog;
  return given;
}

// A handshake from another port, up to the ACK.
void knock(Script& s, std::uint16_t port) {
  s.new_peer(port);
  s.inject(seg().syn().seq(0).mss(1000)).ignore_all().inject(seg().seq(1).ack(1));
}

TEST(Backlog, OneMoreThanBacklog_Completes) {
  Script s(with_backlog(1));
  s.listen();
  knock(s, 1001);
  knock(s, 1002);
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 2U);
  s.new_peer(1003);
  s.inject(seg().syn().seq(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_accept_queue, 1U);
}

TEST(Backlog, FullWhenAckComes_AckIsDroppedAndSynAckRepeated) {
  Script s(with_backlog(0));
  s.listen();
  s.new_peer(1001);
  s.inject(seg().syn().seq(0)).ignore_all();
  const std::uint32_t iss = s.host_iss;
  knock(s, 1002);
  s.peer_port = 1001;
  s.host_iss = iss;
  s.inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_accept_queue, 1U);
  s.accept().at(1010ms).expect(seg().syn().seq(0).ack(1)).inject(seg().seq(1).ack(1)).accept();
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(Backlog, SynQueueFull_SynIsDropped) {
  Given given;
  given.stack.tcp.syn_queue = 2;
  given.stack.tcp.syn_cookies = false;
  Script s(given);
  s.listen();
  for (std::uint16_t port = 1; port <= 3; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0));
  }
  EXPECT_EQ(s.counters().drop_tcp_syn_queue, 1U);
  EXPECT_EQ(s.connections(), 2U);
}

TEST(Backlog, Accept_IsFirstInFirstOut) {
  Script s;
  s.listen();
  for (std::uint16_t port = 1001; port <= 1003; port++) knock(s, port);
  for (std::uint16_t port = 1001; port <= 1003; port++) EXPECT_EQ(s.engine().remote(*s.accept().tcb()).port, port);
  EXPECT_EQ(s.engine().accept(s.ctx(), *s.listener(), &s).error(), Error::kWouldBlock);
}

TEST(Backlog, ResetWhileQueued_AcceptReturnsItWithItsError) {
  Script s;
  s.listen();
  knock(s, 1001);
  s.inject(seg().rst().seq(1)).accept();
  EXPECT_EQ(s.error(), Error::kReset);
  s.close();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Backlog, CloseListener_ResetsWhatWaits) {
  Script s;
  s.listen();
  knock(s, 1001);
  s.new_peer(1002);
  s.inject(seg().syn().seq(0)).ignore_all();
  s.engine().close_listener(s.ctx(), *s.listener());
  s.wait(1ms).expect(seg().rst().ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(DeferAccept, BareAck_WaitsForData) {
  Given given;
  given.options.defer_accept_s = 5;
  Script s(given);
  s.listen();
  knock(s, 1001);
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 0U);
  s.inject(seg().seq(1).ack(1).text("now")).accept();
  EXPECT_EQ(s.read(), "now");
}

TEST(DeferAccept, PatienceEnds_IsAcceptedWithoutData) {
  Given given;
  given.options.defer_accept_s = 5;
  Script s(given);
  s.listen();
  knock(s, 1001);
  s.at(5100ms).accept();
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(DeferAccept, FinWithoutData_IsAcceptedAtOnce) {
  Given given;
  given.options.defer_accept_s = 5;
  Script s(given);
  s.listen();
  knock(s, 1001);
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 0U);
  s.inject(seg().fin().seq(1).ack(1)).accept();
  EXPECT_EQ(s.state(), State::kCloseWait);
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
  EXPECT_TRUE((s.events() & kEventEof) != 0);
}

TEST(DeferAccept, QueueFullWhenDataComes_DataIsDropped) {
  Given given = with_backlog(0);
  given.options.defer_accept_s = 5;
  Script s(given);
  s.listen();
  knock(s, 1001);
  const std::uint32_t iss = s.host_iss;
  knock(s, 1002);
  s.inject(seg().seq(1).ack(1).text("second"));
  s.peer_port = 1001;
  s.host_iss = iss;
  s.inject(seg().seq(1).ack(1).text("first"));
  EXPECT_EQ(s.counters().drop_tcp_accept_queue, 1U);
  EXPECT_EQ(s.engine().accept_queue_length(*s.listener()), 1U);
}

TEST(Listen, PortTaken_IsAddressInUse) {
  Script s;
  s.listen();
  EXPECT_EQ(s.engine().listen({{}, 80}, 1, {}, &s).error(), Error::kAddressInUse);
  EXPECT_TRUE(s.engine().port_in_use({s.host().address(), 80}, tcp::kShareAddress));
  EXPECT_FALSE(s.engine().port_in_use({s.host().address(), 81}, 0));
}

// A handshake's segments are one flow's.
std::size_t connect_many(Script& s, std::uint16_t first, std::uint16_t count) {
  for (std::uint16_t port = first; port < first + count; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0)).inject(seg().seq(1).ack(1)).ignore_all();
  }
  return s.connections();
}

TEST(Listen, SharedPort_SpreadsTheConnections) {
  Script s;
  std::array<tcp::Listener*, 3> sharing{};
  for (auto& each : sharing) each = *s.engine().listen({{}, 80}, 1000, {}, &s, true);
  EXPECT_EQ(s.engine().listen({{}, 80}, 1000, {}, &s).error(), Error::kAddressInUse);
  EXPECT_EQ(connect_many(s, 1000, 120), 120U);
  std::size_t all = 0;
  for (const tcp::Listener* each : sharing) {
    EXPECT_GT(s.engine().accept_queue_length(*each), 20U);
    all += s.engine().accept_queue_length(*each);
  }
  EXPECT_EQ(all, 120U);
  s.engine().close_listener(s.ctx(), *sharing[2]);  // Linux resets, too, what nobody has accepted there
  s.engine().close_listener(s.ctx(), *sharing[0]);
  const std::size_t before = s.engine().accept_queue_length(*sharing[1]);
  connect_many(s, 2000, 20);
  EXPECT_EQ(s.engine().accept_queue_length(*sharing[1]), before + 20);
}

TEST(Listen, SharedPort_AddressWinsOverWildcard) {
  Script s;
  auto* const any = *s.engine().listen({{}, 80}, 1000, {}, &s, true);
  auto* const own = *s.engine().listen({s.host().address(), 80}, 1000, {}, &s, true);
  connect_many(s, 1000, 20);
  EXPECT_EQ(s.engine().accept_queue_length(*any), 0U);
  EXPECT_EQ(s.engine().accept_queue_length(*own), 20U);
}

TEST(Listen, ConnectionOnPort_IsInUseUnlessReused) {
  Script s;
  s.establish();
  s.engine().close_listener(s.ctx(), *s.listener());
  EXPECT_TRUE(s.engine().port_in_use({s.host().address(), 80}, 0));
  EXPECT_TRUE(s.engine().port_in_use({s.host().address(), 80}, tcp::kShareAddress)) << "it has not said so itself";
  tcp::Options shares;
  shares.sharing = tcp::kShareAddress;
  s.set_options(shares);
  EXPECT_TRUE(s.engine().port_in_use({s.host().address(), 80}, tcp::kSharePort));
  EXPECT_FALSE(s.engine().port_in_use({s.host().address(), 80}, tcp::kShareAddress));
}

TEST(Listen, TimeWaitOnPort_IsInUseUnlessReused) {
  Given given;
  given.options.sharing = tcp::kShareAddress;
  Script s(given);
  s.establish().close().inject(seg().fin().seq(1).ack(2)).ignore_all();
  s.engine().close_listener(s.ctx(), *s.listener());
  ASSERT_EQ(s.engine().impl().time_waits.count, 1U);
  EXPECT_TRUE(s.engine().port_in_use({s.host().address(), 80}, 0));
  EXPECT_FALSE(s.engine().port_in_use({s.host().address(), 80}, tcp::kShareAddress));
}

TEST(Listen, AddressNotOurs_IsNotAvailable) {
  Script s;
  EXPECT_EQ(s.engine().listen({ip("10.9.0.7"), 80}, 1, {}, &s).error(), Error::kAddressNotAvailable);
}

TEST(Listen, AckToListener_IsReset) {
  Script s;
  s.listen().inject(seg().seq(5).ack(77)).expect(seg().rst().seq(77)).nothing_more();
}

TEST(Nobody, Syn_GetsResetThatAcknowledgesIt) {
  Script s;
  s.inject(seg().syn().seq(0).to_port(81)).expect(seg().rst().ack(1).seq(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_no_connection, 1U);
  EXPECT_EQ(s.counters().tcp_resets_out, 1U);
}

TEST(Nobody, Reset_GetsNoAnswer) {
  Script s;
  s.inject(seg().rst().seq(0).to_port(81)).nothing_more();
}

TEST(Nobody, NoMemory_SynIsDropped) {
  Script s;
  s.listen();
  s.host().memory().set_budget(0);
  for (std::uint16_t port = 1; port < 200; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0));
  }
  EXPECT_NE(s.counters().drop_tcp_memory, 0U);
}

// The budget for one is 1 KiB, including the socket's own part. Unused places of the slab count, too.
TEST(Memory, IdleConnections_CostTheirTcbOnly) {
  constexpr std::uint16_t kConnections = 1000;
  Script s;
  s.listen();
  const std::size_t before = s.host().memory().stats().used_bytes;
  for (std::uint16_t port = 1; port <= kConnections; port++) {
    s.new_peer(port);
    s.establish().inject(seg().seq(1).ack(1).len(100)).read();
    s.write(100).inject(seg().seq(101).ack(101)).ignore_all();
  }
  EXPECT_LE(s.host().memory().stats().used_bytes - before, kConnections * (sizeof(tcp::Tcb) + 64));
}

}  // namespace
}  // namespace bypass::test
