// The simulated link keeps the promises of link.h, also when it dies. LinkEnd shares it among lanes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fastpath/lane/lane.h"
#include "fastpath/link/link_end.h"
#include "fastpath/sim/sim_link.h"

namespace bypass::fastpath {
namespace {

using namespace std::chrono_literals;

Write small_write(std::uint64_t to, std::uint8_t value, std::uint16_t lane, std::uint16_t sequence) {
  Write write;
  write.to = to;
  write.small[0] = std::byte{value};
  write.small_length = 1;
  write.notify = true;
  write.immediate = to_immediate({Op::kData, sequence, lane});
  return write;
}

std::vector<Arrival> poll_all(Link& link) {
  std::vector<Arrival> all(1000);
  all.resize(link.poll(all));
  return all;
}

TEST(SimLink, MessageComesAfterItsBytes_AndLater) {
  sim::Cable cable(1, {});
  const Write write = small_write(100, 7, 1, 0);
  cable.end(0).post({&write, 1});
  cable.advance(Instant{1us});
  EXPECT_TRUE(poll_all(cable.end(1)).empty());
  EXPECT_FALSE(cable.end(1).arm());
  EXPECT_EQ(cable.next_event(), Instant{2us});
  cable.advance(Instant{2us});
  EXPECT_TRUE(cable.end(1).arm()) << "it is there already";
  ASSERT_EQ(poll_all(cable.end(1)).size(), 1U);
  EXPECT_EQ(cable.end(1).memory()[100], std::byte{7});
}

// What arrived is a first part of what was posted. Memory behind it may have changed. Then nothing more comes.
TEST(SimLink, Death_LosesLastWritesOnly) {
  std::size_t most = 0, least = 100, changed_silently = 0;
  for (std::uint64_t seed = 1; seed <= 200; seed++) {
    sim::Cable cable(seed, {.memory_bytes = 4096});
    for (std::uint16_t i = 0; i < 10; i++) {
      const Write write = small_write(100U + i, 1, 1, i);
      cable.end(0).post({&write, 1});
    }
    cable.kill();
    const Write late = small_write(200, 1, 1, 10);
    cable.end(0).post({&late, 1});
    cable.advance(Instant{1s});
    const auto arrived = poll_all(cable.end(1));
    for (std::size_t i = 0; i < arrived.size(); i++) EXPECT_EQ(to_message(arrived[i].immediate).sequence, i);
    const auto memory = cable.end(1).memory();
    for (std::size_t i = 0; i < arrived.size(); i++) EXPECT_EQ(memory[100 + i], std::byte{1});
    EXPECT_EQ(memory[200], std::byte{0});
    const auto changed = static_cast<std::size_t>(std::count(memory.begin(), memory.end(), std::byte{1}));
    changed_silently += changed > arrived.size() ? 1U : 0U;
    most = std::max(most, arrived.size());
    least = std::min(least, arrived.size());
    EXPECT_EQ(cable.end(1).state(), LinkState::kDrained);
  }
  EXPECT_EQ(most, 10U);
  EXPECT_EQ(least, 0U);
  EXPECT_GT(changed_silently, 50U);
}

TEST(SimLink, Drained_OnlyWhenTheLastMessageIsPolled) {
  sim::Cable cable(1, {});
  const Write write = small_write(100, 7, 1, 0);
  cable.end(0).post({&write, 1});
  cable.advance(Instant{1ms});
  cable.kill();
  cable.advance(Instant{1s});
  EXPECT_EQ(cable.end(1).state(), LinkState::kFailed);
  EXPECT_EQ(poll_all(cable.end(1)).size(), 1U);
  EXPECT_EQ(cable.end(1).state(), LinkState::kDrained);
  EXPECT_EQ(cable.end(1).room(), 0U);
}

TEST(SimLink, ReorderedLanes_EachKeepsItsOrder) {
  sim::Cable cable(3, {.reorder_lanes = true});
  for (std::uint16_t i = 0; i < 60; i++) {
    const Write write = small_write(100, 0, i % 3, i / 3);
    cable.end(0).post({&write, 1});
  }
  cable.advance(Instant{1s});
  std::uint16_t next[3] = {};
  bool overtaken = false;
  for (const Arrival& arrival : poll_all(cable.end(1))) {
    const Message message = to_message(arrival.immediate);
    EXPECT_EQ(message.sequence, next[message.lane]++);
    overtaken = overtaken || next[message.lane] > *std::min_element(next, next + 3) + 1;
  }
  EXPECT_TRUE(overtaken);
}

TEST(SimLink, WriteBeyondMemory_EndsIt) {
  sim::Cable cable(1, {});
  const Write write = small_write(~0ULL, 1, 1, 0);
  cable.end(0).post({&write, 1});
  cable.advance(Instant{1s});
  EXPECT_TRUE(cable.dead());
}

// --- LinkEnd

constexpr std::uint64_t kMemory = 1U << 20;
constexpr std::uint8_t kRingLog2 = 17;

/// Two lanes that are open and cut, with the same buffer each.
class LinkEndTest : public ::testing::Test {
 protected:
  struct Table {
    std::vector<Lane>& lanes;
    std::vector<std::byte>& buffer;
    Lane* find(std::uint16_t number) { return number < lanes.size() ? &lanes[number] : nullptr; }
    ByteSource source(std::uint16_t) { return {buffer.data(), 0, buffer.size()}; }
    template <typename F>
    void for_each(F&& f) {
      for (Lane& lane : lanes) f(lane);
    }
  };

