// The rules of CarrierSwitch, one by one: what moves a direction, and what a peer sends out of turn.
#include "fastpath/shm/carrier_switch.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace bypass::test {
namespace {

namespace shm = fastpath::shm;
using shm::CarrierSwitch;
using Tx = CarrierSwitch::Tx;
using Rx = CarrierSwitch::Rx;

constexpr std::uint64_t kSize = 64;

/// One direction: the switch of the writer and that of the reader, over a ring without bytes.
class SwitchTest : public ::testing::Test {
 protected:
  void put(std::size_t bytes) {
    EXPECT_GE(producer.room(out, bytes).size(), bytes);
    (void)producer.publish(out, bytes);
  }
  void take(std::size_t bytes) {
    EXPECT_GE(consumer.peek(in, bytes).size(), bytes);
    (void)consumer.consume(in, bytes);
  }
  void move() {
    writer.cut();
    ASSERT_TRUE(reader.on_cut(0));
  }
  bool hear_resume(std::uint64_t at) {
    const std::size_t unread = consumer.peek(in, kSize).size();
    return reader.on_resume(at, consumer.consumed(), consumer.consumed() + unread, kSize);
  }
  /// Bytes behind the end are dropped.
  bool end_of_ring() {
    const std::uint64_t drop = reader.to_drop();
    if (!reader.on_read_from_ring(consumer)) return false;
    (void)consumer.consume(in, drop);
    return true;
  }
  /// RESUME comes, and the ring is read no more.
  bool resume(std::uint64_t at) { return hear_resume(at) && end_of_ring(); }

