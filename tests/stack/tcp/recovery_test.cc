// Loss recovery: RFC 5681, RFC 6582 without and RFC 6675 with SACK; RFC 3042; cwnd validation.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

Given sacking() {
  Given given;
  given.sack = true;
  return given;
}

// Ten segments of 1000 in flight.
Script& ten_in_flight(Script& s) {
  s.establish().write(10000);
  for (int i = 0; i < 10; i++) s.expect(seg().seq(1 + 1000 * i).len(1000));
  return s.nothing_more();
}

TEST(InitialWindow, TenSegments_AreSent) {
  Script s;
  ten_in_flight(s);
  s.write(5000).nothing_more().inject(seg().seq(1).ack(2001));
  for (int i = 0; i < 4; i++) s.expect(seg().len(1000));  // slow start: two for each that left
  s.nothing_more();
}

TEST(FastRetransmit, ThirdDuplicateAck_SendsTheHoleOnce) {
  Script s;
  ten_in_flight(s).inject(seg().seq(1).ack(1)).inject(seg().seq(1).ack(1)).nothing_more();
  s.inject(seg().seq(1).ack(1)).expect(seg().seq(1).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.counters().tcp_fast_retransmits, 1U);
  EXPECT_LT(s.info().ssthresh, 10000U);
}

TEST(FastRetransmit, PartialAck_SendsTheNextHole) {
  Script s;
  ten_in_flight(s);
  for (int i = 0; i < 3; i++) s.inject(seg().seq(1).ack(1));
  s.ignore_all().inject(seg().seq(1).ack(3001)).expect(seg().seq(3001).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(10001));
  EXPECT_FALSE(s.tcb()->scoreboard.in_recovery());
}

TEST(FastRetransmit, WindowUpdates_AreNoDuplicates) {
  Script s;
  ten_in_flight(s);
  for (int i = 0; i < 5; i++) s.inject(seg().seq(1).ack(1).window(static_cast<std::uint32_t>(50000 + i)));
  s.nothing_more();
}

TEST(Sack, HolesOnly_AreSentAgain) {
  Script s(sacking());
  ten_in_flight(s);
  s.inject(seg().seq(1).ack(1).sack(1001, 2001)).inject(seg().seq(1).ack(1).sack(3001, 4001).sack(1001, 2001));
  s.nothing_more();
  s.inject(seg().seq(1).ack(1).sack(3001, 6001).sack(1001, 2001)).expect(seg().seq(1).len(1000));
  s.inject(seg().seq(1).ack(1).sack(3001, 9001).sack(1001, 2001)).expect(seg().seq(2001).len(1000)).nothing_more();
}

TEST(Sack, DuplicateAcksWithoutNews_StartNothing) {
  Script s(sacking());
  ten_in_flight(s);
  for (int i = 0; i < 5; i++) s.inject(seg().seq(1).ack(1));
  s.nothing_more();
  EXPECT_EQ(s.counters().tcp_fast_retransmits, 0U);
}

TEST(Sack, LimitedTransmit_KeepsTheClock) {
  Script s(sacking());
  ten_in_flight(s).write(5000).nothing_more();
  s.inject(seg().seq(1).ack(1).sack(1001, 2001)).expect(seg().seq(10001).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(1).sack(1001, 3001)).expect(seg().seq(11001).len(1000)).nothing_more();
}

// tcp_ack() of Linux, old_ack: the ACK is old, but its report of later segments may be new.
TEST(Sack, OvertakenAck_ItsBlocksCount) {
  Script s(sacking());
  ten_in_flight(s).inject(seg().seq(1).ack(2001)).inject(seg().seq(1).ack(1001).sack(5001, 7001)).nothing_more();
  EXPECT_EQ(s.info().sacked, 2000U);
  EXPECT_EQ(s.info().bytes_acked, 2000U);
}

