// Time: RFC 6298, RFC 5482, keep-alive (RFC 9293 §3.8.4), timestamps and PAWS (RFC 7323).
#include "stack/ip/arp.h"
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

TEST(Rto, FirstSample_SetsItToAtLeastMinimum) {
  Script s;
  s.establish().write(100).ignore_all().at(199ms).nothing_more().at(201ms).expect(seg().seq(1).len(100));
}

TEST(Rto, SlowPath_IsMeasured) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).wait(300ms).inject(seg().seq(1).ack(1)).accept().ignore_all();
  EXPECT_EQ(s.info().srtt, 300ms);
  EXPECT_EQ(s.info().rttvar, 150ms);
  s.write(100).ignore_all().wait(899ms).nothing_more().wait(2ms).expect(seg().seq(1).len(100));
}

// __tcp_set_rto() of Linux: the minimum bounds the variance's part. A delayed ACK on a steady path still comes in time.
TEST(Rto, SteadyPath_LeavesRoomBesideTheRoundTrip) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).wait(190ms).inject(seg().seq(1).ack(1)).accept().ignore_all();
  int at = 1;
  for (int i = 0; i < 50; i++, at += 100) {
    s.write(100).expect(seg().seq(at).len(100)).wait(190ms).inject(seg().seq(1).ack(at + 100)).ignore_all();
  }
  EXPECT_LT(s.info().rttvar, 1ms);
  s.write(100).expect(seg().seq(at).len(100)).wait(389ms).nothing_more();
  s.wait(2ms).expect(seg().seq(at).len(100));
}

TEST(Rto, NoAnswer_DoublesAndGivesUp) {
  Given given;
  given.stack.tcp.retries2 = 3;
  Script s(given);
  s.establish().write(100).ignore_all();
  s.at(201ms).expect(seg().seq(1)).at(601ms).expect(seg().seq(1)).at(1401ms).expect(seg().seq(1)).nothing_more();
  s.at(10s).nothing_more();
  EXPECT_EQ(s.error(), Error::kTimedOut);
  EXPECT_EQ(s.counters().tcp_timeouts, 1U);
  EXPECT_EQ(s.info().retransmits, 3U);
}

TEST(LinkUp, Unanswered_IsSentAtOnce) {
  Script s;
  s.establish().write(100).ignore_all().at(50ms).nothing_more().link_up().expect(seg().seq(1).len(100)).nothing_more();
  s.at(199ms).nothing_more().at(201ms).expect(seg().seq(1).len(100));  // the timeout keeps its course
}

