#include "stack/tcp/congestion/congestion.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bypass::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMss = 1000;
constexpr Instant kStart{100s};

CongestionControl started(Congestion algorithm, std::uint32_t segments = 10) {
  CongestionControl cc;
  cc.start(algorithm, kMss, segments);
  return cc;
}

/// A sender that always fills its window. ACKs of two segments each come for one round trip.
struct Flow {
  CongestionControl cc;
  Instant now = kStart;
  Duration rtt = 100ms;
  SeqNum una{};
  bool app_limited = false;

  void ack(std::uint32_t bytes) {
    una += bytes;
    cc.on_ack({.now = now,
               .acked = bytes,
               .flight = cc.cwnd(),
               .srtt = rtt,
               .rtt = rtt,
               .una = una,
               .nxt = una + cc.cwnd(),
               .app_limited = app_limited});
  }
  void round() {
    const std::uint32_t acks = std::max(cc.cwnd() / (2 * kMss), 1U);
    for (std::uint32_t i = 0; i < acks; i++) {
      now += rtt / acks;
      ack(2 * kMss);
    }
  }
};

TEST(CongestionWindow, Start_IsRfc6928s) {
  CongestionControl cc;
  for (const auto& [mss, expected] : {std::pair{536U, 5360U}, {1460U, 14600U}, {8948U, 17896U}}) {
    cc.start(Congestion::kCubic, mss, 10);
    EXPECT_EQ(cc.cwnd(), expected);
    EXPECT_TRUE(cc.in_slow_start());
  }
  cc.on_syn_lost();
  EXPECT_EQ(cc.cwnd(), 8948U) << "RFC 5681 §3.1";
}

TEST(CongestionWindow, SlowStart_DoublesARoundTrip) {
  Flow flow{started(Congestion::kNewReno)};
  flow.round();
  EXPECT_EQ(flow.cc.cwnd(), 20 * kMss);
  flow.round();
  EXPECT_EQ(flow.cc.cwnd(), 40 * kMss);
}

TEST(CongestionWindow, OneAckOfMuch_GrowsByALimit) {
  Flow flow{started(Congestion::kNewReno, 1000)};
  const std::uint32_t before = flow.cc.cwnd();
  flow.ack(500 * kMss);
  EXPECT_EQ(flow.cc.cwnd(), before + 65536);
}

TEST(CongestionWindow, WhileATimeoutIsRepaired_GrowsByOneSegmentAnAck) {  // RFC 3465 §2.3
  auto cc = started(Congestion::kNewReno);
  cc.on_rto(kStart, 10 * kMss, false);
  cc.on_ack({.now = kStart, .acked = 5 * kMss, .flight = 10 * kMss, .in_timeout = true});
  EXPECT_EQ(cc.cwnd(), 2 * kMss);
}

TEST(CongestionWindow, SlowStart_StopsAtSsthresh) {
  Flow flow{started(Congestion::kNewReno, 100)};
  flow.cc.on_rto(kStart, 100 * kMss, false);
  EXPECT_EQ(flow.cc.cwnd(), kMss);
  EXPECT_EQ(flow.cc.ssthresh(), 50 * kMss);
  while (flow.cc.in_slow_start()) flow.ack(2 * kMss);
  EXPECT_EQ(flow.cc.cwnd(), 50 * kMss);
}

TEST(CongestionWindow, NotUsed_DoesNotGrow) {  // RFC 7661
  for (auto algorithm : {Congestion::kCubic, Congestion::kNewReno}) {
    auto cc = started(algorithm, 10);
    for (int i = 0; i < 50; i++)
      cc.on_ack({.now = kStart, .acked = kMss, .flight = kMss, .srtt = 1ms, .app_limited = true});
    EXPECT_EQ(cc.cwnd(), 10 * kMss) << "slow start";
    cc.on_loss_event(kStart, 10 * kMss);
    const std::uint32_t before = cc.cwnd();
    for (int i = 0; i < 50; i++)
      cc.on_ack({.now = kStart + i * 1s, .acked = kMss, .flight = kMss, .srtt = 1ms, .app_limited = true});
    EXPECT_EQ(cc.cwnd(), before) << "congestion avoidance";
  }
}

TEST(CongestionWindow, InRecovery_Stays) {
  Flow flow{started(Congestion::kCubic)};
  flow.cc.on_loss_event(kStart, 10 * kMss);
  flow.cc.on_ack({.now = kStart, .acked = 9 * kMss, .flight = 10 * kMss, .in_recovery = true});
  EXPECT_EQ(flow.cc.cwnd(), 7 * kMss);
}

TEST(CongestionWindow, LossEvent_NewRenoHalvesCubicTakesSevenTenths) {
  auto reno = started(Congestion::kNewReno, 100);
  reno.on_loss_event(kStart, 100 * kMss);
  EXPECT_EQ(reno.cwnd(), 50 * kMss);
  auto cubic = started(Congestion::kCubic, 100);
  cubic.on_loss_event(kStart, 100 * kMss);
  EXPECT_EQ(cubic.cwnd(), 70 * kMss);
}