// Bytes that duplicate ACKs or SACK blocks have reported do not make the window grow again (tcp_cong_avoid()'s acked of
// Linux). Of 3 acknowledged segments one is new, so 11 - 9 = 2 leave.
TEST(Sack, ReorderingNoLoss_WindowGrowsByTheNewsAlone) {
  for (const bool sack : {false, true}) {
    Given given;
    given.sack = sack;
    Script s(given);
    ten_in_flight(s).write(5000).ignore_all();
    for (const int end : {2001, 3001})
      s.inject(sack ? seg().seq(1).ack(1).sack(1001, end) : seg().seq(1).ack(1))
          .expect(seg().seq(8001 + end - 1).len(1000));
    s.inject(seg().seq(1).ack(3001)).expect(seg().seq(12001)).expect(seg().seq(13001)).nothing_more();
    EXPECT_EQ(s.info().cwnd, 11000U);
  }
}

TEST(Sack, BlocksBeyondWhatWasSent_AreIgnored) {
  Script s(sacking());
  ten_in_flight(s).inject(seg().seq(1).ack(1).sack(50001, 90001)).nothing_more();
  EXPECT_EQ(s.info().sacked, 0U);
}

TEST(Timeout, WholeFlightLost_GoesBackAtSlowStart) {
  Script s;
  ten_in_flight(s).at(201ms).expect(seg().seq(1).len(1000)).nothing_more();
  EXPECT_EQ(s.info().cwnd, 1000U);
  EXPECT_EQ(s.counters().tcp_rto, 1U);
  s.inject(seg().seq(1).ack(1001)).expect(seg().seq(1001)).expect(seg().seq(2001)).nothing_more();
}

TEST(Timeout, AckOfTheWholeFlight_CountsAsOneSegment) {  // RFC 3465 §2.3
  Script s;
  ten_in_flight(s).at(201ms).ignore_all().inject(seg().seq(1).ack(10001));
  EXPECT_EQ(s.info().cwnd, 2000U);
}

TEST(Timeout, SackedRanges_AreNotSentAgain) {
  Script s(sacking());
  ten_in_flight(s).inject(seg().seq(1).ack(1).sack(2001, 3001)).ignore_all().at(250ms).expect(seg().seq(1).len(1000));
  s.inject(seg().seq(1).ack(1001).sack(2001, 3001)).expect(seg().seq(1001)).expect(seg().seq(3001)).nothing_more();
}

TEST(CwndValidation, UnusedWindow_DoesNotGrow) {
  Script s;
  s.establish();
  const std::uint32_t cwnd = s.info().cwnd;
  for (int i = 0; i < 50; i++) s.write(1000).inject(seg().seq(1).ack(1001 + 1000 * i));
  EXPECT_EQ(s.info().cwnd, cwnd);
}

// tcp_is_cwnd_limited() of Linux: the window grows to twice what was in flight, however many ACKs answer it.
TEST(CwndValidation, NineSegmentsOfTen_GrowItToEighteen) {
  Script s;
  s.establish().write(9000);
  for (const int acked : {2001, 4001, 6001, 8001, 9001}) s.wait(1ms).inject(seg().seq(1).ack(acked));
  EXPECT_EQ(s.info().cwnd, 18000U);
}

TEST(CwndValidation, LongPause_ShrinksTheWindow) {
  Script s;
  ten_in_flight(s).inject(seg().seq(1).ack(10001));
  const std::uint32_t grown = s.info().cwnd;
  EXPECT_GT(grown, 10000U);
  s.at(20s).write(30000);
  EXPECT_EQ(s.info().in_flight, 10000U);  // RFC 5681 §4.1: the restart window
}

TEST(Congestion, NewReno_HalvesTheFlight) {
  Given given;
  given.options.congestion = tcp::Congestion::kNewReno;
  Script s(given);
  ten_in_flight(s);
  for (int i = 0; i < 3; i++) s.inject(seg().seq(1).ack(1));
  EXPECT_EQ(s.info().ssthresh, 5000U);
}

TEST(Congestion, Cubic_KeepsSeventyPercent) {
  Script s;
  ten_in_flight(s);
  for (int i = 0; i < 3; i++) s.inject(seg().seq(1).ack(1));
  EXPECT_NEAR(s.info().ssthresh, 7000, 10);
}

}  // namespace
}  // namespace bypass::test