TEST(LinkUp, AgainAndAgain_PutsNoEndOff) {
  Given given;
  given.stack.tcp.retries2 = 3;
  Script s(given);
  s.establish().write(100);
  for (auto when = 100ms; when < 4s; when += 100ms) s.at(when).link_up().ignore_all();
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(LinkUp, SynAgainAndAgain_PutsNoEndOff) {
  Given given;
  given.stack.tcp.syn_retries = 2;
  Script s(given);
  s.connect();
  for (auto when = 500ms; when < 8s; when += 500ms) s.at(when).link_up().ignore_all();
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(LinkUp, DoublingAndPatience_AreLeftAlone) {
  Given given;
  given.stack.tcp.retries2 = 2;
  Script s(given);
  s.establish().write(100).ignore_all();
  for (int i = 0; i < 10; i++) s.link_up().expect(seg().seq(1).len(100));
  EXPECT_EQ(s.info().backoff, 0U);
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(LinkUp, Syn_IsRepeatedAtOnce) {
  Script s;
  s.connect().ignore_all().at(10ms).link_up().expect(seg().syn()).nothing_more();
}

TEST(LinkUp, ManySegments_BeginWithOne) {
  Script s;
  s.establish().write(5000).ignore_all().at(10ms).link_up().expect(seg().seq(1)).nothing_more();
}

TEST(LinkUp, ResetOfTheLastSecond_IsSaidAgainWithAQuestion) {
  Script s;
  s.establish().write(100).inject(seg().seq(1).ack(101).len(50)).close().ignore_all();
  EXPECT_EQ(s.connections(), 0U) << "unread data: RST";
  s.at(9900ms).link_up().expect(seg().rst().seq(101).ack(51)).expect(seg().seq(100).ack(51).len(0)).nothing_more();
  s.at(10100ms).link_up().nothing_more();
}

// In its first moments a wire may lose the segment again, or the peer's answer.
TEST(LinkUp, ResetOfTheLastSecond_IsSaidFourTimesMore) {
  Script s;
  s.establish().write(100).inject(seg().seq(1).ack(101).len(50)).close().ignore_all();
  s.at(9900ms).link_up().ignore_all();
  for (const auto when : {10500ms, 11700ms, 14100ms, 18900ms}) {
    s.at(when - 1ms).nothing_more();
    s.at(when + 1ms).expect(seg().rst().seq(101).ack(51)).expect(seg().seq(100).ack(51).len(0)).nothing_more();
  }
  s.at(60s).nothing_more();
}

TEST(LinkUp, QuestionOfAHostThatHasForgotten_IsAnsweredAtOnce) {
  Script s;
  s.establish().inject(seg().rst().seq(50)).expect(seg().seq(1).ack(1));  // challenged: that answer is lost
  s.link_up().inject(seg().rst().seq(50)).expect(seg().seq(1).ack(1)).nothing_more();
  s.link_up().inject(seg().seq(0).ack(1)).expect(seg().seq(1).ack(1)).nothing_more();
  s.inject(seg().rst().seq(1));
  EXPECT_EQ(s.error(), Error::kReset);
}

TEST(LinkUp, MoreResetsThanAreKept_AreCounted) {
  Script s;
  s.listen();
  for (std::uint16_t port = 1000; port < 1000 + tcp::RecentResets::kSlots + 3; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0)).inject(seg().seq(1).ack(1).len(1)).accept().close();
  }
  EXPECT_EQ(s.counters().tcp_resets_forgotten, 3U);
}

TEST(LinkUp, NothingUnanswered_SendsNothing) {
  Script s;
  s.establish().write(100).ignore_all().inject(seg().seq(1).ack(101)).link_up().nothing_more();
}

TEST(Announced, IdleConnection_AsksWhetherItIsKnown) {
  Script s;
  s.establish().at(3600s).nothing_more().announce().expect(seg().seq(1).ack(1).len(0)).nothing_more();
  s.at(7200s).nothing_more().inject(seg().rst().seq(1));  // the answer of a host that has forgotten
  EXPECT_EQ(s.error(), Error::kReset);
}

TEST(Announced, ManyTimes_IsHeardOnceASecond) {
  Script s;
  s.establish().announce().expect(seg().seq(1).ack(1).len(0));
  for (int i = 0; i < 100; i++) s.announce().nothing_more();
  s.wait(999ms).announce().nothing_more().wait(1ms).announce().expect(seg().seq(1).ack(1).len(0)).nothing_more();
}

TEST(Announced, TooManyAddressesAtOnce_AreNotHeard) {
  Script s;
  s.establish();
  for (std::size_t i = 0; i < bypass::Arp::kHeard; i++) s.announce(("10.9.0." + std::to_string(10 + i)).c_str());
  s.announce().nothing_more().wait(1s).announce().expect(seg().seq(1).ack(1).len(0)).nothing_more();
}

// Announcements are cheap to forge. A walk over all connections is not cheap.
TEST(Announced, ManyInOneBurst_CostOneWalk) {
  Script s;
  s.establish();
  const auto walks = s.counters().tcp_announcement_walks;
  s.announce_all({"10.9.0.20", "10.9.0.2", "10.9.0.21"}).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.counters().tcp_announcement_walks - walks, 1U);
}

TEST(Announced, OthersAddress_SendsNothing) {
  Script s;
  s.establish().announce("10.9.0.3").announce("10.8.0.2").nothing_more();
}

TEST(Announced, DataUnderWay_GoesItsWay) {
  Script s;
  s.establish().write(100).ignore_all().at(50ms).announce().nothing_more().at(201ms).expect(seg().seq(1).len(100));
}

TEST(Announced, DataRepeatedInVain_AsksWhetherItIsKnown) {
  Script s;
  s.establish().write(100).at(3s).ignore_all().announce().expect(seg().seq(101).ack(1).len(0)).nothing_more();
}

// An attacker may announce, again and again, the address of a host that is not there.
TEST(Announced, AgainAndAgain_PutsNothingOff) {
  for (const bool announced : {false, true}) {
    Script s;
    s.establish().write(100);
    for (int i = 0; i < 2000 && s.error() == Error::kNone; i++) {
      s.wait(1s);
      if (announced) s.announce();
      s.ignore_all();
    }
    EXPECT_EQ(s.error(), Error::kTimedOut) << announced;
  }
}

TEST(Rto, RetransmittedSegment_GivesNoSample) {  // Karn, RFC 6298 §3
  Script s;
  s.establish().write(100).at(201ms).inject(seg().seq(1).ack(101));
  EXPECT_LT(s.info().srtt, 1ms);
}

