// Single behaviours of a lane that the model leaves out: urgent bytes, ping, sequence numbers, hostile records.
#include "fastpath/lane/lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fastpath/lane/ring.h"

namespace bypass::fastpath {
namespace {

constexpr std::uint64_t kMemory = 1U << 20;
constexpr std::uint64_t kCreditAt = sizeof(LinkBlock), kRingAt = 4096;

LaneAddress address(std::uint16_t number) {
  LaneAddress at;
  at.ring = kRingAt, at.credit = kCreditAt;
  at.lane = number, at.ring_log2 = kMinRingLog2;
  return at;
}

/// Two ends over a link and a TCP that carry everything at once. A test looks at what is carried.
class LaneTest : public ::testing::Test {
 protected:
  LaneTest() : memory_(2, std::vector<std::byte>(kMemory)), buffer_(65536) {
    a_.offer(1, address(3), kMemory);
    records();
    b_.accept(address(7), kMemory);
    records();
  }
  Lane& end(int e) { return e == 0 ? a_ : b_; }
  std::vector<Record> records() {
    std::vector<Record> all;
    Record record;
    for (bool more = true; more;) {
      more = false;
      for (int e = 0; e < 2; e++)
        while (end(e).next_record(record)) end(1 - e).on_record(record), all.push_back(record), more = true;
    }
    return all;
  }
  /// What an end has to send now. Nothing of it has arrived.
  std::vector<Write> writes(int e) {
    std::vector<Write> all;
    Write write;
    bool starved = false;
    const LaneTurn turn{.memory = memory_[e], .source = {buffer_.data(), 0, buffer_.size()}, .most = 65536};
    for (; end(e).next_write(turn, write, starved); write = {}) {
      all.push_back(write);
      if (write.last_of != kNoLane) end(e).on_writes_done();
    }
    return all;
  }
  /// Makes it arrive. Returns the messages.
  std::vector<Message> deliver(int from, const std::vector<Write>& writes) {
    std::vector<Message> all;
    for (const Write& write : writes) {
      std::copy_n(write.small.begin(), write.small_length, memory_[1 - from].begin() + static_cast<long>(write.to));
      if (!write.notify) continue;
      all.push_back(to_message(write.immediate));
      end(1 - from).on_message(all.back(), static_cast<std::uint32_t>(write.size()));
    }
    return all;
  }
  std::vector<Message> messages() {
    std::vector<Message> all;
    for (bool more = true; more;) {
      more = false;
      for (int e = 0; e < 2; e++) {
        const std::vector<Write> said = writes(e);
        const std::vector<Message> heard = deliver(e, said);
        all.insert(all.end(), heard.begin(), heard.end());
        more = more || !said.empty();
      }
    }
    return all;
  }

  Lane a_{{.opens = true}}, b_{{.opens = false}};
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte> buffer_;
};

TEST_F(LaneTest, UrgentByteOnTheLane_IsMarkedBehindItself) {
  a_.cut();
  records();
  a_.write(10);
  a_.mark_urgent();
  a_.write(5);
  const auto sent = messages();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].op, Op::kUrgent);
  EXPECT_EQ(sent[1].op, Op::kData);
  EXPECT_EQ(b_.urgent_mark(), 10U);
  EXPECT_EQ(b_.readable().bytes, 15U);
}

TEST_F(LaneTest, UrgentByteLostWithTheLink_IsMarkedAgainOverTcp) {
  a_.cut();
  records();
  a_.write(10);
  a_.mark_urgent();
  Write lost;
  bool starved = false;
  ASSERT_TRUE(
      a_.next_write({.memory = memory_[0], .source = {buffer_.data(), 0, buffer_.size()}, .most = 100}, lost, starved));
  for (Lane* lane : {&a_, &b_}) lane->on_link_failed(), lane->on_link_final();
  records();
  EXPECT_EQ(b_.urgent_mark(), 10U);
  EXPECT_EQ(b_.readable().bytes, 10U);
  EXPECT_EQ(a_.tx_path(), TxPath::kTcp);
}

TEST_F(LaneTest, HalfClosed_TheOtherDirectionGoesOn) {
  for (Lane* lane : {&a_, &b_}) lane->cut();
  records();
  a_.write(3);
  a_.shutdown_send();
  messages();
  b_.consume(3);
  EXPECT_TRUE(b_.at_eof());
  EXPECT_EQ(a_.una(), 3U) << "the answer to FIN says that all is placed";
  EXPECT_FALSE(a_.finished());
  b_.write(5);
  messages();
  EXPECT_EQ(a_.readable().bytes, 5U);
  b_.shutdown_send();
  messages();
  EXPECT_TRUE(a_.finished());
  EXPECT_TRUE(b_.finished());
  EXPECT_TRUE(b_.released());
  EXPECT_FALSE(a_.released()) << "its ring is not read yet";
}

TEST_F(LaneTest, Ping_IsAnswered) {
  b_.on_record({.type = RecordType::kPing, .value = 99});
  Record answer;
  ASSERT_TRUE(b_.next_record(answer));
  EXPECT_EQ(answer.type, RecordType::kPong);
  EXPECT_EQ(answer.value, 99U);
}

TEST_F(LaneTest, MessageLeftOut_EndsTheConnection) {
  a_.cut();
  records();
  b_.on_message({.op = Op::kData, .sequence = 1, .lane = 7}, 10);
  EXPECT_EQ(b_.reason(), Reason::kBadSequence);
  EXPECT_TRUE(b_.aborted());
  Record none;
  EXPECT_FALSE(b_.next_record(none));
}

