// Acknowledging: RFC 9293 §3.8.6.3, RFC 5681 §4.2, SACK's receive side (RFC 2018, RFC 2883), reassembly.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

// Goes beyond the ACKs that a young connection sends at once.
Script& settled(Script& s) {
  s.establish();
  s.tcb()->quick_acks = 0;
  s.tcb()->rcv_mss = 1000;
  return s;
}

TEST(Ack, YoungConnection_IsAtOnce) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).len(10)).expect(seg().ack(11).len(0)).nothing_more();
}

TEST(DelayedAck, SmallSegment_Waits40ms) {
  Script s;
  settled(s).inject(seg().seq(1).ack(1).len(10)).nothing_more();
  s.at(39ms).nothing_more().at(41ms).expect(seg().ack(11).len(0)).nothing_more();
  EXPECT_EQ(s.counters().tcp_delayed_acks, 1U);
}

TEST(DelayedAck, SecondFullSegment_IsAckedAtOnce) {
  Script s;
  settled(s).inject(seg().seq(1).ack(1).len(1000)).nothing_more();
  s.inject(seg().seq(1001).ack(1).len(1000)).expect(seg().ack(2001)).nothing_more();
}

TEST(DelayedAck, Burst_GetsOneAck) {
  Script s;
  settled(s).burst({seg().seq(1).ack(1).len(1000), seg().seq(1001).ack(1).len(1000), seg().seq(2001).ack(1).len(1000),
                    seg().seq(3001).ack(1).len(1000), seg().seq(4001).ack(1).len(1000)});
  s.expect(seg().ack(5001)).nothing_more();
}

TEST(DelayedAck, AnswerData_CarriesIt) {
  Script s;
  settled(s).inject(seg().seq(1).ack(1).len(10)).write(5).expect(seg().seq(1).ack(11).len(5)).at(1ms).nothing_more();
  s.inject(seg().seq(11).ack(6)).at(60ms).nothing_more();
}

TEST(DelayedAck, QuickAckOption_IsAtOnce) {
  Given given;
  given.options.quick_ack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(10)).expect(seg().ack(11)).nothing_more();
}

TEST(OutOfOrder, Segment_IsAckedAtOnceWithSack) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(101).ack(1).len(100)).expect(seg().ack(1).sack(101, 201)).nothing_more();
  s.inject(seg().seq(301).ack(1).len(100)).expect(seg().ack(1).sack(301, 401).sack(101, 201));
  s.inject(seg().seq(1).ack(1).len(100)).expect(seg().ack(201).sack(301, 401));
  s.inject(seg().seq(201).ack(1).len(100)).expect(seg().ack(401)).nothing_more();
  EXPECT_EQ(s.read(), pattern(0, 400));
}

TEST(OutOfOrder, WithoutSack_IsPlainDuplicateAck) {
  Script s;
  settled(s).inject(seg().seq(101).ack(1).len(100)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  s.inject(seg().seq(1).ack(1).len(100)).expect(seg().ack(201));
}

TEST(OutOfOrder, Duplicate_IsReportedByDsack) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(100)).at(50ms).ignore_all();
  s.inject(seg().seq(1).ack(1).len(100)).expect(seg().ack(101).sack(1, 101));
  s.inject(seg().seq(51).ack(1).len(100)).expect(seg().ack(151).sack(51, 101)).nothing_more();
  EXPECT_EQ(s.read(), pattern(0, 150));
}

// RFC 2883 §4: the first duplicate part of a segment is reported, not a part that lay behind a hole.
TEST(OutOfOrder, SegmentOverOldAndHeldText_ReportsTheOldByDsack) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(99)).inject(seg().seq(200).ack(1).len(100)).at(50ms).ignore_all();
  s.inject(seg().seq(1).ack(1).len(799)).expect(seg().ack(800).sack(1, 100)).nothing_more();
  EXPECT_EQ(s.read(), pattern(0, 799));
}

TEST(OutOfOrder, SegmentOverHeldText_ReportsItByDsack) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(99)).inject(seg().seq(200).ack(1).len(100)).at(50ms).ignore_all();
  s.inject(seg().seq(100).ack(1).len(700)).expect(seg().ack(800).sack(200, 300)).nothing_more();
}

