// Windows: RFC 9293 §3.8.6, both sides of the silly window, probes, scaling (RFC 7323 §2), autotuning.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

TEST(SendWindow, Full_HoldsTheRest) {
  Given given;
  given.window = 2000;
  Script s(given);
  s.establish().write(5000).expect(seg().seq(1).len(1000)).expect(seg().seq(1001).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(2001).window(2000)).expect(seg().seq(2001)).expect(seg().seq(3001)).nothing_more();
}

TEST(SendWindow, PartOfASegment_IsNotFilled) {
  Given given;
  given.window = 4000;
  Script s(given);
  s.establish().write(5000).ignore_all().inject(seg().seq(1).ack(4001).window(500)).nothing_more();
  s.inject(seg().seq(1).ack(4001).window(1000)).expect(seg().seq(4001).len(1000)).nothing_more();
}

TEST(SendWindow, HalfOfTheLargest_IsFilled) {
  Given given;
  given.window = 900;
  Script s(given);
  s.establish().write(2000).expect(seg().seq(1).len(900)).inject(seg().seq(1).ack(901).window(500));
  s.expect(seg().seq(901).len(500)).nothing_more();
}

TEST(SendWindow, ShrunkBelowFlight_IsSurvived) {
  Script s;
  s.establish().write(5000).ignore_all().inject(seg().seq(1).ack(1001).window(100)).nothing_more();
  EXPECT_EQ(s.info().in_flight, 4000U);
  s.inject(seg().seq(1).ack(5001).window(60000));
  s.write(1000).expect(seg().seq(5001).len(1000));
}

TEST(SendWindow, TakenBackAndOpenedAgain_FlightComesAgainAsFarAsItGoes) {
  Script s;
  s.establish().write(5000).ignore_all().inject(seg().seq(1).ack(1001).window(0)).nothing_more();
  for (const std::uint32_t una : {1001U, 2001U, 3001U}) {
    s.inject(seg().seq(1).ack(una).window(1000)).expect(seg().seq(una).len(1000)).nothing_more();
    s.inject(seg().seq(1).ack(una + 1000).window(0)).nothing_more();
  }
  EXPECT_EQ(s.info().retransmits, 3U);
}

TEST(SendWindow, TakenBackAndOpenedWithText_FlightComesAgain) {
  Script s;
  s.establish().write(5000).ignore_all().inject(seg().seq(1).ack(1001).window(0)).nothing_more();
  s.inject(seg().seq(1).ack(1001).len(100).window(1000)).expect(seg().seq(1001).len(1000));
}

TEST(SendWindow, Scaled_IsShifted) {
  Given given;
  given.scale = 2;
  given.window = 1024;
  Script s(given);
  s.establish().write(2000).expect(seg().seq(1).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(1001).window(512)).expect(seg().seq(1001).len(1000));
}

TEST(Probe, ClosedWindow_IsProbedWithBackoffForEver) {
  Given given;
  given.window = 1000;
  given.stack.tcp.retries2 = 3;
  Script s(given);
  s.establish().write(2000).expect(seg().seq(1).len(1000)).inject(seg().seq(1).ack(1001).window(0)).nothing_more();
  Duration next = 200ms;
  for (int i = 0; i < 6; i++) {
    s.wait(next + 1ms).expect(seg().seq(1000).len(0).ack(1)).nothing_more();
    s.inject(seg().seq(1).ack(1001).window(0)).nothing_more();
    next *= 2;
  }
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.counters().tcp_zero_window_probes, 6U);
  s.inject(seg().seq(1).ack(1001).window(5000)).expect(seg().seq(1001).len(1000));
}

TEST(Probe, SilentPeer_TimesOut) {
  Given given;
  given.window = 1000;
  given.stack.tcp.retries2 = 3;
  Script s(given);
  s.establish().write(2000).inject(seg().seq(1).ack(1001).window(0)).at(60s);
  EXPECT_EQ(s.error(), Error::kTimedOut);
}

TEST(Probe, WindowOpensAfterManyProbes_DataHasAFreshTimeout) {
  Given given;
  given.window = 1000;
  Script s(given);
  s.establish().write(2000).inject(seg().seq(1).ack(1001).window(0)).at(10s).ignore_all();
  EXPECT_GT(s.info().backoff, 3U);
  s.inject(seg().seq(1).ack(1001).window(5000)).expect(seg().seq(1001).len(1000)).nothing_more();
  s.wait(201ms).expect(seg().seq(1001).len(1000)).nothing_more();
}

TEST(Probe, SmallWindowForLong_IsUsedAnyway) {
  Given given;
  given.window = 3000;
  Script s(given);
  s.establish().write(4000).ignore_all().inject(seg().seq(1).ack(3001).window(300)).nothing_more();
  s.at(250ms).expect(seg().seq(3001).len(300)).nothing_more();
}

TEST(Probe, FinIntoClosedWindow_Waits) {
  Given given;
  given.window = 1000;
  Script s(given);
  s.establish().write(1000).shutdown_send().expect(seg().seq(1).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(1001).window(0)).nothing_more();
  s.inject(seg().seq(1).ack(1001).window(10)).expect(seg().fin().seq(1001).len(0));
}

// --- Receiving

Given small_buffer(std::uint32_t bytes) {
  Given given;
  given.options.receive_buffer = bytes;
  return given;
}

TEST(ReceiveWindow, UnreadBytes_NarrowIt) {
  Script s(small_buffer(4000));
  s.establish().inject(seg().seq(1).ack(1).len(1000)).expect(seg().ack(1001).window(3000));
  s.inject(seg().seq(1001).ack(1).len(1000)).expect(seg().ack(2001).window(2000));
}