TEST_F(LaneTest, ResetMessage_EndsBothAndReleasesTheLane) {
  for (Lane* lane : {&a_, &b_}) lane->cut();
  records();
  a_.abort();
  messages();
  EXPECT_TRUE(b_.aborted());
  EXPECT_FALSE(b_.broken());
  EXPECT_TRUE(a_.released());
  EXPECT_TRUE(b_.released());
}

// An end that has the other's end and its answer gives the place away. Messages that come later would reach the next
// lane there.
TEST_F(LaneTest, AbortedBehindItsEndAndItsAnswer_SaysNothingOnTheLane) {
  for (Lane* lane : {&a_, &b_}) lane->cut();
  records();
  a_.shutdown_send();
  deliver(0, writes(0));
  b_.shutdown_send();
  deliver(1, writes(1));
  const std::vector<Write> answer = writes(0);
  ASSERT_TRUE(a_.released());
  b_.abort();
  EXPECT_TRUE(writes(1).empty());
  deliver(0, answer);
  EXPECT_TRUE(b_.released());
}

TEST_F(LaneTest, AbortedBehindItsEnd_ResetsAPeerThatHasNotEnded) {
  for (Lane* lane : {&a_, &b_}) lane->cut();
  records();
  a_.shutdown_send();
  messages();
  a_.abort();
  messages();
  EXPECT_TRUE(b_.aborted());
  EXPECT_TRUE(a_.released());
  EXPECT_TRUE(b_.released());
}

// The end that never used the lane may reset the connection until the very end. Only the lane itself says when it no
// longer may.
TEST_F(LaneTest, NeverUsed_IsReleasedWhenBothHaveSaidSo) {
  for (Lane* lane : {&a_, &b_}) lane->shutdown_send();
  records();
  EXPECT_TRUE(a_.finished());
  EXPECT_FALSE(a_.released());
  b_.abort();
  const std::vector<Write> reset = writes(1);
  ASSERT_EQ(reset.size(), 1U);
  EXPECT_FALSE(a_.released());
  deliver(1, reset);
  messages();
  EXPECT_TRUE(a_.released());
  EXPECT_TRUE(b_.released());
}

TEST_F(LaneTest, NeverUsedAndLeft_IsDetachedWhenBothHaveSaidSo) {
  a_.leave();
  records();
  EXPECT_FALSE(a_.detached());
  EXPECT_FALSE(b_.detached());
  messages();
  EXPECT_TRUE(a_.detached());
  EXPECT_TRUE(b_.detached());
}

TEST_F(LaneTest, LittleNews_IsToldWhenAsked) {
  a_.cut();
  records();
  a_.write(10);
  messages();
  a_.look(memory_[0]);
  EXPECT_EQ(a_.una(), 0U) << "not worth a write";
  b_.tell();
  messages();
  a_.look(memory_[0]);
  EXPECT_EQ(a_.una(), 10U);
}

struct BadRecord {
  const char* why;
  Record record;
  Reason reason;
};

// Each record goes to an end with an open lane, 0 bytes so far, and nothing cut.
TEST_F(LaneTest, RecordThatCannotBeTrue_EndsTheConnection) {
  const std::vector<BadRecord> bad = {
      {"a CUT behind bytes that never came",
       {.type = RecordType::kCut, .epoch = 1, .lane = 7, .link = 1, .value = 5},
       Reason::kBadOffset},
      {"a CUT to somebody else's lane",
       {.type = RecordType::kCut, .epoch = 1, .lane = 8, .link = 1},
       Reason::kBadOffset},
      {"a CUT to another link", {.type = RecordType::kCut, .epoch = 1, .lane = 7, .link = 2}, Reason::kBadState},
      {"a CUT out of turn", {.type = RecordType::kCut, .epoch = 2, .lane = 7, .link = 1}, Reason::kBadEpoch},
      {"a RESUME without CUT", {.type = RecordType::kResume, .epoch = 1, .link = 1}, Reason::kBadState},
      {"credit for what was not sent", {.type = RecordType::kCredit, .value = 1}, Reason::kBadCredit},
      {"FIN behind bytes that never came", {.type = RecordType::kFin, .value = 1}, Reason::kBadOffset},
      {"an answer to no offer", {.type = RecordType::kLaneOk, .link = 1}, Reason::kBadState},
      {"REVERT with a lane open", {.type = RecordType::kRevert}, Reason::kBadState},
  };
  for (const BadRecord& b : bad) {
    Lane lane = b_;
    EXPECT_EQ(lane.on_record(b.record), b.reason) << b.why;
    EXPECT_TRUE(lane.broken()) << b.why;
  }
}

TEST_F(LaneTest, StateOfMoreThanWasSent_EndsTheConnection) {
  a_.cut();
  records();
  a_.write(10);
  messages();
  EXPECT_EQ(a_.on_record({.type = RecordType::kRxState, .lane = 7, .link = 1, .value = 11}), Reason::kBadOffset);
}

TEST(LaneOffer, PartOutsideThePeersMemory_IsRefused) {
  for (const auto& [ring, credit] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{{kMemory - 4095, kCreditAt},
                                                                                         {~0ULL, kCreditAt},
                                                                                         {kRingAt, kMemory - 15},
                                                                                         {kRingAt, kCreditAt + 4},
                                                                                         {0, kCreditAt},
                                                                                         {kRingAt, 0},
                                                                                         {kRingAt, ~0ULL - 7}}) {
    LaneAddress at = address(1);
    at.ring = ring, at.credit = credit;
    Lane lane({.opens = false});
    lane.on_record({.type = RecordType::kLaneOpen, .link = 1, .address = at});
    ASSERT_TRUE(lane.offered());
    lane.accept(address(2), kMemory);
    EXPECT_EQ(lane.reason(), Reason::kBadRecord) << ring << " " << credit;
  }
}

}  // namespace
}  // namespace bypass::fastpath