// Each segment has its own report. The ACK of a burst reports the last one (RFC 2883 §4, "the most recent packet").
TEST(OutOfOrder, BurstOfDuplicates_ReportsTheLastByDsack) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(99)).inject(seg().seq(200).ack(1).len(100)).at(50ms).ignore_all();
  s.burst({seg().seq(1).ack(1).len(50), seg().seq(100).ack(1).len(300)});
  s.expect(seg().ack(400).sack(200, 300)).nothing_more();
}

// tcp_send_dupack() of Linux: also if the timestamp is too old.
TEST(OutOfOrder, OldTextWithOldTimestamp_IsReportedByDsack) {
  Given given;
  given.sack = given.timestamps = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(100).ts(100, 0)).at(50ms).ignore_all();
  s.inject(seg().seq(1).ack(1).len(100).ts(50, 0)).expect(seg().ack(101).sack(1, 101)).nothing_more();
}

TEST(OutOfOrder, SameTwice_IsCountedDuplicate) {
  Script s;
  settled(s).inject(seg().seq(101).ack(1).len(100)).inject(seg().seq(101).ack(1).len(100));
  EXPECT_EQ(s.counters().drop_tcp_duplicate, 1U);
}

TEST(OutOfOrder, Frames_CountAgainstThePortsBudget) {
  Script s;
  settled(s);
  s.engine().impl().frame_budget = 8;
  for (int i = 20; i > 0; i--) s.inject(seg().seq(1 + 1000 * i).ack(1).len(i % 2 == 0 ? 500 : 1000));
  EXPECT_LE(s.engine().impl().held_frames, 8U);
  for (int i = 0; i <= 20; i++) s.inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(0, 21000));
  EXPECT_EQ(s.engine().impl().held_frames, 0U);
}

TEST(OutOfOrder, TinyFrames_MayHoldFewBuffersAndLittleMemory) {
  Script s;
  settled(s);
  s.engine().impl().frame_budget = 64;
  const std::size_t used = s.host().memory().stats().used_bytes;
  for (int i = 1; i <= 50; i++) s.inject(seg().seq(1 + 2 * i).ack(1).len(1));
  EXPECT_LE(s.engine().impl().held_frames, 8U);
  EXPECT_LE(s.host().memory().stats().used_bytes - used, 50 * 512U);
}

TEST(OutOfOrder, DsackAlone_LeavesDataSegmentsWithinTheMtu) {
  Given given;
  given.sack = true;
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(10)).write(20000).ignore_all();
  s.inject(seg().seq(1).ack(2001).len(20)).expect(seg().seq(10001).ack(21).len(988).sack(1, 11));
}

TEST(Readable, InOrderData_PostsOneEvent) {
  Script s;
  settled(s).events();
  s.inject(seg().seq(101).ack(1).len(100));
  EXPECT_EQ(s.events(), 0);
  s.inject(seg().seq(1).ack(1).len(100));
  EXPECT_EQ(s.events(), kEventReadable);
  EXPECT_EQ(s.engine().readable(*s.tcb()), 200U);
}

TEST(Readable, PartlyConsumed_GoesOnInTheFrame) {
  Script s;
  settled(s).burst({seg().seq(1).ack(1).len(100), seg().seq(101).ack(1).len(100)});
  EXPECT_EQ(s.read(150), pattern(0, 150));
  EXPECT_EQ(s.read(), pattern(150, 50));
}

TEST(Readable, ChainedFrame_IsReadWhole) {
  Given given;
  given.caps = offloading_caps();
  Script s(given);
  settled(s).inject(seg().seq(1).ack(1).len(1200));
  EXPECT_EQ(s.read(), pattern(0, 1200));
}

// --- Memory

TEST(ReceiveMemory, ManySmallSegments_MoveToTheArena) {
  Given given;
  given.options.receive_buffer = 8192;
  Script s(given);
  settled(s);
  for (int i = 0; i < 200; i++) s.inject(seg().seq(1 + 8 * i).ack(1).len(8));
  EXPECT_LT(s.tcb()->rx_truesize, 3U * 8192);
  EXPECT_LT(s.host().port().buffers_out(), 100U);
  EXPECT_EQ(s.read(), pattern(0, 1600));
}

