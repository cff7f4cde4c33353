// Closing: RFC 9293 §3.6, TIME-WAIT and its reuse (RFC 6191), aborts (RFC 2525 §2.17).
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

TEST(Close, ActiveThenPeer_LeavesTimeWaitOnly) {
  Script s;
  s.establish().close().expect(seg().fin().seq(1).ack(1)).nothing_more();
  s.inject(seg().seq(1).ack(2)).nothing_more();
  s.inject(seg().fin().seq(1).ack(2)).expect(seg().seq(2).ack(2).len(0)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.engine().impl().time_waits.count, 1U);
  s.at(61s);
  EXPECT_EQ(s.engine().impl().time_waits.count, 0U);
}

std::vector<std::string> unowned(Script& s, std::size_t most = 10) {
  std::vector<std::string> found;
  const auto add = [](void* list, const tcp::Engine::Unowned& c) {
    static_cast<std::vector<std::string>*>(list)->push_back(std::to_string(static_cast<int>(c.state)) + " " +
                                                            std::to_string(c.local.port) +
                                                            (c.tcb != nullptr ? " tcb" : ""));
  };
  s.engine().for_each_unowned(most, add, &found);
  return found;
}

TEST(Close, ConnectionWithoutASocket_IsListedUntilItHasEnded) {
  Script s;
  s.establish();
  const std::string port = std::to_string(s.engine().local(*s.tcb()).port);
  const auto text = [&](State state, const char* more) {
    return std::vector{std::to_string(static_cast<int>(state)) + " " + port + more};
  };
  EXPECT_TRUE(unowned(s).empty()) << "its socket is there";
  s.close().expect(seg().fin().seq(1).ack(1));
  EXPECT_EQ(unowned(s), text(State::kFinWait1, " tcb"));
  s.inject(seg().seq(1).ack(2)).inject(seg().fin().seq(1).ack(2)).expect(seg().seq(2).ack(2).len(0));
  EXPECT_EQ(unowned(s), text(State::kTimeWait, ""));
  EXPECT_TRUE(unowned(s, 0).empty()) << "no more of those than wanted";
  s.at(61s);
  EXPECT_TRUE(unowned(s).empty());
}

TEST(Close, PeerFirst_EndsWithoutTimeWait) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).expect(seg().seq(1).ack(2).len(0));
  EXPECT_EQ(s.state(), State::kCloseWait);
  EXPECT_TRUE((s.events() & kEventEof) != 0);
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
  s.close().expect(seg().fin().seq(1).ack(2)).inject(seg().seq(2).ack(2));
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.engine().impl().time_waits.count, 0U);
}

TEST(Close, BothAtOnce_GoThroughClosing) {
  Script s;
  s.establish().shutdown_send().expect(seg().fin().seq(1).ack(1));
  s.inject(seg().fin().seq(1).ack(1)).expect(seg().seq(2).ack(2).len(0));
  EXPECT_EQ(s.state(), State::kClosing);
  s.inject(seg().seq(2).ack(2)).nothing_more();
  EXPECT_EQ(s.state(), State::kTimeWait);
  s.close();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(HalfClose, AfterShutdown_StillReceives) {
  Script s;
  s.establish().shutdown_send().expect(seg().fin().seq(1)).inject(seg().seq(1).ack(2));
  EXPECT_EQ(s.state(), State::kFinWait2);
  s.inject(seg().seq(1).ack(2).text("still"));
  EXPECT_EQ(s.read(), "still");
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kBrokenPipe);
}

TEST(HalfClose, AfterPeersFin_StillSends) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).ignore_all();
  s.write(500).expect(seg().seq(1).ack(2).len(500)).nothing_more();
}

TEST(Fin, QueuedData_GoesFirst) {
  Script s;
  s.establish().write(500).write(500).ignore_all().close();
  s.expect(seg().push().fin().seq(501).ack(1).len(500)).nothing_more();
}

TEST(Fin, Unanswered_IsSentAgain) {
  Script s;
  s.establish().shutdown_send().expect(seg().fin().seq(1)).at(201ms).expect(seg().fin().seq(1)).nothing_more();
  s.at(601ms).expect(seg().fin().seq(1)).nothing_more();
}

TEST(Fin, OutOfOrder_WaitsForTheHole) {
  Script s;
  s.establish().inject(seg().fin().seq(6).ack(1)).expect(seg().ack(1));
  EXPECT_EQ(s.state(), State::kEstablished);
  s.inject(seg().seq(1).ack(1).text("12345")).expect(seg().ack(7));
  EXPECT_EQ(s.state(), State::kCloseWait);
  EXPECT_EQ(s.read(), "12345");
}

