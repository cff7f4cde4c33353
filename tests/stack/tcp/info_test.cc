// What TCP_INFO shows: bytes, and busy and limited times as tcp_chrono_start() and tcp_chrono_stop() of Linux count
// them.

#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using namespace std::chrono_literals;

struct Times {
  std::uint32_t busy, window, buffer;
  bool operator==(const Times&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Times& t) {
  return out << "busy " << t.busy << ", window " << t.window << ", buffer " << t.buffer;
}

Times times(Script& s) {
  const tcp::Info info = s.info();
  const tcp::Spent spent = info.busy_times.at(info.limit, milliseconds_of(Instant{} + s.now_since_start()));
  return {spent.busy, spent.window, spent.buffer};
}

// A writer that wants more than the send buffer takes, like the socket layer.
void be_refused(Script& s) {
  ASSERT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kWouldBlock);
  s.engine().want_room(s.ctx(), *s.tcb());
}

TEST(BusyTime, FromTheWriteToTheLastAck) {
  Script s;
  s.establish().at(10ms);
  EXPECT_EQ(times(s), (Times{0, 0, 0}));
  s.write(1000).at(25ms);
  EXPECT_EQ(times(s), (Times{15, 0, 0}));
  s.at(40ms).inject(seg().seq(1).ack(1001)).at(500ms);
  EXPECT_EQ(times(s), (Times{30, 0, 0}));
  s.write(1000).at(507ms).inject(seg().seq(1).ack(2001));
  EXPECT_EQ(times(s), (Times{37, 0, 0}));
}

TEST(BusyTime, WhileAPartIsUnacknowledged) {
  Script s;
  s.establish().write(2000).at(20ms).inject(seg().seq(1).ack(1001)).at(50ms);
  EXPECT_EQ(times(s), (Times{50, 0, 0}));
}

TEST(BusyTime, AFinIsSomethingToDeliver) {
  Script s;
  s.establish().at(10ms).shutdown_send().at(30ms).inject(seg().seq(1).ack(2)).at(90ms);
  EXPECT_EQ(s.state(), tcp::State::kFinWait2);
  EXPECT_EQ(times(s), (Times{20, 0, 0}));
}

TEST(BusyTime, WindowLimits_WhatWaitsForIt) {
  Given given;
  given.window = 1000;
  Script s(given);
  s.establish().write(3000).at(10ms);
  EXPECT_EQ(times(s), (Times{10, 10, 0}));
  s.inject(seg().seq(1).ack(1001).window(0)).at(40ms);  // a probe of the closed window is no progress
  EXPECT_EQ(times(s), (Times{40, 40, 0}));
  s.inject(seg().seq(1).ack(1001).window(4000)).at(60ms);
  EXPECT_EQ(times(s), (Times{60, 40, 0}));
  s.inject(seg().seq(1).ack(3001)).at(100ms);
  EXPECT_EQ(times(s), (Times{60, 40, 0}));
}

TEST(BusyTime, WindowDoesNotLimit_WhereTheCongestionWindowDoes) {
  Given given;
  given.window = 10000;  // ten segments: as much as the initial congestion window
  Script s(given);
  s.establish().write(20000).at(30ms);
  EXPECT_EQ(times(s), (Times{30, 0, 0}));
}

TEST(BusyTime, BufferLimits_AWriterThatIsRefused) {
  Given given;
  given.options.send_buffer = 2000;  // doubled, as Linux does
  Script s(given);
  s.establish().write(4000).at(10ms);
  EXPECT_EQ(times(s), (Times{10, 0, 0})) << "nobody wants to write more";
  be_refused(s);
  s.at(30ms);
  EXPECT_EQ(times(s), (Times{30, 0, 20}));
  s.inject(seg().seq(1).ack(1001)).at(40ms);
  EXPECT_EQ(times(s), (Times{40, 0, 30})) << "a third is not free yet";
  s.inject(seg().seq(1).ack(3001)).at(50ms);
  EXPECT_EQ(times(s), (Times{50, 0, 30}));
  s.inject(seg().seq(1).ack(4001)).at(90ms);
  EXPECT_EQ(times(s), (Times{50, 0, 30}));
}

TEST(BusyTime, BufferDoesNotLimit_WhereTheWindowDoes) {
  Given given;
  given.options.send_buffer = 2000;  // doubled, as Linux does
  given.window = 1000;
  Script s(given);
  s.establish().write(4000);
  be_refused(s);
  s.at(30ms);
  EXPECT_EQ(times(s), (Times{30, 30, 0}));
}

TEST(BusyTime, AnEndedConnectionIsNotBusy) {
  Script s;
  s.establish().write(1000).at(20ms).inject(seg().seq(1).ack(1).rst()).at(90ms);
  EXPECT_EQ(s.state(), tcp::State::kClosed);
  EXPECT_EQ(times(s), (Times{20, 0, 0}));
}

// What TCP_INFO counts in bytes, beside the times.
TEST(InfoBytes, SynAndFinAreAcknowledgedAndReceivedNumbers) {
  Script passive;
  passive.establish().write(1000).inject(seg().seq(1).ack(1001)).shutdown_send().inject(seg().seq(1).ack(1002).fin());
  EXPECT_EQ(passive.info().bytes_acked, 1001U);
  EXPECT_EQ(passive.info().bytes_received, 1U);
  EXPECT_EQ(passive.info().bytes_sent, 1000U);
  Script active;
  active.establish_active();
  EXPECT_EQ(active.info().bytes_acked, 1U);
}

TEST(InfoBytes, SentAgain_CountsEachTime) {
  Given given;
  given.sack = true;
  Script s(given);
  s.establish().write(6000);
  s.inject(seg().seq(1).ack(1).sack(1001, 5001));  // the first is lost, and sent again
  EXPECT_EQ(s.info().bytes_sent, 7000U);
  EXPECT_EQ(s.info().bytes_retransmitted, 1000U);
  EXPECT_EQ(s.info().lost, 1000U) << "as Linux, although it is under way again";
  EXPECT_EQ(s.info().sent_again, 1000U);
  s.inject(seg().seq(1).ack(6001));
  EXPECT_EQ(s.info().lost, 0U);
  EXPECT_EQ(s.info().sent_again, 0U);
  EXPECT_EQ(s.info().bytes_sent, 7000U);
}

TEST(InfoBytes, LargeFrame_IsAsManySegmentsAsTheWireSees) {
  Given given;
  given.caps.tso_max_bytes = 64000;
  Script s(given);
  s.establish();
  const auto before = s.info().segments_sent;
  s.write(5000);
  EXPECT_EQ(s.info().segments_sent - before, 5U);
}

// Processes of a family write these moments, each by its own clock.
TEST(Milliseconds, ClockThatIsALittleAhead_MakesNoLongTime) {
  EXPECT_EQ(milliseconds_since(1000, 999), 0ms);
  EXPECT_EQ(milliseconds_since(0, 0xffffffff), 0ms);
  EXPECT_EQ(milliseconds_since(1000, 1250), 250ms);
  EXPECT_EQ(milliseconds_since(0xffffff00, 0x100), 512ms);
  tcp::BusyTimes times;
  times.turn(tcp::Limit::kIdle, 1000);
  EXPECT_EQ(times.at(tcp::Limit::kNone, 999).busy, 0U);
}

}  // namespace
}  // namespace bypass::test