TEST(CongestionWindow, LossOfTheLastSegments_LeavesTwo) {
  for (auto algorithm : {Congestion::kCubic, Congestion::kNewReno}) {
    auto cc = started(algorithm);
    cc.on_loss_event(kStart, kMss);
    EXPECT_EQ(cc.cwnd(), 2 * kMss);
  }
}

TEST(CongestionWindow, SecondTimeoutOfTheSameData_KeepsSsthresh) {  // RFC 5681 §3.1
  auto cc = started(Congestion::kNewReno, 100);
  cc.on_rto(kStart, 100 * kMss, false);
  cc.on_rto(kStart + 1s, kMss, true);
  EXPECT_EQ(cc.ssthresh(), 50 * kMss);
  EXPECT_EQ(cc.cwnd(), kMss);
}

TEST(CongestionWindow, SpuriousTimeout_IsUndoneOnce) {
  for (auto algorithm : {Congestion::kCubic, Congestion::kNewReno}) {
    auto cc = started(algorithm, 100);
    cc.on_rto(kStart, 100 * kMss, false);
    ASSERT_TRUE(cc.can_undo());
    cc.undo();
    EXPECT_EQ(cc.cwnd(), 100 * kMss);
    EXPECT_EQ(cc.ssthresh(), kMaxCwnd);
    EXPECT_FALSE(cc.can_undo());
  }
}

TEST(CongestionWindow, Idle_HalvesEachTimeoutDownToTheInitial) {
  auto cc = started(Congestion::kCubic, 10);
  Flow flow{cc};
  while (flow.cc.cwnd() < 160 * kMss) flow.round();
  flow.cc.on_idle_restart(kStart, 200ms, 200ms);
  EXPECT_EQ(flow.cc.cwnd(), 160 * kMss) << "not longer than a timeout";
  flow.cc.on_idle_restart(kStart, 500ms, 200ms);
  EXPECT_EQ(flow.cc.cwnd(), 40 * kMss);
  flow.cc.on_idle_restart(kStart, 1h, 200ms);
  EXPECT_EQ(flow.cc.cwnd(), 10 * kMss);
}

TEST(CongestionWindow, AlgorithmChanged_KeepsTheWindow) {
  auto cc = started(Congestion::kCubic, 30);
  cc.change(Congestion::kNewReno);
  EXPECT_EQ(cc.cwnd(), 30 * kMss);
  EXPECT_EQ(cc.algorithm(), Congestion::kNewReno);
}

TEST(CongestionWindow, Unlimited_StaysBelowItsBound) {
  for (auto algorithm : {Congestion::kCubic, Congestion::kNewReno}) {
    Flow flow{started(algorithm)};
    for (int i = 0; i < 40000; i++) flow.ack(1 << 20);
    EXPECT_EQ(flow.cc.cwnd(), kMaxCwnd);
  }
}

TEST(NewReno, CongestionAvoidance_AddsOneSegmentARoundTrip) {
  Flow flow{started(Congestion::kNewReno, 40)};
  flow.cc.on_loss_event(kStart, 40 * kMss);
  for (std::uint32_t i = 1; i <= 10; i++) {
    flow.round();
    EXPECT_NEAR(flow.cc.cwnd(), (20 + i) * kMss, kMss);
  }
}

TEST(CubeRoot, AnyNumber_IsTheLargestWhoseCubeFits) {
  for (std::uint64_t root : {0U, 1U, 2U, 9U, 10U, 1023U, 1'000'000U, 2'097'151U, 2'642'245U}) {
    EXPECT_EQ(cube_root(root * root * root), root);
    if (root != 0) {
      EXPECT_EQ(cube_root(root * root * root - 1), root - 1);
    }
  }
  EXPECT_EQ(cube_root(~std::uint64_t{0}), 2'642'245U);
}

// RFC 9438 §4.2 with a round-trip time long enough that the cubic region counts.
TEST(Cubic, AfterALoss_FollowsTheCubicFunction) {
  Flow flow{started(Congestion::kCubic, 1000)};
  flow.rtt = 100ms;
  flow.cc.on_loss_event(kStart, 1000 * kMss);
  ASSERT_EQ(flow.cc.cwnd(), 700 * kMss);
  flow.ack(2 * kMss);
  const Instant epoch = flow.now;
  const double k = std::cbrt(300 / 0.4);
  for (int i = 0; i < 150; i++) {
    flow.round();
    const double t = std::chrono::duration<double>(flow.now - epoch).count();
    const double expected = 1000 + 0.4 * std::pow(t - k, 3);
    ASSERT_NEAR(flow.cc.cwnd() / 1000.0, expected, expected * 0.03) << t << " s";
  }
  EXPECT_GT(flow.cc.cwnd(), 1050 * kMss) << "beyond the plateau";
}

