// One ring, step by step: positions, wraps, wake-ups, and a peer with false indices.
#include "fastpath/shm/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

namespace bypass::test {
namespace {

using fastpath::shm::Consumer;
using fastpath::shm::first_stamp;
using fastpath::shm::Producer;
using fastpath::shm::Refusal;
using fastpath::shm::RingView;
using fastpath::shm::SideBlock;
using fastpath::shm::stamp_of;

constexpr std::uint64_t kSize = 16;

class RingTest : public ::testing::Test {
 protected:
  /// Returns whether the peer must be woken.
  bool put(std::size_t bytes, std::uint64_t ticks = 0) {
    const auto room = producer.room(out, bytes);
    EXPECT_GE(room.size(), bytes);
    for (std::size_t i = 0; i < bytes; i++) {
      auto& part = i < room.part[0].size() ? room.part[0] : room.part[1];
      part[i < room.part[0].size() ? i : i - room.part[0].size()] = std::byte(written_++);
    }
    return producer.publish(out, bytes, ticks);
  }
  bool hold(std::size_t bytes, std::uint32_t segment = kSize) {
    EXPECT_GE(producer.room(out, bytes).size(), bytes);
    return producer.hold(out, bytes, segment);
  }
  bool take(std::size_t bytes) {
    const auto there = consumer.peek(in);
    EXPECT_GE(there.size(), bytes);
    for (std::size_t i = 0; i < bytes; i++) {
      const auto& part = i < there.part[0].size() ? there.part[0] : there.part[1];
      EXPECT_EQ(part[i < there.part[0].size() ? i : i - there.part[0].size()], std::byte(read_++));
    }
    return consumer.consume(in, bytes);
  }

  std::array<SideBlock, 2> side{};
  std::array<std::byte, kSize> memory{};
  RingView out{&side[0], &side[1], memory.data(), kSize}, in{&side[1], &side[0], memory.data(), kSize};
  Producer producer;
  Consumer consumer;