TEST(ReceiveMemory, PoolHeldByReaders_IsSpared) {
  Given given;
  given.buffers = 256;
  Script s(given);
  settled(s);
  s.engine().impl().frame_budget = 16;
  s.engine().impl().budget_checked = s.world().now() + 1h;
  for (int i = 0; i < 60; i++) s.inject(seg().seq(1 + 500 * i).ack(1).len(500));
  EXPECT_EQ(s.engine().impl().held_frames, 16U);
  EXPECT_EQ(s.read(), pattern(0, 30000));
  EXPECT_EQ(s.engine().impl().held_frames, 0U);
}

/// Readers hold as many of the ports' frames as they may. There is no memory for copies.
void use_up(Script& s) {
  s.engine().impl().frame_budget = 0;
  s.engine().impl().budget_checked = s.world().now() + 1h;
  Memory& memory = s.host().memory();
  memory.set_budget(0);
  while (memory.allocate(4096) != nullptr) {
  }
}

TEST(ReceiveMemory, NoneLeft_SegmentBehindOthersIsDroppedAndComesAgain) {
  Script s;
  settled(s).inject(seg().seq(1).ack(1).len(100)).at(50ms);
  use_up(s);
  s.ignore_all().inject(seg().seq(101).ack(1).len(100)).expect(seg().ack(101).window(0)).at(150ms).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_memory, 1U);
  s.host().memory().set_budget(64U << 20);
  s.inject(seg().seq(101).ack(1).len(100));
  EXPECT_EQ(s.read(), pattern(0, 200));
}

// The limits are reached, not the end of memory: there is plenty.
TEST(OutOfOrder, MoreFramesThanMayWait_IsNoLackOfMemory) {
  Script s;
  settled(s).ignore_all();
  for (int i = 1; i <= 70; i++) s.inject(seg().seq(1 + 100 * static_cast<std::uint32_t>(i)).ack(1).len(100));
  EXPECT_NE(s.counters().drop_tcp_reassembly, 0U);
  EXPECT_EQ(s.counters().drop_tcp_memory, 0U);
}

TEST(ReceiveMemory, NoneLeft_WhoHasNothingToReadIsGivenTheFrame) {
  Script s;
  settled(s);
  use_up(s);
  for (int i = 0; i < 3; i++) {
    s.inject(seg().seq(1 + 100 * i).ack(1).len(100));
    EXPECT_EQ(s.read(), pattern(100 * i, 100));
  }
  EXPECT_EQ(s.counters().drop_tcp_memory, 0U);
}

TEST(ReceiveMemory, NoneLeft_ASegmentAtATimeIsPromised) {
  Script s;
  settled(s);
  use_up(s);
  for (std::uint32_t seq = 1; seq < 4001; seq += 1000) {
    s.inject(seg().seq(seq).ack(1).len(1000)).expect(seg().ack(seq + 1000).window(0));
    s.inject(seg().seq(seq + 1000).ack(1).len(1000)).expect(seg().ack(seq + 1000).window(0)).nothing_more();
    EXPECT_EQ(s.read(), pattern(seq - 1, 1000));
    s.expect(seg().ack(seq + 1000).window(1460)).nothing_more();
  }
  s.host().memory().set_budget(64U << 20);
  s.inject(seg().seq(4001).ack(1).len(1000)).expect(seg().ack(5001).window(64535)).nothing_more();
  EXPECT_EQ(s.read(), pattern(4000, 1000));
}

TEST(ReceiveMemory, ThereAgain_AProbeOfTheWindowFinds) {
  Script s;
  settled(s);
  use_up(s);
  s.inject(seg().seq(1).ack(1).len(1000)).expect(seg().ack(1001).window(0));
  s.inject(seg().seq(1000).ack(1)).expect(seg().ack(1001).window(0));
  s.host().memory().set_budget(64U << 20);
  s.at(2s).inject(seg().seq(1000).ack(1)).expect(seg().ack(1001).window(64535)).nothing_more();
}