TEST(Rto, LostSyn_BeginsWithOneSegment) {
  Script s;
  s.connect().at(1001ms).inject(seg().syn().seq(0).ack(1).mss(1000)).ignore_all();
  s.write(5000).expect(seg().seq(1).len(1000)).nothing_more();
}

TEST(Rto, AnswerToRepeatedSyn_GivesNoSample) {
  Script s;
  s.connect().at(1001ms).inject(seg().syn().seq(0).ack(1).mss(1000)).ignore_all();
  EXPECT_EQ(s.info().srtt, 0ms);
}

TEST(Rto, SynAckSentTwice_GivesNoSample) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).wait(50ms).inject(seg().syn().seq(0)).wait(50ms);
  s.inject(seg().seq(1).ack(1)).accept().ignore_all();
  EXPECT_EQ(s.info().srtt, 0ms);
}

TEST(UserTimeout, ClosedWindowAfterAPause_CountsFromTheWrite) {
  Given given;
  given.options.user_timeout_ms = 1000;
  Script s(given);
  s.establish().inject(seg().seq(1).ack(1).window(0)).at(5s).write(100).at(5300ms).ignore_all();
  EXPECT_EQ(s.state(), State::kEstablished);
  s.at(7s);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(UserTimeout, Unanswered_EndsTheConnection) {
  Given given;
  given.options.user_timeout_ms = 1000;
  Script s(given);
  s.establish().write(100).at(990ms);
  EXPECT_EQ(s.state(), State::kEstablished);
  s.at(1010ms);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

// RFC 5482 §3, Linux: answers that keep the window closed are not progress.
TEST(UserTimeout, ClosedWindowAnswered_EndsTheConnection) {
  Given given;
  given.window = 1000;
  given.options.user_timeout_ms = 3000;
  Script s(given);
  s.establish().write(2000).inject(seg().seq(1).ack(1001).window(0));
  for (auto t = 250ms; t < 2950ms; t += 100ms) s.at(t).inject(seg().seq(1).ack(1001).window(0));
  EXPECT_EQ(s.state(), State::kEstablished);
  s.at(3001ms);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(UserTimeout, ClosedWindowLongEnoughForR2_EndsSooner) {
  Given given;
  given.window = 1000;
  given.options.user_timeout_ms = 3'600'000;
  given.stack.tcp.retries2 = 3;
  Script s(given);
  s.establish().write(2000).inject(seg().seq(1).ack(1001).window(0)).at(60s);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(UserTimeout, WindowClosedOnDataInFlight_EndsTheConnection) {
  Given given;
  given.options.user_timeout_ms = 3000;
  Script s(given);
  s.establish().write(1000);
  for (auto t = 100ms; t < 2950ms; t += 100ms) s.at(t).inject(seg().seq(1).ack(1).window(0));
  s.at(3001ms);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

Given keep_alive() {
  Given given;
  given.options.keep_alive = true;
  given.options.keep_idle_s = 10;
  given.options.keep_interval_s = 2;
  given.options.keep_count = 3;
  return given;
}

TEST(KeepAlive, AnsweredProbe_StartsAnew) {
  Script s(keep_alive());
  s.establish().at(9900ms).nothing_more().at(10100ms).expect(seg().seq(0).ack(1).len(0)).nothing_more();
  s.inject(seg().seq(1).ack(1)).at(19900ms).nothing_more().at(20200ms).expect(seg().seq(0).len(0));
}

TEST(KeepAlive, Unanswered_ResetsAndTimesOut) {
  Script s(keep_alive());
  s.establish().at(15s).ignore_all().at(16100ms).expect(seg().rst().seq(1));
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

// RFC 5482 §4.2
TEST(KeepAlive, UserTimeout_DecidesInsteadOfTheCount) {
  for (const std::uint32_t timeout_ms : {11'000U, 19'000U}) {
    Given given = keep_alive();
    given.options.user_timeout_ms = timeout_ms;
    Script s(given);
    const auto end = timeout_ms == 11'000 ? 12s : 20s;  // the first look after it: probes go at 10, 12, 14 …
    s.establish().at(end - 50ms).ignore_all();
    EXPECT_EQ(s.state(), State::kEstablished) << timeout_ms;
    s.at(end + 100ms).expect(seg().rst().seq(1));
    EXPECT_EQ(s.error(), Error::kTimedOut) << timeout_ms;
  }
}

TEST(KeepAlive, UserTimeoutBelowTheIdleTime_StillProbesOnce) {
  Given given = keep_alive();
  given.options.user_timeout_ms = 1000;
  Script s(given);
  s.establish().at(10100ms).expect(seg().seq(0).ack(1).len(0)).inject(seg().seq(1).ack(1)).at(19900ms).nothing_more();
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(KeepAlive, DataInFlight_IsTheRetransmissionsBusiness) {
  Script s(keep_alive());
  s.establish().at(9900ms).write(100).ignore_all().at(10100ms);
  EXPECT_EQ(s.info().probes, 0U);
}

TEST(KeepAlive, Traffic_PutsItOff) {
  Script s(keep_alive());
  s.establish().at(8s).inject(seg().seq(1).ack(1).len(10)).ignore_all().at(17900ms).nothing_more();
  s.at(18100ms).expect(seg().seq(0).ack(11).len(0));
}

TEST(KeepAlive, SetLater_Begins) {
  Script s;
  s.establish().set_options(keep_alive().options).at(10100ms).expect(seg().seq(0).len(0));
}

// --- Timestamps

Given stamped() {
  Given given;
  given.timestamps = true;
  return given;
}

TEST(Timestamps, Echo_IsOfTheSegmentThatTheAckAnswers) {
  Script s(stamped());
  s.establish();
  s.tcb()->quick_acks = 0;
  s.inject(seg().seq(1).ack(1).ts(10, 0).len(10)).inject(seg().seq(11).ack(1).ts(20, 0).len(10));
  s.at(41ms).expect(seg().ack(21).echo(10));  // RFC 7323 §4.3: the earliest unacknowledged one
}

TEST(Timestamps, OutOfOrderSegment_DoesNotMoveTheEcho) {
  Script s(stamped());
  s.establish().inject(seg().seq(101).ack(1).ts(30, 0).len(10)).expect(seg().ack(1).echo(2));
}

TEST(Timestamps, SegmentWithBadAck_DoesNotMoveTheEcho) {
  Script s(stamped());
  s.establish().inject(seg().seq(1).ack(5000).ts(0x40000000, 0).len(10)).ignore_all();
  s.inject(seg().seq(1).ack(1).ts(3, 0).text("real"));
  EXPECT_EQ(s.read(), "real");
}

TEST(Timestamps, SynAckSentTwice_IsMeasuredByEcho) {
  Script s(stamped());
  s.listen().inject(seg().syn().seq(0).ts(1, 0)).at(1001ms).ignore_all();
  std::uint32_t offset = 0;
  s.engine().impl().tcbs.for_each([&](const tcp::Tcb& tcb) { offset = tcb.ts_offset; });
  const auto sent = static_cast<std::uint32_t>((1000ms / 1ns) >> 20) + offset;
  s.at(1041ms).inject(seg().seq(1).ack(1).ts(2, sent)).accept();
  EXPECT_GT(s.info().srtt, 35ms);
  EXPECT_LT(s.info().srtt, 45ms);
}

TEST(Paws, OlderTimestamp_IsDroppedAndAnswered) {
  Script s(stamped());
  s.establish().inject(seg().seq(1).ack(1).ts(100, 0).len(10)).ignore_all();
  s.inject(seg().seq(11).ack(1).ts(99, 0).len(10)).expect(seg().ack(11).echo(100)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_paws, 1U);
  s.inject(seg().rst().seq(11).ts(1, 0));
  EXPECT_EQ(s.state(), State::kClosed);  // RST is exempt, RFC 7323 §5.2
}

TEST(Paws, After24DaysOfSilence_IsNotApplied) {
  Script s(stamped());
  s.establish()
      .inject(seg().seq(1).ack(1).ts(100, 0).len(10))
      .at(25 * 24h)
      .inject(seg().seq(11).ack(1).ts(7, 0).len(10));
  EXPECT_EQ(s.info().readable, 20U);
}

TEST(Timestamps, Retransmission_IsMeasuredByEcho) {
  Script s(stamped());
  s.establish().write(100).ignore_all().at(300ms);
  const std::uint32_t echo = static_cast<std::uint32_t>((200ms / 1ns) >> 20) + s.tcb()->ts_offset;
  s.inject(seg().seq(1).ack(101).ts(50, echo));
  EXPECT_GT(s.info().srtt, 10ms);
}

TEST(Timestamps, FullSegment_LeavesRoomForThem) {
  Script s(stamped());
  s.establish().write(2000).expect(seg().seq(1).len(988));
}

TEST(NextTimeout, IdleStack_IsNever) {
  Script s;
  s.establish();
  EXPECT_LE(s.engine().next_timeout(), s.world().now() + 2s);
  s.at(5s);
  EXPECT_EQ(s.engine().next_timeout(), kNever);
}

}  // namespace
}  // namespace bypass::test