TEST(Fin, TextBehindIt_IsDroppedAndReportedNoMore) {  // tcp_fin() of Linux
  Given given;
  given.sack = true;
  Script s{given};
  s.establish();
  const std::size_t before = s.host().memory().stats().used_bytes;
  s.inject(seg().seq(3).ack(1).text("nobody's")).expect(seg().ack(1).sack(3, 11));
  s.inject(seg().fin().seq(1).ack(1)).expect(seg().ack(2).len(0)).nothing_more();
  EXPECT_EQ(s.info().readable, 0U);
  EXPECT_TRUE(s.tcb()->reassembly.empty());
  EXPECT_EQ(s.host().memory().stats().used_bytes, before);
}

TEST(Fin, Repeated_IsAcknowledgedAgain) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).expect(seg().ack(2));
  s.inject(seg().fin().seq(1).ack(1)).expect(seg().ack(2)).nothing_more();
}

// A close() with SO_LINGER waits for exactly this.
TEST(Fin, Acknowledged_IsTold) {
  Script s;
  s.establish().shutdown_send().ignore_all();
  (void)s.events();
  s.inject(seg().seq(1).ack(2));
  EXPECT_EQ(s.state(), State::kFinWait2);
  EXPECT_TRUE((s.events() & kEventDelivered) != 0);
}

TEST(Fin, AcknowledgedInClosing_IsTold) {
  Script s;
  s.establish().shutdown_send().inject(seg().fin().seq(1).ack(1)).ignore_all();
  (void)s.events();
  s.inject(seg().seq(2).ack(2));
  EXPECT_TRUE((s.events() & kEventClosed) != 0);
}

TEST(Fin, AcknowledgedInLastAck_IsTold) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).shutdown_send().ignore_all();
  (void)s.events();
  s.inject(seg().seq(2).ack(2));
  EXPECT_TRUE((s.events() & kEventClosed) != 0);
}

// TCP_LINGER2 is negative: a closed socket does not wait for the peer's end.
TEST(Orphan, NoFinWait2Wanted_IsResetOnceFinIsAcknowledged) {
  Given given;
  given.options.linger2_s = -1;
  Script s(given);
  s.establish().close().expect(seg().fin().seq(1).ack(1));
  s.inject(seg().seq(1).ack(2)).expect(seg().rst().seq(2)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, NoFinWait2Wanted_ClosedInFinWait2_IsResetAtOnce) {
  Given given;
  given.options.linger2_s = -1;
  Script s(given);
  s.establish().shutdown_send().inject(seg().seq(1).ack(2)).ignore_all();
  s.close().expect(seg().rst().seq(2).ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, NoFinWait2Wanted_FinThatComesAlong_EndsInOrder) {
  Given given;
  given.options.linger2_s = -1;
  Script s(given);
  s.establish().close().ignore_all();
  s.inject(seg().fin().seq(1).ack(2)).expect(seg().seq(2).ack(2).len(0)).nothing_more();
}

TEST(Orphan, UnreadDataAtClose_Resets) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).text("unread")).ignore_all().close();
  s.expect(seg().rst().seq(1).ack(7)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, DataAfterClose_IsReset) {
  Script s;
  s.establish().close().ignore_all().inject(seg().seq(1).ack(2).text("late"));
  s.expect(seg().rst().seq(2));
  EXPECT_EQ(s.counters().drop_tcp_after_close, 1U);
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, SilentPeerInFinWait2_IsForgotten) {
  Script s;
  s.establish().close().inject(seg().seq(1).ack(2)).at(59s);
  EXPECT_EQ(s.connections(), 1U);
  s.at(61s);
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, SocketOpenInFinWait2_Waits) {
  Script s;
  s.establish().shutdown_send().inject(seg().seq(1).ack(2)).at(200s);
  EXPECT_EQ(s.state(), State::kFinWait2);
}

TEST(Orphan, WhatIsNotAcknowledged_IsCounted) {
  Script s;
  s.establish().write(100);
  EXPECT_EQ(s.engine().orphans().with_data, 0U);
  s.close();
  EXPECT_EQ(s.engine().orphans().with_data, 1U);
  s.inject(seg().seq(1).ack(101));
  EXPECT_EQ(s.engine().orphans().with_data, 0U);
  EXPECT_EQ(s.engine().orphans().closing, 1U);
  s.inject(seg().seq(1).ack(102));
  EXPECT_EQ(s.engine().orphans().closing, 0U);
}