 private:
  unsigned char written_ = 0, read_ = 0;
};

TEST_F(RingTest, Empty_HasNothingAndAllRoom) {
  EXPECT_EQ(consumer.peek(in).size(), 0U);
  EXPECT_EQ(producer.room(out, 1).size(), kSize);
}

TEST_F(RingTest, Stamps_TellWhenTheFirstWriteBehindAPlaceCame) {
  put(2, 800), put(3, 1600), put(1, 2400);
  const std::uint64_t first = first_stamp(in, 0), second = first_stamp(in, 2), third = first_stamp(in, 5);
  EXPECT_EQ(first, stamp_of(0, 800));
  EXPECT_EQ(second, stamp_of(2, 1600));
  EXPECT_EQ(third, stamp_of(5, 2400));
  EXPECT_EQ(first_stamp(in, 1), second) << "the rest of a write that was begun";
  EXPECT_EQ(first_stamp(in, 6), 0U);
}

TEST_F(RingTest, Stamps_OfMoreWritesThanTheyAre_EarliestKnownIsTold) {
  for (std::uint64_t i = 1; i <= 9; i++) put(1, 80 * i);
  EXPECT_EQ(first_stamp(in, 0), stamp_of(3, 320));
}

TEST_F(RingTest, Stamps_WhereCounterAndIndexWrap_AreOrderedAllTheSame) {
  const std::uint64_t before = stamp_of(0xfffffe, ~std::uint64_t{0} - 80), after = stamp_of(0x1000001, 80);
  EXPECT_LT(static_cast<std::int64_t>(before - after), 0);
  side[0].stamps[0] = before, side[0].stamps[1] = after;
  EXPECT_EQ(first_stamp(in, 0xfffffe), before);
  EXPECT_EQ(first_stamp(in, 0xffffff), after);
  EXPECT_EQ(first_stamp(in, 0x1000002), 0U);
}

TEST_F(RingTest, Stamps_NobodyAsksFor_AreNotWritten) {
  put(1);
  EXPECT_EQ(first_stamp(in, 0), 0U);
}

TEST_F(RingTest, HeldBytes_AreUnseenUntilTheNextAreReleased) {
  EXPECT_FALSE(hold(3));
  EXPECT_EQ(consumer.peek(in).size(), 0U);
  EXPECT_EQ(producer.room(out, kSize).size(), kSize - 3);
  (void)producer.release(out, 2);
  EXPECT_EQ(consumer.peek(in).size(), 5U);
  EXPECT_EQ(producer.held(), 0U);
}

TEST_F(RingTest, HeldBytes_OfWholeSegmentsArePublished) {
  hold(3, 4);
  hold(6, 4);
  EXPECT_EQ(consumer.peek(in, kSize).size(), 8U);
  EXPECT_EQ(producer.held(), 1U);
  EXPECT_EQ(producer.published(), 8U);
}

TEST_F(RingTest, HeldBytes_WakeTheReaderWhenTheyAreReleased) {
  EXPECT_FALSE(consumer.arm(in));
  EXPECT_FALSE(hold(3));
  EXPECT_TRUE(producer.release(out));
}

TEST_F(RingTest, HeldBytesOfTheDead_AreTakenOnce) {
  put(2);
  hold(3);
  take(1);
  EXPECT_TRUE(consumer.take_held(in));
  EXPECT_EQ(consumer.peek(in, kSize).size(), 4U);
  EXPECT_FALSE(consumer.take_held(in));
}

TEST_F(RingTest, HeldBytesOfTheDead_AreNoneWhereAllWasReleased) {
  hold(3);
  (void)producer.release(out);
  put(2);
  EXPECT_FALSE(consumer.take_held(in));
  EXPECT_EQ(consumer.peek(in, kSize).size(), 5U);
}

TEST_F(RingTest, HeldBytesOfTheDead_BeyondTheRingAreNotBelieved) {
  put(2);
  side[0].written = 2 + kSize;
  EXPECT_FALSE(consumer.take_held(in));
  EXPECT_EQ(consumer.peek(in, kSize).size(), 2U);
}

TEST_F(RingTest, Full_HasNoRoomUntilBytesAreTaken) {
  put(kSize);
  EXPECT_EQ(producer.room(out, 1).size(), 0U);
  take(5);
  EXPECT_EQ(producer.room(out, 1).size(), 5U);
}

TEST_F(RingTest, Bound_IsTheMostThatIsUnread) {
  producer.bound(out, 10);
  put(10);
  EXPECT_EQ(producer.room(out, 1).size(), 0U);
  take(3);
  EXPECT_EQ(producer.room(out, 1).size(), 3U);
  EXPECT_EQ(producer.unread(out), 7U);
  producer.bound(out, kSize);
  EXPECT_EQ(producer.room(out, kSize).size(), kSize - 7);
}

TEST_F(RingTest, Bound_BelowWhatIsUnreadLeavesNoRoom) {
  put(kSize);
  producer.bound(out, 8);
  EXPECT_EQ(producer.room(out, kSize).size(), 0U);
  take(9);
  EXPECT_EQ(producer.room(out, kSize).size(), 1U);
}

TEST_F(RingTest, Bound_IsNotBelowWhatWakesAWriter) {
  producer.bound(out, 1);
  EXPECT_EQ(producer.most(out), kSize / 8 * 3);
}

// Wherever in the ring the writer begins to sleep, a wake-up comes when a third of the bound is free, or later.
TEST_F(RingTest, Bound_WriterIsWokenWhereverItSleeps) {
  for (std::uint64_t most = kSize / 8 * 3; most <= kSize; most++) {
    producer.bound(out, most);
    for (std::uint64_t phase = 0; phase < kSize; phase++) {
      put(1), take(1);
      put(most);
      bool ready = false;
      while (!ready && producer.unread(out) != 0) {
        producer.want(out);
        while (producer.unread(out) != 0 && !take(1)) {
        }
        ready = producer.room(out, most).size() >= most / 3;
      }
      EXPECT_TRUE(ready) << most << " from " << phase;
      take(producer.unread(out));
    }
  }
}

TEST_F(RingTest, Wrapped_IsTwoParts) {
  put(12), take(12);
  const auto room = producer.room(out, kSize);
  EXPECT_EQ(room.part[0].size(), 4U);
  EXPECT_EQ(room.part[1].size(), 12U);
  put(10);
  const auto there = consumer.peek(in);
  EXPECT_EQ(there.part[0].size(), 4U);
  EXPECT_EQ(there.part[1].size(), 6U);
  take(10);
}

TEST_F(RingTest, PeersIndex_IsLookedAtOnlyWhenWhatIsKnownDoesNotDo) {
  put(kSize);
  take(8);
  EXPECT_EQ(producer.room(out, 8).size(), 8U);
  take(8);
  EXPECT_EQ(producer.room(out, 8).size(), 8U);   // known
  EXPECT_EQ(producer.room(out, 9).size(), 16U);  // looked
}

TEST_F(RingTest, ReaderThatWantsMoreThanItKnows_LooksAgain) {
  put(3);
  EXPECT_EQ(consumer.peek(in).size(), 3U);
  put(4);
  EXPECT_EQ(consumer.peek(in, 3).size(), 3U);
  EXPECT_EQ(consumer.peek(in, 4).size(), 7U);
  EXPECT_EQ(consumer.peek(in, kSize + 1).size(), 7U);
}

TEST_F(RingTest, ManyTimesAround_EveryByteInItsPlace) {
  for (std::size_t i = 0; i < 5000; i++) {
    const std::size_t n = 1 + i * 7 % kSize;
    put(n), take(n);
  }
  EXPECT_EQ(producer.produced(), consumer.consumed());
}

// --- Wake-ups

TEST_F(RingTest, NobodySleeps_NobodyIsWoken) {
  EXPECT_FALSE(put(kSize));
  EXPECT_FALSE(take(kSize));
}

TEST_F(RingTest, SleepingConsumer_IsWokenOnce) {
  EXPECT_FALSE(consumer.arm(in));
  EXPECT_TRUE(put(1));
  EXPECT_FALSE(put(1));
  consumer.disarm(in);
  take(2);
  EXPECT_FALSE(put(1));
  take(1);
  EXPECT_FALSE(consumer.arm(in));  // a sleep of its own
  EXPECT_TRUE(put(1));
}

TEST_F(RingTest, ArmedAgainWithoutWakingUp_IsWokenAgain) {
  EXPECT_FALSE(consumer.arm(in));
  EXPECT_TRUE(put(1));
  take(1);
  EXPECT_FALSE(consumer.arm(in));
  EXPECT_TRUE(put(1));
}

TEST_F(RingTest, BytesAreThere_ConsumerDoesNotSleep) {
  put(1);
  EXPECT_TRUE(consumer.arm(in));
  EXPECT_FALSE(put(1));
}

TEST_F(RingTest, SleepingProducer_IsWokenAtAQuarter) {
  put(kSize);
  EXPECT_FALSE(producer.arm(out, 1));
  EXPECT_FALSE(take(3));
  EXPECT_TRUE(take(1));
  EXPECT_FALSE(take(4));  // once
}

TEST_F(RingTest, ProducerThatWantsThreeQuarters_IsWokenBeforeTheRingIsEmpty) {
  for (std::uint64_t shift = 0; shift < kSize; shift++) {
    put(kSize);
    bool asleep = !producer.arm(out, kSize * 3 / 4);
    std::uint64_t left = kSize;
    for (; asleep && left > 0; left--)
      if (take(1)) asleep = !producer.arm(out, kSize * 3 / 4);
    EXPECT_FALSE(asleep);
    for (; left > 0; left--) take(1);
    put(1), take(1);
  }
}

TEST_F(RingTest, RoomIsThere_ProducerDoesNotSleep) {
  put(kSize), take(1);
  EXPECT_TRUE(producer.arm(out, 1));
  EXPECT_FALSE(producer.arm(out, 2));
}

// --- A peer with false indices

// want() does not look at the peer's index. The caller must look for what it has not seen.
TEST_F(RingTest, ConsumerThatWants_IsWokenOnceForWhatComes_AndNotForWhatIsThere) {
  put(1);
  consumer.want(in);
  EXPECT_TRUE(put(1));
  EXPECT_FALSE(put(1));
  consumer.want(in);
  EXPECT_TRUE(put(1));
  consumer.want(in);
  consumer.disarm(in);
  EXPECT_FALSE(put(1));
}

TEST_F(RingTest, ProducerThatWants_IsWokenOnceAtTheNextQuarter) {
  put(kSize);
  producer.want(out);
  EXPECT_FALSE(take(3));
  EXPECT_TRUE(take(1));
  EXPECT_FALSE(take(4));
  producer.want(out);
  EXPECT_TRUE(take(4));
  producer.want(out);
  producer.disarm(out);
  EXPECT_FALSE(take(4));
}

TEST_F(RingTest, ProducedBeyondTheRing_BreaksIt) {
  put(3), take(1);
  side[0].produced = 1 + kSize + 1;
  take(2);                                         // what was known
  EXPECT_EQ(consumer.peek(in).size(), kSize - 1);  // now no more than fits
  side[0].produced = 3 + kSize + 1;
  (void)consumer.consume(in, kSize - 1);
  EXPECT_EQ(consumer.broken(), Refusal::kNone);
}

TEST_F(RingTest, ProducedOneTooMany_BreaksIt) {
  side[0].produced = kSize + 1;
  EXPECT_EQ(consumer.peek(in).size(), 0U);
  EXPECT_EQ(consumer.broken(), Refusal::kIndexAhead);
  side[0].produced = 1;
  EXPECT_EQ(consumer.peek(in).size(), 0U);  // for good
}

TEST_F(RingTest, ProducedGoesBack_BreaksIt) {
  put(3), take(3);
  side[0].produced = 2;
  EXPECT_TRUE(consumer.arm(in));  // no sleep on a broken ring
  EXPECT_EQ(consumer.broken(), Refusal::kIndexBackwards);
}

TEST_F(RingTest, ConsumedMoreThanThereWas_BreaksIt) {
  put(3);
  side[1].consumed = 4;
  EXPECT_EQ(producer.room(out, kSize).size(), 0U);
  EXPECT_EQ(producer.broken(), Refusal::kIndexAhead);
}

TEST_F(RingTest, ConsumedGoesBack_BreaksIt) {
  put(kSize), take(3);
  EXPECT_EQ(producer.room(out, kSize).size(), 3U);
  side[1].consumed = 2;
  EXPECT_TRUE(producer.arm(out, kSize));
  EXPECT_EQ(producer.broken(), Refusal::kIndexBackwards);
}

TEST_F(RingTest, FarOff_IsOneOfTheTwo) {
  for (const std::uint64_t index : {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1}) {
    Consumer fresh;
    side[0].produced = index;
    EXPECT_EQ(fresh.peek(in).size(), 0U);
    EXPECT_NE(fresh.broken(), Refusal::kNone);
  }
}

TEST_F(RingTest, OurOwnIndices_AreNeverReadBack) {
  put(4);
  side[0].produced = 1000;  // by the peer, over ours
  EXPECT_EQ(producer.room(out, 1).size(), kSize - 4);
  put(1);
  EXPECT_EQ(side[0].produced, 5U);
}

}  // namespace
}  // namespace bypass::test