  std::array<shm::SideBlock, 2> side{};
  std::array<std::byte, kSize> memory{};
  shm::RingView out{&side[0], &side[1], memory.data(), kSize}, in{&side[1], &side[0], memory.data(), kSize};
  shm::Producer producer;
  shm::Consumer consumer;
  CarrierSwitch writer, reader;
};

TEST_F(SwitchTest, New_BothDirectionsAreTheKernels) {
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_TRUE(writer.may_cut());
  EXPECT_FALSE(reader.is_bounded());
  EXPECT_EQ(reader.from_kernel(1000), 1000U);
  EXPECT_TRUE(reader.may_be_cut());
}

// --- To the ring

TEST_F(SwitchTest, Cut_NothingLeftInTheKernel_ReadsTheRing) {
  writer.cut();
  EXPECT_EQ(writer.tx(), Tx::kRing);
  EXPECT_FALSE(writer.may_cut());
  EXPECT_TRUE(reader.on_cut(0));
  EXPECT_EQ(reader.rx(), Rx::kRing);
}

TEST_F(SwitchTest, Cut_BytesBeforeIt_AreReadFromTheKernelFirst_AndNotOneMore) {
  EXPECT_TRUE(reader.on_cut(10));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_TRUE(reader.is_bounded());
  EXPECT_EQ(reader.from_kernel(4), 4U);
  EXPECT_EQ(reader.from_kernel(1000), 10U);
  reader.on_read_from_kernel(7);
  EXPECT_EQ(reader.from_kernel(1000), 3U);
  EXPECT_FALSE(reader.may_be_cut());
  reader.on_read_from_kernel(3);
  EXPECT_EQ(reader.rx(), Rx::kRing);
  EXPECT_FALSE(reader.may_be_cut());
}

TEST_F(SwitchTest, ReadsOfAnUnboundedKernel_CountNothing) {
  reader.on_read_from_kernel(1000);
  EXPECT_TRUE(reader.on_cut(5));
  EXPECT_EQ(reader.from_kernel(1000), 5U);
}

TEST_F(SwitchTest, Cut_Twice_IsOutOfTurn) {
  EXPECT_TRUE(reader.on_cut(10));
  EXPECT_FALSE(reader.on_cut(10)) << "before the first has been reached";
  reader.on_read_from_kernel(10);
  EXPECT_FALSE(reader.on_cut(0)) << "in the ring";
}

// --- The writer goes back

TEST_F(SwitchTest, Resume_WhatWasNotRead_GoesOverTheKernel) {
  move();
  put(30), take(12);
  writer.resume(12, producer);
  EXPECT_EQ(writer.tx(), Tx::kReturning);
  EXPECT_EQ(writer.return_at(), 12U);
  EXPECT_EQ(writer.return_end(), 30U);
  EXPECT_EQ(writer.returned(), 18U);
  EXPECT_FALSE(writer.has_stopped_writing());
  writer.on_returned(18);
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_TRUE(writer.may_cut());
  EXPECT_TRUE(resume(12));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_EQ(reader.to_skip(), 0U);
  EXPECT_EQ(reader.twice(), 18U);
  EXPECT_EQ(consumer.consumed(), 30U) << "dropped";
}

// The reader goes on in the ring until it hears that the writer went back.
TEST_F(SwitchTest, Resume_WhatWasReadMeanwhile_IsSkipped) {
  move();
  put(30), take(12);
  writer.resume(12, producer);
  take(10);
  EXPECT_TRUE(resume(12));
  EXPECT_EQ(reader.to_skip(), 10U);
  for (const auto& [bytes, left] : {std::pair{4U, 6U}, {6U, 0U}}) {
    reader.on_skipped(bytes);
    reader.on_read_from_kernel(bytes);
    EXPECT_EQ(reader.to_skip(), left);
  }
  EXPECT_FALSE(reader.is_skipping());
  EXPECT_TRUE(reader.is_returning());
  reader.on_read_from_kernel(8);
  EXPECT_FALSE(reader.is_returning());
}

TEST_F(SwitchTest, Resume_OfARingThatIsRead_ReturnsNothing) {
  move();
  put(30), take(30);
  writer.resume(30, producer);
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_TRUE(resume(30));
  EXPECT_FALSE(reader.is_returning());
  EXPECT_TRUE(reader.may_be_cut());
}

TEST_F(SwitchTest, Resume_NoCutBeforeItsBytesAreRead) {
  move();
  put(30);
  writer.resume(0, producer);
  EXPECT_TRUE(resume(0));
  EXPECT_FALSE(reader.may_be_cut());
  EXPECT_FALSE(reader.on_cut(0)) << "before OPEN";
  EXPECT_EQ(reader.from_kernel(1000), 1000U) << "and so no bound is needed";
  reader.on_read_from_kernel(1000);
  EXPECT_TRUE(reader.may_be_cut());
  EXPECT_TRUE(reader.on_cut(0));
}

TEST_F(SwitchTest, Resume_BehindACutThatIsNotReachedYet) {
  EXPECT_TRUE(reader.on_cut(10));
  put(5);
  EXPECT_TRUE(hear_resume(0));
  EXPECT_FALSE(end_of_ring()) << "the kernel's bytes come first";
  reader.on_read_from_kernel(10);
  EXPECT_TRUE(end_of_ring());
  EXPECT_EQ(consumer.consumed(), 5U) << "dropped";
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_TRUE(reader.is_returning());
  reader.on_read_from_kernel(5);
  EXPECT_FALSE(reader.is_returning());
}

TEST_F(SwitchTest, WriterThatResumed_MayCutAgain_AndTheReaderFollows) {
  for (std::uint32_t round = 0; round < 3; round++) {
    move();
    put(10), take(3);
    writer.resume(producer.produced() - 7, producer);
    writer.on_returned(7);
    EXPECT_EQ(writer.resumes_said(), round + 1);
    EXPECT_TRUE(resume(producer.produced() - 7));
    EXPECT_EQ(reader.resumes_heard(), round + 1);
    reader.on_read_from_kernel(7);
    EXPECT_EQ(writer.returned(), 7U * (round + 1));
    EXPECT_EQ(reader.twice(), 7U * (round + 1));
  }
}

TEST_F(SwitchTest, WriterThatResumed_IsAskedToStop_AndDoesNotCutAgain) {
  move();
  put(10);
  writer.resume(0, producer);
  EXPECT_TRUE(writer.on_stop(10, producer, kSize)) << "also while it returns";
  EXPECT_EQ(writer.tx(), Tx::kReturning);
  writer.on_returned(10);
  EXPECT_TRUE(writer.has_stopped_writing());
  EXPECT_FALSE(writer.may_cut());
}

TEST_F(SwitchTest, WriterThatHasStopped_DoesNotCutAgain) {
  move();
  put(10);
  writer.resume(0, producer);
  writer.stop_writing();
  EXPECT_FALSE(writer.has_stopped_writing()) << "not before all is sent";
  writer.on_returned(10);
  EXPECT_TRUE(writer.has_stopped_writing());
  EXPECT_FALSE(writer.may_cut());
}

TEST_F(SwitchTest, AbandonedWriting_ReturnsNothing) {
  move();
  put(10);
  writer.abandon_writing();
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_TRUE(writer.has_stopped_writing());
}

TEST_F(SwitchTest, Resume_WithoutACut_IsOutOfTurn) {
  EXPECT_FALSE(resume(0));
}

TEST_F(SwitchTest, Resume_BehindWhatWasWritten_OrLongerAgoThanTheRing_CannotBeTrue) {
  move();
  put(50), take(50), put(50), take(30);
  EXPECT_FALSE(hear_resume(101));
  EXPECT_FALSE(hear_resume(100 - kSize - 1));
  EXPECT_TRUE(hear_resume(100 - kSize));
  EXPECT_FALSE(hear_resume(100)) << "before the first has been reached";
}

// The kernel has no room for the bytes in the ring.
TEST_F(SwitchTest, Resume_BehindWhatTheRingHas_IsReadToThereFirst) {
  move();
  put(30), take(12);
  writer.resume(30, producer);
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_TRUE(hear_resume(30));
  EXPECT_TRUE(reader.is_ending());
  EXPECT_EQ(reader.from_ring(1000, consumer), 18U);
  take(10);
  EXPECT_FALSE(end_of_ring());
  take(8);
  EXPECT_TRUE(end_of_ring());
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_FALSE(reader.is_returning());
  EXPECT_EQ(reader.twice(), 0U);
}

TEST_F(SwitchTest, Resume_OfReadBytesBehindACutThatIsNotReachedYet_CannotBeTrue) {
  put(10), take(5);
  EXPECT_TRUE(reader.on_cut(10));
  EXPECT_FALSE(hear_resume(4));
  EXPECT_TRUE(hear_resume(5));
}

TEST_F(SwitchTest, SkippedBytesThatNeverCome_AreWaitedForNoMore) {
  move();
  put(10), take(10);
  EXPECT_TRUE(resume(0));
  reader.skip_none();
  EXPECT_EQ(reader.to_skip(), 0U);
  EXPECT_EQ(reader.from_kernel(100), 100U);
}

TEST_F(SwitchTest, WithoutAResume_TheRingGoesOn) {
  move();
  put(10);
  EXPECT_EQ(reader.from_ring(1000, consumer), 1000U);
  take(10);
  EXPECT_FALSE(reader.on_read_from_ring(consumer));
  EXPECT_EQ(reader.rx(), Rx::kRing);
}

// --- The reader goes back

TEST_F(SwitchTest, Stop_WhatWasNotRead_GoesOverTheKernel) {
  move();
  put(30), take(12);
  EXPECT_FALSE(reader.has_stopped_reading());
  reader.stop_reading();
  EXPECT_TRUE(reader.has_stopped_reading());
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_TRUE(writer.on_stop(consumer.consumed(), producer, kSize));
  EXPECT_EQ(writer.tx(), Tx::kReturning);
  EXPECT_EQ(writer.returned(), 18U);
  EXPECT_EQ(writer.return_at(), 12U);
  EXPECT_EQ(writer.return_end(), 30U);
  writer.on_returned(10);
  EXPECT_EQ(writer.tx(), Tx::kReturning);
  EXPECT_FALSE(writer.has_stopped_writing());
  writer.on_returned(8);
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_TRUE(writer.has_stopped_writing());
  EXPECT_EQ(writer.returned(), 18U);
  EXPECT_FALSE(writer.may_cut());
}

TEST_F(SwitchTest, Stop_EverythingWasRead_IsTheKernelsAtOnce) {
  move();
  put(30), take(30);
  EXPECT_FALSE(writer.has_stopped_writing());
  EXPECT_TRUE(writer.on_stop(30, producer, kSize));
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_FALSE(writer.may_cut());
  EXPECT_TRUE(writer.has_stopped_writing());
  EXPECT_EQ(writer.returned(), 0U);
}

TEST_F(SwitchTest, StopBehindWhatIsThere_IsReadFirst_AndOnlyWhatCameLaterReturns) {
  move();
  put(30), take(12);
  reader.stop_reading_behind(30);
  EXPECT_EQ(reader.rx(), Rx::kRing);
  EXPECT_FALSE(reader.has_stopped_reading());
  put(5);
  EXPECT_TRUE(writer.on_stop(30, producer, kSize));
  EXPECT_EQ(writer.return_at(), 30U);
  EXPECT_EQ(writer.return_end(), 35U);
  EXPECT_EQ(reader.from_ring(100, consumer), 18U);
  take(18);
  EXPECT_TRUE(reader.on_read_from_ring(consumer));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_TRUE(reader.has_stopped_reading());
  EXPECT_FALSE(reader.may_be_cut());
}

TEST_F(SwitchTest, Stop_BeforeACut_TheDirectionNeverMoves) {
  EXPECT_TRUE(writer.on_stop(0, producer, kSize));
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_FALSE(writer.may_cut());
}

TEST_F(SwitchTest, Stop_OfMoreThanWasWritten_OrMoreThanTheRingAgo_CannotBeTrue) {
  move();
  put(50), take(50), put(50), take(50);
  EXPECT_FALSE(writer.on_stop(101, producer, kSize));
  EXPECT_FALSE(writer.on_stop(100 - kSize - 1, producer, kSize));
  EXPECT_TRUE(writer.on_stop(100, producer, kSize));
}

TEST_F(SwitchTest, Stop_WhileItReturns_IsOutOfTurn) {
  move();
  put(10);
  EXPECT_TRUE(writer.on_stop(0, producer, kSize));
  EXPECT_FALSE(writer.on_stop(0, producer, kSize));
}

TEST_F(SwitchTest, StoppedReader_HearsACutThatWasUnderWay_ButNoResume) {
  reader.stop_reading();
  EXPECT_TRUE(reader.on_cut(3));
  EXPECT_FALSE(reader.is_bounded());
  EXPECT_FALSE(reader.may_be_cut());
  EXPECT_FALSE(resume(0)) << "it would have been heard before STOP";
  EXPECT_EQ(reader.from_kernel(1000), 1000U);
}

// The claims make sure that no more than one end says it.
TEST_F(SwitchTest, Stop_AfterResume_OnlyOfAllThatWasWritten) {
  move();
  put(10), take(4);
  writer.resume(4, producer);
  EXPECT_FALSE(CarrierSwitch(writer).on_stop(4, producer, kSize));
  EXPECT_TRUE(writer.on_stop(10, producer, kSize));
}

TEST_F(SwitchTest, ResumeAndStop_ExcludeEachOther) {
  EXPECT_TRUE(shm::claim_resume(out, 0));
  EXPECT_FALSE(shm::claim_stop(in, 0));
  shm::take_back_resume(out, 0);
  EXPECT_TRUE(shm::claim_stop(in, 0));
  EXPECT_FALSE(shm::claim_resume(out, 0));
  EXPECT_FALSE(shm::claim_resume(out, 0)) << "STOP is for good";
}

TEST_F(SwitchTest, Stop_AfterAResumeThatWasHeard_NotBeforeTheNext) {
  EXPECT_TRUE(shm::claim_resume(out, 0));
  EXPECT_FALSE(shm::claim_stop(in, 0)) << "it is under way";
  EXPECT_TRUE(shm::claim_resume(out, 1));
  EXPECT_FALSE(shm::claim_stop(in, 1));
  EXPECT_TRUE(shm::claim_stop(in, 2));
  EXPECT_FALSE(shm::claim_resume(out, 2));
}

TEST_F(SwitchTest, WriterThatNeverFinishesItsClaim_IsNotWaitedForWithoutEnd) {
  side[0].resumed = 1;
  EXPECT_FALSE(shm::claim_stop(in, 0));
  side[0].resumed = 0;
  EXPECT_TRUE(shm::claim_resume(out, 0)) << "the reader has taken its word back";
}

// --- Messages

TEST(SwitchMessage, AnyOtherLengthOrKind_IsNone) {
  shm::SwitchMessage message{shm::SwitchKind::kCut, 7};
  const auto bytes = std::as_bytes(std::span(&message, 1));
  ASSERT_TRUE(shm::parse_switch(bytes).has_value());
  EXPECT_EQ(shm::parse_switch(bytes)->count, 7U);
  EXPECT_FALSE(shm::parse_switch(bytes.first(15)).has_value());
  EXPECT_FALSE(shm::parse_switch({}).has_value());
  const std::array<shm::SwitchMessage, 2> two{message, message};
  EXPECT_FALSE(shm::parse_switch(std::as_bytes(std::span(two))).has_value());
  message.kind = static_cast<shm::SwitchKind>(1);
  EXPECT_FALSE(shm::parse_switch(bytes).has_value());
}

// A program shuts both directions down with bytes unread in both carriers. All of them are still read.
TEST_F(SwitchTest, StopBehindCut_KernelsBytesThenRings_ThenStopped) {
  writer.cut();
  put(5);
  ASSERT_TRUE(reader.on_cut(3));
  reader.stop_reading_behind(5);
  EXPECT_FALSE(reader.has_stopped_reading());
  EXPECT_EQ(reader.from_kernel(100), 3U);
  reader.on_read_from_kernel(3);
  ASSERT_EQ(reader.rx(), Rx::kRing);
  take(5);
  EXPECT_TRUE(end_of_ring());
  EXPECT_TRUE(reader.has_stopped_reading());
}

}  // namespace
}  // namespace bypass::test