TEST(ReceiveMemory, NoneLeft_AcksOfWhoHasSentAllThatWasPromisedAreHeard) {
  Script s;
  settled(s).write(1000).ignore_all();
  use_up(s);
  s.inject(seg().seq(1).ack(1).len(1000)).inject(seg().seq(1001).ack(1).len(1000));
  EXPECT_EQ(s.info().rcv_wnd, 0U);
  s.inject(seg().seq(60001).ack(501));
  EXPECT_EQ(s.info().in_flight, 500U);
  s.inject(seg().seq(50001).ack(1001).len(1000));
  EXPECT_EQ(s.info().in_flight, 0U);
}

TEST(ReceiveMemory, NoneLeftAndFewBuffers_WhatIsKeptBackTakesIt) {
  Script s;
  settled(s);
  s.host().port().set_scarce(true);
  Memory& memory = s.host().memory();
  memory.keep_back(1U << 20);
  memory.set_budget(memory.stats().used_bytes + (1U << 20));
  s.inject(seg().seq(1).ack(1).len(100));
  EXPECT_EQ(s.engine().impl().held_frames, 0U);
  EXPECT_EQ(s.read(), pattern(0, 100));
}

TEST(ReceiveMemory, NothingLeftAtAll_WhatCameAheadGivesWay) {
  Script s;
  settled(s).inject(seg().seq(1001).ack(1).len(1000)).inject(seg().seq(3001).ack(1).len(1000));
  use_up(s);
  s.host().port().set_scarce(true);
  s.ignore_all().inject(seg().seq(1).ack(1).len(1000)).expect(seg().ack(1001));  // at once, as what fills a hole is
  EXPECT_EQ(s.read(), pattern(0, 1000));
  EXPECT_EQ(s.engine().impl().held_frames, 0U);
  EXPECT_EQ(s.counters().drop_tcp_memory, 2U);
  s.host().port().set_scarce(false);
  for (int i = 1; i < 4; i++) {
    s.inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
    EXPECT_EQ(s.read(), pattern(1000 * i, 1000));
  }
}

TEST(ReceiveMemory, NothingLeftAtAll_CopiesOfWhatCameAheadGiveWay) {
  Script s;
  settled(s);
  s.engine().impl().frame_budget = 0;
  s.engine().impl().budget_checked = s.world().now() + 1h;
  for (int i = 1; i < 9; i++) s.inject(seg().seq(1 + 2000 * i).ack(1).len(1000));
  ASSERT_EQ(s.engine().impl().held_frames, 0U);
  Memory& memory = s.host().memory();
  memory.keep_back(2U << 20);
  memory.set_budget(memory.stats().used_bytes + (1U << 20) + 1000);
  s.host().port().set_scarce(true);
  s.ignore_all().inject(seg().seq(1).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(0, 1000));
  EXPECT_TRUE(s.tcb()->reassembly.empty());
}

TEST(ReceiveMemory, WhatCameAheadGaveWay_ItsFinComesInItsTurn) {
  Script s;
  settled(s).inject(seg().seq(1001).ack(1).len(1000)).inject(seg().seq(2001).ack(1).len(1000).fin());
  use_up(s);
  s.host().port().set_scarce(true);
  s.ignore_all().inject(seg().seq(1).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(0, 1000));
  s.host().port().set_scarce(false);
  s.inject(seg().seq(1001).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(1000, 1000));
  EXPECT_FALSE(s.engine().at_eof(*s.tcb()));
  s.inject(seg().seq(2001).ack(1).len(1000).fin());
  EXPECT_EQ(s.read(), pattern(2000, 1000));
  EXPECT_TRUE(s.engine().at_eof(*s.tcb()));
}

TEST(IdleConnection, Established_OwnsNothingElse) {
  Script s;
  s.establish().write(5000).inject(seg().seq(1).ack(5001).len(300));
  s.read();
  EXPECT_EQ(s.tcb()->ring.block(), nullptr);
  EXPECT_EQ(s.tcb()->scoreboard.block(), nullptr);
  EXPECT_EQ(s.tcb()->reassembly.block(), nullptr);
  EXPECT_LE(s.host().port().buffers_out(), 32U) << "frames that the queue keeps at hand";
}

}  // namespace
}  // namespace bypass::test