TEST(Orphan, ProcessEnds_PeersThatMaySendAreReset) {
  Script s;
  s.establish().close().ignore_all();
  s.inject(seg().seq(1).ack(2));
  EXPECT_EQ(s.engine().orphans().half_closed, 1U);
  s.abort_orphans();
  s.expect(seg().rst().seq(2).ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, ProcessEnds_BytesThatWereNotDeliveredAreTold) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).write(100).close().ignore_all();
  s.abort_orphans();
  s.expect(seg().rst()).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Orphan, ProcessEnds_PeersThatHaveEndedHearNothing) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).close().ignore_all();
  s.abort_orphans();
  s.nothing_more();
  EXPECT_EQ(s.connections(), 1U);
}

TEST(Orphan, ProcessEnds_SocketsThatAreOpenAreLeft) {
  Script s;
  s.establish().shutdown_send().inject(seg().seq(1).ack(2)).ignore_all();
  s.abort_orphans();
  s.nothing_more();
  EXPECT_EQ(s.state(), State::kFinWait2);
}

TEST(Abort, Linger0_SendsReset) {
  Script s;
  s.establish().write(100).ignore_all().abort().expect(seg().rst().seq(101).ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.counters().tcp_resets_out, 1U);
}

// tcp_disconnect() of Linux.
TEST(Abort, AfterThePeersEnd_NeedsNoReset) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).shutdown_send().ignore_all().abort().nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  Script with_data;
  with_data.establish()
      .inject(seg().fin().seq(1).ack(1))
      .ignore_all()
      .abort()
      .expect(seg().rst().seq(1))
      .nothing_more();
}

// --- TIME-WAIT

Script& to_time_wait(Script& s) {
  return s.shutdown_send().inject(seg().seq(1).ack(2)).inject(seg().fin().seq(1).ack(2)).close().ignore_all();
}

TEST(TimeWait, RepeatedFin_IsAcknowledgedAndRestartsTheClock) {
  Script s;
  to_time_wait(s.establish()).at(50s).inject(seg().fin().seq(1).ack(2)).expect(seg().seq(2).ack(2).len(0));
  s.at(100s);
  EXPECT_EQ(s.engine().impl().time_waits.count, 1U);
  s.at(111s);
  EXPECT_EQ(s.engine().impl().time_waits.count, 0U);
}

TEST(TimeWait, Reset_DoesNotEndIt) {
  Script s;
  to_time_wait(s.establish()).inject(seg().rst().seq(2)).inject(seg().rst().seq(9)).nothing_more();
  EXPECT_EQ(s.engine().impl().time_waits.count, 1U);
  EXPECT_EQ(s.counters().drop_tcp_bad_rst, 1U);
}

TEST(TimeWait, HigherSyn_OpensAnew) {
  Script s;
  to_time_wait(s.establish()).inject(seg().syn().seq(5000).mss(1000)).expect(seg().syn().seq(0).ack(5001));
  EXPECT_EQ(s.counters().tcp_time_wait_reused, 1U);
}

TEST(TimeWait, OpenedAnew_BeginsAboveTheLastIncarnation) {  // RFC 1122 §4.2.2.13
  Script s;
  to_time_wait(s.establish());
  tcp::SeqNum& last = s.engine().impl().time_waits.newest->snd_nxt;
  last += 1'000'000'000;  // as if it had sent a gigabyte
  const tcp::SeqNum before = last;
  s.inject(seg().syn().seq(5000).mss(1000)).ignore_all();
  EXPECT_TRUE(tcp::after(tcp::SeqNum{s.host_iss}, before));
}

TEST(TimeWait, OldSyn_IsAcknowledgedOnly) {
  Script s;
  to_time_wait(s.establish()).inject(seg().syn().seq(-100)).expect(seg().seq(2).ack(2).len(0)).nothing_more();
  EXPECT_EQ(s.counters().tcp_time_wait_reused, 0U);
}

TEST(TimeWait, OldTimestamp_IsPaws) {
  Given given;
  given.timestamps = true;
  Script s(given);
  s.establish().shutdown_send().inject(seg().seq(1).ack(2).ts(5, 0)).inject(seg().fin().seq(1).ack(2).ts(6, 0)).close();
  s.ignore_all().inject(seg().seq(2).ack(2).len(10).ts(3, 0)).expect(seg().seq(2).ack(2).echo(6));
  EXPECT_EQ(s.counters().drop_tcp_paws, 1U);
}

