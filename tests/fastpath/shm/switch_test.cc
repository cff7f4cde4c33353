// The rules of Switch, each by itself: what moves a direction, and what a peer says out of turn.
#include "fastpath/shm/switch.h"

#include <gtest/gtest.h>

#include <array>

namespace bypass::test {
namespace {

namespace shm = fastpath::shm;
using shm::Switch;
using Tx = Switch::Tx;
using Rx = Switch::Rx;

constexpr std::uint64_t kSize = 64;

/// One direction: the writer's switch and the reader's, over a ring without bytes.
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

  std::array<shm::SideBlock, 2> side{};
  std::array<std::byte, kSize> memory{};
  shm::RingView out{&side[0], &side[1], memory.data(), kSize}, in{&side[1], &side[0], memory.data(), kSize};
  shm::Producer producer;
  shm::Consumer consumer;
  Switch writer, reader;
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

TEST_F(SwitchTest, Resume_BytesBeforeIt_AreReadFromTheRingFirst_AndNotOneMore) {
  move();
  put(10);
  writer.stop_writing();
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_FALSE(writer.may_cut()) << "for good";
  EXPECT_TRUE(reader.on_resume(producer.produced(), consumer, kSize));
  EXPECT_EQ(reader.from_ring(1000, consumer), 10U);
  take(4);
  EXPECT_FALSE(reader.on_read_from_ring(consumer));
  EXPECT_EQ(reader.from_ring(1000, consumer), 6U);
  EXPECT_EQ(reader.from_ring(2, consumer), 2U);
  take(6);
  EXPECT_TRUE(reader.on_read_from_ring(consumer));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_EQ(reader.from_kernel(1000), 1000U);
}

TEST_F(SwitchTest, Resume_OfAnEmptyRing_EndsItAtOnce) {
  move();
  EXPECT_TRUE(reader.on_resume(0, consumer, kSize));
  EXPECT_EQ(reader.from_ring(1000, consumer), 0U);
  EXPECT_TRUE(reader.on_read_from_ring(consumer));
}

TEST_F(SwitchTest, Resume_BehindACutThatIsNotReachedYet) {
  EXPECT_TRUE(reader.on_cut(10));
  put(5);
  EXPECT_TRUE(reader.on_resume(5, consumer, kSize));
  reader.on_read_from_kernel(10);
  EXPECT_EQ(reader.rx(), Rx::kRing);
  EXPECT_EQ(reader.from_ring(1000, consumer), 5U);
}

TEST_F(SwitchTest, Resume_OfAnEmptyRing_BehindACutThatIsNotReachedYet) {
  EXPECT_TRUE(reader.on_cut(10));
  EXPECT_TRUE(reader.on_resume(0, consumer, kSize));
  EXPECT_FALSE(reader.on_read_from_ring(consumer)) << "the kernel's bytes come first";
  reader.on_read_from_kernel(10);
  EXPECT_TRUE(reader.on_read_from_ring(consumer));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_EQ(reader.from_kernel(1000), 1000U);
}

TEST_F(SwitchTest, WriterThatResumed_MayCutAgain_AndTheReaderFollows) {
  for (int round = 0; round < 3; round++) {
    move();
    put(10);
    writer.resume();
    EXPECT_EQ(writer.tx(), Tx::kKernel);
    EXPECT_TRUE(writer.may_cut());
    EXPECT_TRUE(reader.on_resume(producer.produced(), consumer, kSize));
    EXPECT_TRUE(reader.is_ending());
    take(10);
    EXPECT_TRUE(reader.on_read_from_ring(consumer));
    EXPECT_FALSE(reader.is_ending());
  }
}

TEST_F(SwitchTest, WriterThatResumed_IsAskedToStop_AndDoesNotCutAgain) {
  move();
  writer.resume();
  EXPECT_TRUE(writer.on_stop(0, producer, kSize));
  EXPECT_EQ(writer.tx(), Tx::kKernel);
  EXPECT_FALSE(writer.may_cut());
}

TEST_F(SwitchTest, Resume_WithoutACut_IsOutOfTurn) {
  EXPECT_FALSE(reader.on_resume(0, consumer, kSize));
}

TEST_F(SwitchTest, Resume_BehindWhatTheRingHolds_OrBeforeWhatWasRead_CannotBeTrue) {
  move();
  put(10), take(10);
  EXPECT_FALSE(reader.on_resume(10 + kSize + 1, consumer, kSize));
  EXPECT_FALSE(reader.on_resume(9, consumer, kSize));
  EXPECT_TRUE(reader.on_resume(10 + kSize, consumer, kSize));
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

TEST_F(SwitchTest, StoppedReader_HearsCutAndResumeThatWereUnderWay) {
  reader.stop_reading();
  EXPECT_TRUE(reader.on_cut(3));
  EXPECT_FALSE(reader.is_bounded());
  EXPECT_FALSE(reader.may_be_cut());
  EXPECT_TRUE(reader.on_resume(1000, consumer, kSize));
  EXPECT_EQ(reader.rx(), Rx::kKernel);
  EXPECT_EQ(reader.from_kernel(1000), 1000U);
}

// Bytes of the ring could not follow those that went over the kernel meanwhile: claims see to it that nobody says both.
TEST_F(SwitchTest, Stop_AfterResume_OnlyOfARingThatIsRead) {
  move();
  put(10), take(4);
  writer.resume();
  EXPECT_FALSE(Switch(writer).on_stop(4, producer, kSize));
  take(6);
  EXPECT_TRUE(writer.on_stop(10, producer, kSize));
  EXPECT_EQ(writer.tx(), Tx::kKernel);
}

TEST_F(SwitchTest, ResumeAndStop_ExcludeEachOther) {
  EXPECT_TRUE(shm::claim_resume(out));
  EXPECT_FALSE(shm::claim_stop(in));
  shm::end_resume(out);
  EXPECT_TRUE(shm::claim_stop(in));
  EXPECT_FALSE(shm::claim_resume(out));
  EXPECT_FALSE(shm::claim_resume(out)) << "STOP is for good";
}

TEST_F(SwitchTest, WriterThatNeverFinishesItsClaim_IsNotWaitedForWithoutEnd) {
  side[0].resumed = 1;
  EXPECT_FALSE(shm::claim_stop(in));
  side[0].resumed = 0;
  EXPECT_TRUE(shm::claim_resume(out)) << "the reader has taken its word back";
}

// --- What is said

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

}  // namespace
}  // namespace bypass::test