TEST(Cubic, ShortRoundTrips_GrowAtLeastAsReno) {  // RFC 9438 §4.3
  Flow flow{started(Congestion::kCubic, 20)};
  flow.rtt = 1ms;
  flow.cc.on_loss_event(kStart, 20 * kMss);
  for (int i = 0; i < 34; i++) flow.round();
  // The window grows by 9/17 of a segment in a round trip up to the window before the loss, then by one.
  EXPECT_NEAR(flow.cc.cwnd() / 1000.0, 20 + (34 - 6 * 17.0 / 9), 2.5);
}

TEST(Cubic, LossBelowTheLastPlateau_ConvergesFast) {  // RFC 9438 §4.7
  Cubic cubic;
  Window window{.cwnd = 100'000, .mss = kMss};
  EXPECT_EQ(cubic.reduced(window, 100'000), 70'000U);
  window.cwnd = 70'000;
  EXPECT_EQ(cubic.reduced(window, 70'000), 49'000U);
  EXPECT_EQ(cubic.w_max, 59'500U) << "0.85 of the window, so that a newcomer finds room";
  window.cwnd = 49'000;
  cubic.on_ack(window, {.now = kStart, .acked = 1, .srtt = 10ms});
  EXPECT_NEAR(cubic.k / 1024.0, std::cbrt((59.5 - 49) / 0.4), 0.01);
}

TEST(Cubic, LimitedForLong_DoesNotJumpAfterwards) {  // RFC 9438 §5.8
  Flow flow{started(Congestion::kCubic, 100)};
  flow.cc.on_loss_event(kStart, 100 * kMss);
  flow.round();
  const std::uint32_t before = flow.cc.cwnd();
  flow.app_limited = true;
  for (int i = 0; i < 1000; i++) {
    flow.now += 100ms;
    flow.ack(1000);
  }
  flow.app_limited = false;
  flow.round();
  EXPECT_LT(flow.cc.cwnd(), before + 10 * kMss);
}

TEST(Cubic, AfterATimeout_TheEpochBeginsWhereSlowStartEnds) {  // RFC 9438 §4.8
  Flow flow{started(Congestion::kCubic, 100)};
  flow.cc.on_rto(kStart, 100 * kMss, false);
  while (flow.cc.in_slow_start()) flow.ack(2 * kMss);
  EXPECT_EQ(flow.cc.cwnd(), 70 * kMss);
  flow.round();
  EXPECT_LT(flow.cc.cwnd(), 72 * kMss) << "the plateau is here, not at 100";
}

TEST(HyStart, RoundTripsRise_SlowStartEndsBeforeLoss) {  // RFC 9406 §4.2
  Flow flow{started(Congestion::kCubic)};
  flow.rtt = 20ms;
  for (int i = 0; i < 3; i++) flow.round();
  EXPECT_TRUE(flow.cc.in_slow_start());
  flow.rtt = 30ms;
  for (int i = 0; i < 7; i++) flow.round();
  EXPECT_FALSE(flow.cc.in_slow_start());
  EXPECT_LT(flow.cc.cwnd(), 10 * kMss << 8) << "conservative rounds grow by a quarter each";
}

TEST(HyStart, RiseWasSpurious_SlowStartGoesOn) {
  Flow flow{started(Congestion::kCubic)};
  flow.rtt = 20ms;
  for (int i = 0; i < 3; i++) flow.round();
  flow.rtt = 30ms;
  flow.round();
  flow.rtt = 20ms;
  for (int i = 0; i < 7; i++) flow.round();
  EXPECT_TRUE(flow.cc.in_slow_start());
}

TEST(HyStart, LossInTheFirstSlowStart_WasSpurious_RoundTripsAreWatchedAgain) {
  Flow flow{started(Congestion::kCubic)};
  flow.rtt = 20ms;
  flow.round();
  flow.cc.on_loss_event(flow.now, flow.cc.cwnd());
  EXPECT_FALSE(flow.cc.in_slow_start());
  flow.cc.undo();
  EXPECT_TRUE(flow.cc.in_slow_start());
  for (int i = 0; i < 3; i++) flow.round();
  EXPECT_TRUE(flow.cc.in_slow_start());
  flow.rtt = 30ms;
  for (int i = 0; i < 7; i++) flow.round();
  EXPECT_FALSE(flow.cc.in_slow_start());
}

TEST(HyStart, AlgorithmChangesInTheFirstSlowStart_RoundTripsAreWatchedOn) {
  Flow flow{started(Congestion::kNewReno)};
  flow.rtt = 20ms;
  for (int i = 0; i < 3; i++) flow.round();
  flow.cc.change(Congestion::kCubic);
  flow.rtt = 30ms;
  for (int i = 0; i < 7; i++) flow.round();
  EXPECT_FALSE(flow.cc.in_slow_start());
  const std::uint32_t before = flow.cc.cwnd();
  flow.round();
  EXPECT_GE(flow.cc.cwnd(), before);
  EXPECT_LT(flow.cc.cwnd(), before + before / 2) << "cubic begins with a new epoch";
}

}  // namespace
}  // namespace bypass::tcp
