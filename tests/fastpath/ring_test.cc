// Counters of rings and messages: what a peer may claim, and what it may not.
#include "fastpath/lane/ring.h"

#include <gtest/gtest.h>

#include "fastpath/lane/message.h"

namespace bypass::fastpath {
namespace {

constexpr std::uint8_t kLog2 = 12;
constexpr std::uint64_t kSize = 1U << kLog2;

RingWriter writer(std::uint64_t sent) {
  RingWriter ring;
  ring.open(kLog2);
  ring.advance(sent);
  return ring;
}
RingReader reader(std::uint64_t placed) {
  RingReader ring;
  ring.open(kLog2);
  EXPECT_EQ(ring.place(placed), Reason::kNone);
  return ring;
}

TEST(RingWriter, RoomIsWhatTheReaderHasNotToTakeYet) {
  RingWriter ring = writer(kSize);
  EXPECT_EQ(ring.room(), 0U);
  EXPECT_EQ(ring.on_credit({.placed = kSize, .consumed = 100}), Reason::kNone);
  EXPECT_EQ(ring.room(), 100U);
  ring.advance(100);
  EXPECT_EQ(ring.position(), 100U) << "wrapped";
  EXPECT_EQ(ring.before_wrap(), kSize - 100);
}

TEST(RingWriter, CreditForWhatWasNeverSent_IsRefusedAndChangesNothing) {
  RingWriter ring = writer(1000);
  EXPECT_EQ(ring.on_credit({.placed = 1001, .consumed = 0}), Reason::kBadCredit);
  EXPECT_EQ(ring.on_credit({.placed = 500, .consumed = 501}), Reason::kBadCredit);
  EXPECT_EQ(ring.on_credit({.placed = ~0ULL, .consumed = ~0ULL}), Reason::kBadCredit);
  EXPECT_EQ(ring.placed(), 0U);
  EXPECT_EQ(ring.room(), kSize - 1000);
}

TEST(RingWriter, OlderCredit_IsNoNews) {
  RingWriter ring = writer(1000);
  EXPECT_EQ(ring.on_credit({.placed = 900, .consumed = 800}), Reason::kNone);
  EXPECT_EQ(ring.on_credit({.placed = 500, .consumed = 400}), Reason::kNone);
  EXPECT_EQ(ring.placed(), 900U);
  EXPECT_EQ(ring.room(), kSize - 200);
}

TEST(RingReader, MoreThanTheRingHolds_IsAnOverrun) {
  RingReader ring = reader(kSize - 10);
  EXPECT_EQ(ring.place(11), Reason::kRingOverrun);
  EXPECT_EQ(ring.placed(), kSize - 10) << "and is not believed";
  EXPECT_EQ(ring.place(0xffffffff), Reason::kRingOverrun);
  EXPECT_EQ(ring.place(10), Reason::kNone);
  ring.consume(5);
  EXPECT_EQ(ring.place(6), Reason::kRingOverrun);
  EXPECT_EQ(ring.place(5), Reason::kNone);
}

TEST(RingReader, CreditsAreToldLazily) {
  RingReader ring = reader(kSize / 4 - 1);
  EXPECT_TRUE(ring.has_news());
  EXPECT_FALSE(ring.has_much_news());
  EXPECT_EQ(ring.place(1), Reason::kNone);
  EXPECT_TRUE(ring.has_much_news());
  const CreditBlock block = ring.tell();
  EXPECT_EQ(block.placed, kSize / 4);
  EXPECT_EQ(block.consumed, 0U);
  EXPECT_FALSE(ring.has_news());
}

TEST(RingReader, WaitingWriter_IsWokenForAQuarterOrAnEmptyRing) {
  RingReader ring = reader(kSize);
  ring.tell();
  EXPECT_FALSE(ring.told_room());
  ring.consume(kSize / 4 - 1);
  EXPECT_FALSE(ring.worth_waking());
  ring.consume(1);
  EXPECT_TRUE(ring.worth_waking());
  ring.tell();
  EXPECT_TRUE(ring.told_room()) << "a writer that says it waits has not looked";
  ring.consume(kSize - kSize / 4);
  EXPECT_TRUE(ring.worth_waking()) << "nothing is left to wait for";
}

// A reader that takes a little at a time does not make its writer send little at a time. This holds where the peer will
// report room by itself, and where the writer knows of some room.
TEST(RingReader, Full_IsWhereNothingComesUntilTheProgramReads) {
  RingReader ring;
  ring.open(12);
  EXPECT_FALSE(ring.is_full());
  ASSERT_EQ(ring.place(4095), Reason::kNone);
  EXPECT_FALSE(ring.is_full());
  ASSERT_EQ(ring.place(1), Reason::kNone);
  EXPECT_TRUE(ring.is_full());
  ring.consume(100);
  EXPECT_TRUE(ring.is_full()) << "too little to be offered";
  ring.consume(500);
  EXPECT_FALSE(ring.is_full()) << "the writer will be told";
  ring.tell();
  EXPECT_FALSE(ring.is_full());
  ASSERT_EQ(ring.place(600), Reason::kNone);
  EXPECT_TRUE(ring.is_full());
  ring.consume(4096);
  EXPECT_FALSE(ring.is_full());
}

TEST(RingReader, RoomIsOfferedInPiecesWorthAWrite) {
  RingReader ring = reader(kSize);
  ring.consume(1);
  EXPECT_TRUE(ring.worth_waking()) << "the writer's buffer can forget what is placed";
  EXPECT_EQ(ring.tell().consumed, 0U) << "and no room is made of one byte";
  EXPECT_FALSE(ring.worth_waking());
  ring.consume(kSize / 8 - 2);
  EXPECT_FALSE(ring.has_news());
  EXPECT_EQ(ring.tell().consumed, 0U);
  ring.consume(1);
  EXPECT_TRUE(ring.has_news());
  EXPECT_EQ(ring.tell().consumed, kSize / 8);
  ring.consume(kSize * 7 / 8 - 1);
  EXPECT_EQ(ring.tell().consumed, kSize - 1);
  ring.consume(1);
  EXPECT_EQ(ring.tell().consumed, kSize) << "nothing is left to wait for";
}

TEST(RingReader, OfALargeRing_AQuantumIsMuch) {
  RingReader ring;
  ring.open(20);
  EXPECT_EQ(ring.place(1U << 20), Reason::kNone);
  ring.consume((32U << 10) - 1);
  EXPECT_EQ(ring.tell().consumed, 0U);
  ring.consume(1);
  EXPECT_EQ(ring.tell().consumed, 32U << 10);
}

TEST(CreditBlock, WrittenAndReadInPlace) {
  alignas(8) std::byte memory[sizeof(CreditBlock)] = {};
  write_credit(memory, {.placed = 7, .consumed = 5});
  const CreditBlock block = read_credit(memory);
  EXPECT_EQ(block.placed, 7U);
  EXPECT_EQ(block.consumed, 5U);
}

TEST(MessageCredits, DataLeavesRoomForControl) {
  MessageCredits credits;
  credits.open(10, 8);
  credits.on_sent();
  EXPECT_TRUE(credits.may_send_data());
  credits.on_sent();
  EXPECT_FALSE(credits.may_send_data());
  for (int i = 0; i < 8; i++) {
    EXPECT_TRUE(credits.may_send_control());
    credits.on_sent();
  }
  EXPECT_FALSE(credits.may_send_control());
  EXPECT_EQ(credits.on_returned(11), Reason::kMessageOverrun) << "more than were sent";
  EXPECT_EQ(credits.on_returned(10), Reason::kNone);
  EXPECT_EQ(credits.on_returned(3), Reason::kNone) << "an older count";
  EXPECT_TRUE(credits.may_send_data());
}

TEST(MessageCredits, PeerWithoutCredit_IsAnOverrun) {
  MessageCredits credits;
  credits.open(4, 1);
  for (int i = 0; i < 4; i++) EXPECT_EQ(credits.on_message(), Reason::kNone);
  EXPECT_EQ(credits.on_message(), Reason::kMessageOverrun);
  credits.open(4, 1);
  for (int i = 0; i < 4; i++) EXPECT_EQ(credits.on_message(), Reason::kNone);
  EXPECT_EQ(credits.tell(), 4U);
  EXPECT_EQ(credits.on_message(), Reason::kNone);
}

TEST(Message, ImmediateHoldsAllThree) {
  const Message message = to_message(to_immediate({Op::kQuiesceAck, 0xabc, 0x1234}));
  EXPECT_EQ(message.op, Op::kQuiesceAck);
  EXPECT_EQ(message.sequence, 0xabc);
  EXPECT_EQ(message.lane, 0x1234);
  EXPECT_FALSE(is_known(to_message(0).op));
  EXPECT_FALSE(is_known(to_message(0xffffffff).op));
}

// A write of credits with each message would be half of a ping-pong's traffic.
TEST(RingReader, LittleNews_DoesNotGoAlong) {
  RingReader reader;
  reader.open(12);
  EXPECT_EQ(reader.place(255), Reason::kNone);
  reader.consume(255);
  EXPECT_TRUE(reader.has_news());
  EXPECT_FALSE(reader.has_some_news());
  EXPECT_EQ(reader.place(1), Reason::kNone);
  EXPECT_TRUE(reader.has_some_news());
  EXPECT_FALSE(reader.has_much_news());
  (void)reader.tell();
  EXPECT_FALSE(reader.has_some_news());
}

}  // namespace
}  // namespace bypass::fastpath