TEST(TimeWait, NewerTimestampOnLowerSyn_OpensAnew) {
  Given given;
  given.timestamps = true;
  Script s(given);
  s.establish().shutdown_send().inject(seg().seq(1).ack(2).ts(5, 0)).inject(seg().fin().seq(1).ack(2).ts(6, 0)).close();
  s.ignore_all().inject(seg().syn().seq(-500).ts(7, 0)).expect(seg().syn().ack(-499));
}

// A new process of the peer has got the old one's port. Its timestamps begin elsewhere.
TEST(TimeWait, OlderTimestampOnSyn_OpensAnewAfterTheReset) {
  Given given;
  given.timestamps = true;
  Script s(given);
  s.establish().shutdown_send().inject(seg().seq(1).ack(2).ts(5, 0)).inject(seg().fin().seq(1).ack(2).ts(6, 0)).close();
  s.ignore_all().inject(seg().syn().seq(5000).ts(3, 0)).expect(seg().seq(2).ack(2).len(0));
  EXPECT_EQ(s.engine().impl().time_waits.count, 1U);
  s.inject(seg().rst().seq(2)).nothing_more();
  EXPECT_EQ(s.engine().impl().time_waits.count, 0U);
  s.inject(seg().syn().seq(5000).ts(4, 0)).expect(seg().syn().ack(5001));
}

TEST(TimeWait, OurConnect_TakesOverAfterASecond) {
  Given given;
  given.timestamps = true;
  Script s(given);
  s.connect(7000).inject(seg().syn().seq(0).ack(1).ts(1, 0)).shutdown_send();
  s.inject(seg().seq(1).ack(2).ts(2, 0)).inject(seg().fin().seq(1).ack(2).ts(3, 0)).close().ignore_all();
  const std::uint32_t old_next = s.host_iss + 2;
  const auto early = s.engine().connect(s.ctx(), {s.host().address(), 7000}, {ip("10.9.0.2"), s.peer_port}, {}, &s);
  EXPECT_EQ(early.error(), Error::kAddressNotAvailable);
  s.at(1100ms).connect(7000).expect(seg().syn().seq(0));
  EXPECT_GT(static_cast<std::int32_t>(s.host_iss - old_next), 0);
  EXPECT_EQ(s.counters().tcp_time_wait_reused, 1U);
}

TEST(TimeWait, TooMany_OldestGoes) {
  Given given;
  given.stack.tcp.max_time_wait = 2;
  Script s(given);
  for (std::uint16_t port = 1; port <= 3; port++) {
    s.new_peer(port);
    to_time_wait(s.establish());
  }
  EXPECT_EQ(s.engine().impl().time_waits.count, 2U);
}

TEST(ReceiveShut, Reset_IsNoEndUntilItWasTold) {
  Script s;
  s.establish();
  s.engine().shutdown_receive(s.ctx(), *s.tcb());
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
  s.inject(seg().rst().seq(1).ack(1));
  EXPECT_FALSE(s.engine().at_eof(*s.tcb()));
  EXPECT_EQ(s.engine().take_error(*s.tcb()), Error::kReset);
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
}

TEST(Unacknowledged, WhatAResetLost_IsCountedStill) {
  Script s;
  s.establish().write(1000).ignore_all().inject(seg().seq(1).ack(401)).inject(seg().rst().seq(1).ack(401));
  EXPECT_EQ(s.state(), State::kClosed);
  EXPECT_EQ(s.engine().unacknowledged(*s.tcb()), 600U);
}

TEST(TimeWait, UnreadData_StaysReadable) {
  Script s;
  s.establish().shutdown_send().inject(seg().seq(1).ack(2)).inject(seg().fin().seq(1).ack(2).text("last words"));
  EXPECT_EQ(s.state(), State::kTimeWait);
  EXPECT_EQ(s.read(), "last words");
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
}

// An option set in TIME-WAIT armed keep-alive, and close() freed the connection inside the timer wheel.
TEST(TimeWait, OptionSetBeforeClose_LeavesNoTimer) {
  Given given;
  given.options.keep_alive = true;
  given.options.keep_idle_s = 1;
  Script s(given);
  s.establish().shutdown_send().ignore_all().inject(seg().seq(1).ack(2).fin()).ignore_all();
  ASSERT_EQ(s.state(), State::kTimeWait);
  s.set_options(given.options);
  EXPECT_FALSE(s.tcb()->wheel.scheduled());
  s.close().wait(200s).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
}

}  // namespace
}  // namespace bypass::test