TEST(ReceiveWindow, ReaderEmptiesIt_UpdateIsSent) {
  Script s(small_buffer(4000));
  s.establish();
  for (int i = 0; i < 4; i++) s.inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
  s.ignore_all();
  EXPECT_EQ(s.read().size(), 4000U);
  s.wait(0ms).expect(seg().ack(4001).window(4000).len(0)).nothing_more();
}

TEST(ReceiveWindow, FewBytesRead_StaysClosed) {
  Script s(small_buffer(4000));
  s.establish();
  for (int i = 0; i < 4; i++) s.inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
  s.ignore_all();
  EXPECT_EQ(s.read(100).size(), 100U);
  s.nothing_more();
  EXPECT_EQ(s.read(900).size(), 900U);
  s.expect(seg().ack(4001).window(1000)).nothing_more();
}

TEST(ReceiveWindow, ProbeOfClosedWindow_IsAnsweredNotTaken) {
  Script s(small_buffer(1000));
  s.establish().inject(seg().seq(1).ack(1).len(1000)).expect(seg().ack(1001).window(0));
  s.wait(50ms).inject(seg().seq(1001).ack(1).len(1)).expect(seg().ack(1001).window(0));
  EXPECT_EQ(s.read(), pattern(0, 1000));
}

TEST(ReceiveWindow, AckInSegmentBeyondClosedWindow_Counts) {
  Script s(small_buffer(1000));
  s.establish().write(500).inject(seg().seq(1).ack(1).len(1000)).ignore_all();
  s.inject(seg().seq(1001).ack(501).len(1));
  EXPECT_EQ(s.info().bytes_acked, 500U);
}

TEST(ReceiveWindow, FastReader_GetsALargerOne) {
  Given given;
  given.scale = 7;
  given.stack.tcp.receive_initial = 20000;
  Script s(given);
  s.listen().inject(seg().syn().seq(0).mss(1000).scale(7)).wait(10ms).inject(seg().seq(1).ack(1)).accept();
  const std::uint32_t before = s.tcb()->rcv_limit;
  for (int i = 0; i < 100; i++) {
    s.wait(500us).inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
    s.read();
  }
  EXPECT_GT(s.tcb()->rcv_limit, before);
}

TEST(Writable, RingFull_ComesBackWithAThird) {
  Given given;
  given.options.send_buffer = 3000;  // doubled, as Linux does
  given.window = 60000;
  Script s(given);
  s.establish().write(6000).events();
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 0U);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kWouldBlock);
  s.inject(seg().seq(1).ack(1001));
  EXPECT_EQ(s.events() & kEventWritable, 0);
  s.inject(seg().seq(1).ack(2001));
  EXPECT_NE(s.events() & kEventWritable, 0);
}

// A program that was told of that much room may have two ends that rely on it.
TEST(Writable, TimeoutTakesNoRoomBack) {
  Given given;
  given.window = 65535U << 4;
  given.scale = 4;
  Script s(given);
  s.establish();
  for (std::uint32_t acked = 1, i = 0; i < 10; i++) {
    const std::uint32_t bytes = std::min(s.tcb()->congestion.cwnd(), 200'000U);
    s.write(bytes).ignore_all().wait(1ms).inject(seg().seq(1).ack(acked += bytes)).ignore_all();
  }
  ASSERT_GE(s.tcb()->congestion.cwnd(), 300'000U);
  const std::size_t room = s.engine().send_room(*s.tcb());
  EXPECT_GE(room, 600'000U);
  s.write(1000).wait(2s).ignore_all();
  EXPECT_LT(s.tcb()->congestion.cwnd(), 3000U);
  EXPECT_EQ(s.engine().send_room(*s.tcb()), room - 1000);
}

TEST(Writable, NotSentLowWater_HoldsWriters) {
  Given given;
  given.options.not_sent_low_water = 1000;
  given.window = 1000;
  Script s(given);
  s.establish().write(2000);
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 0U);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kWouldBlock);
}

// tcp_stream_memory_free() of Linux is asked throughout a write. A writer gets at most one large frame too much, which
// is at most half of the peer's window.
TEST(Writable, NotSentLowWater_BoundsEachWrite) {
  Given given;
  given.options.not_sent_low_water = 3000;
  given.window = 8000;
  Script s(given);
  s.establish();
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 4000U);
  s.inject(seg().seq(1).ack(1).window(0));
  s.write(3500);
  const auto room = s.engine().reserve(*s.tcb(), 100'000);
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->size(), 500U) << "the rest of the buffer";
  s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kWouldBlock);
}

// Polls and waiting writers are told when half of it is free, as soon as that much has left: no further ACK may come.
TEST(Writable, NotSentLowWater_TellsOnceHalfHasLeft) {
  Given given;
  given.options.not_sent_low_water = 2000;
  given.window = 1000;
  Script s(given);
  s.establish().write(1000).write(2000).events();
  EXPECT_EQ(s.engine().writable_room(*s.tcb()), 0U);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kWouldBlock);
  s.inject(seg().seq(1).ack(1001));
  EXPECT_EQ(s.events() & kEventWritable, 0) << "1,000 wait";
  s.inject(seg().seq(1).ack(2001));
  EXPECT_NE(s.events() & kEventWritable, 0) << "the last have just left";
  EXPECT_NE(s.engine().writable_room(*s.tcb()), 0U);
}

}  // namespace
}  // namespace bypass::test