  LinkEndTest() : buffer_(1U << 17), memory_(kMemory), table_{lanes_, buffer_} {
    for (std::uint16_t i = 0; i < 2; i++) {
      Lane lane({.opens = true});
      LaneAddress at;
      at.lane = i, at.ring_log2 = kRingLog2, at.credit = sizeof(LinkBlock) + i * 16U, at.ring = (i + 1U) << kRingLog2;
      lane.offer(1, at, kMemory);
      lane.on_record({.type = RecordType::kLaneOk, .link = 1, .address = at});
      lane.cut();
      lanes_.push_back(lane);
    }
  }
  std::vector<Write> writes() {
    std::vector<Write> all;
    for (Write write; end_.next_write(memory_, table_, write); write = {}) all.push_back(write);
    return all;
  }
  void arrive(Message message, std::uint32_t length = 0) { end_.on_arrival({to_immediate(message), length}, table_); }

  std::vector<Lane> lanes_;
  std::vector<std::byte> buffer_, memory_;
  Table table_;
  LinkEnd end_{16};
};

TEST_F(LinkEndTest, LargeWrites_TakeTurns) {
  for (std::uint16_t i = 0; i < 2; i++) lanes_[i].write(70'000), end_.enqueue(i, table_);
  std::vector<std::pair<unsigned, std::size_t>> turns;
  for (const Write& write : writes()) turns.emplace_back(to_message(write.immediate).lane, write.size());
  const std::vector<std::pair<unsigned, std::size_t>> fair = {{0, 32768}, {1, 32768}, {0, 32768},
                                                              {1, 32768}, {0, 4464},  {1, 4464}};
  EXPECT_EQ(turns, fair);
}

TEST_F(LinkEndTest, OutOfMessageCredits_SaysSoOnceAndGoesOnWhenTold) {
  for (int i = 0; i < 8; i++) lanes_[0].write(1), end_.enqueue(0, table_), writes();
  lanes_[0].write(1), end_.enqueue(0, table_);
  auto all = writes();
  ASSERT_EQ(all.size(), 1U) << "half of the window is for control";
  EXPECT_EQ(to_message(all[0].immediate).op, Op::kLinkBlocked);
  EXPECT_TRUE(writes().empty());
  const std::uint64_t returned = 8;
  std::memcpy(memory_.data(), &returned, sizeof returned);
  arrive({.op = Op::kLinkCredit});
  all = writes();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(to_message(all[0].immediate).op, Op::kData);
}

TEST_F(LinkEndTest, MoreReturnedThanSent_EndsTheLink) {
  for (int i = 0; i < 9; i++) lanes_[0].write(1), end_.enqueue(0, table_), i < 8 ? (void)writes() : (void)0;
  const std::uint64_t returned = 9;
  std::memcpy(memory_.data(), &returned, sizeof returned);
  EXPECT_TRUE(writes().empty());
  EXPECT_EQ(end_.reason(), Reason::kMessageOverrun);
  EXPECT_EQ(lanes_[1].tx_path(), TxPath::kStopped);
  EXPECT_FALSE(lanes_[1].broken());
}

TEST_F(LinkEndTest, PeerOutOfCredits_IsAnsweredAtOnce) {
  arrive({.op = Op::kData, .sequence = 0, .lane = 0}, 1);
  EXPECT_TRUE(writes().empty()) << "one message is no news";
  arrive({.op = Op::kLinkBlocked});
  const auto all = writes();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_FALSE(all[0].notify);
  EXPECT_EQ(all[0].to, 0U);
  EXPECT_EQ(to_message(all[1].immediate).op, Op::kLinkCredit);
}

TEST_F(LinkEndTest, Ping_IsAnswered) {
  arrive({.op = Op::kLinkPing});
  const auto all = writes();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(to_message(all[0].immediate).op, Op::kLinkPong);
}

TEST_F(LinkEndTest, MessageToNoLane_EndsTheLinkAndNoConnection) {
  arrive({.op = Op::kData, .sequence = 0, .lane = 2}, 1);
  EXPECT_EQ(end_.reason(), Reason::kUnknownLane);
  for (const Lane& lane : lanes_) EXPECT_FALSE(lane.broken());
}

TEST_F(LinkEndTest, UnknownOperation_EndsItsLaneAlone) {
  end_.on_arrival({0xf0000000, 0}, table_);
  EXPECT_EQ(end_.state(), LinkState::kUp);
  EXPECT_EQ(lanes_[0].reason(), Reason::kBadImmediate);
  EXPECT_FALSE(lanes_[1].broken());
}

TEST_F(LinkEndTest, LaneThatLeavesTheQueue_BreaksNoOther) {
  for (std::uint16_t i = 0; i < 2; i++) lanes_[i].write(10), end_.enqueue(i, table_);
  end_.dequeue(0, table_);
  const auto all = writes();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(to_message(all[0].immediate).lane, 1);
}

}  // namespace
}  // namespace bypass::fastpath
