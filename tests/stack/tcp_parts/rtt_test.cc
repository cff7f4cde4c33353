#include "stack/tcp/rtt.h"

#include <gtest/gtest.h>

namespace bypass::tcp {
namespace {

using namespace std::chrono_literals;

constexpr RtoBounds kBounds{1s, 200ms, 120s};
constexpr Instant kStart{50s};

TEST(Rtt, BeforeAnySample_RtoIsTheInitial) {
  RttEstimator rtt;
  EXPECT_EQ(rtt.rto(kBounds), 1s);
  EXPECT_EQ(rtt.min_rtt(), 0s);
}

TEST(Rtt, FirstSample_SetsHalfAsVariance) {  // RFC 6298 §2.2
  RttEstimator rtt;
  rtt.on_sample(kStart, 400ms);
  EXPECT_EQ(rtt.srtt(), 400ms);
  EXPECT_EQ(rtt.rttvar(), 200ms);
  EXPECT_EQ(rtt.rto(kBounds), 1200ms);
}

TEST(Rtt, NextSample_SmoothsByEighthAndQuarter) {  // RFC 6298 §2.3
  RttEstimator rtt;
  rtt.on_sample(kStart, 400ms);
  rtt.on_sample(kStart, 800ms);
  EXPECT_EQ(rtt.srtt(), 450ms);
  EXPECT_EQ(rtt.rttvar(), 250ms);
}

TEST(Rtt, TinyRoundTrips_RtoIsTheMinimum) {
  RttEstimator rtt;
  for (int i = 0; i < 100; i++) rtt.on_sample(kStart, 3us);
  EXPECT_EQ(rtt.rto(kBounds), 200ms + 3us);
  EXPECT_EQ(rtt.srtt(), 3us);
  EXPECT_LT(rtt.rttvar(), 10ns);
}

TEST(Rtt, SteadyRoundTrips_RtoIsTheMinimumLater) {  // __tcp_set_rto() of Linux
  RttEstimator rtt;
  for (int i = 0; i < 100; i++) rtt.on_sample(kStart, 190ms);
  EXPECT_NEAR(static_cast<double>(rtt.rto(kBounds) / 1us), 390'000, 1);
}

TEST(Rtt, ZeroSample_StillCountsAsOne) {
  RttEstimator rtt;
  rtt.on_sample(kStart, 0ns);
  EXPECT_TRUE(rtt.has_sample());
}

TEST(Rtt, Timeouts_DoubleUpToTheMaximum) {  // RFC 6298 §5.5
  RttEstimator rtt;
  rtt.on_sample(kStart, 1ms);
  for (Duration expected : {402ms, 804ms, 1608ms}) {
    rtt.on_timeout();
    EXPECT_EQ(rtt.rto(kBounds), expected);
  }
  for (int i = 0; i < 300; i++) rtt.on_timeout();
  EXPECT_EQ(rtt.rto(kBounds), 120s);
}

TEST(Rtt, SampleAfterTimeouts_EndsTheBackoff) {
  RttEstimator rtt;
  rtt.on_timeout();
  rtt.on_timeout();
  rtt.on_sample(kStart, 1ms);
  EXPECT_EQ(rtt.backoff(), 0U);
  EXPECT_EQ(rtt.rto(kBounds), 201ms);
}

TEST(Rtt, LostSynWithoutSample_StartsAtThreeSeconds) {  // RFC 6298 §5.7
  RttEstimator rtt;
  rtt.on_handshake_without_sample();
  EXPECT_EQ(rtt.rto(kBounds), 3s);
  rtt.on_sample(kStart, 1ms);
  EXPECT_EQ(rtt.rto(kBounds), 201ms);
}

TEST(Rtt, ManySamplesAFlight_MoveAsOneWould) {  // RFC 7323 appendix G
  RttEstimator one, many;
  one.on_sample(kStart, 100ms);
  many.on_sample(kStart, 100ms);
  one.on_sample(kStart, 180ms);
  for (int i = 0; i < 16; i++) many.on_sample(kStart, 180ms, 16);
  EXPECT_NEAR(static_cast<double>(many.srtt() / 1us), static_cast<double>(one.srtt() / 1us), 700);
}

TEST(Rtt, Minimum_IsForgottenAfterTwoWindows) {
  RttEstimator rtt;
  rtt.on_sample(kStart, 10ms);
  rtt.on_sample(kStart + 1s, 20ms);
  EXPECT_EQ(rtt.min_rtt(), 10ms);
  rtt.on_sample(kStart + 11s, 20ms);
  EXPECT_EQ(rtt.min_rtt(), 10ms) << "still that of the window before";
  rtt.on_sample(kStart + 22s, 30ms);
  EXPECT_EQ(rtt.min_rtt(), 20ms);
  rtt.on_sample(kStart + 122s, 40ms);
  EXPECT_EQ(rtt.min_rtt(), 40ms);
}

TEST(RttProbe, AckCoversSegment_GivesTheTime) {
  RttProbe probe;
  probe.start(SeqNum{5}, kStart);
  EXPECT_FALSE(probe.on_ack(SeqNum{0xfffffff0}, kStart + 1ms)) << "a partial ACK before the wrap";
  EXPECT_EQ(probe.on_ack(SeqNum{5}, kStart + 2ms), 2ms);
  EXPECT_FALSE(probe.on_ack(SeqNum{5}, kStart + 3ms));
}

TEST(RttProbe, SentAgain_GivesNothing) {  // Karn
  RttProbe probe;
  probe.start(SeqNum{5}, kStart);
  probe.cancel();
  EXPECT_FALSE(probe.on_ack(SeqNum{9}, kStart + 2ms));
}

}  // namespace
}  // namespace bypass::tcp
