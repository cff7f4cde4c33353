// Writes of a program that is far ahead of its reader: which bytes wait for more, and what ends the wait.
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

#include "fastpath/lane/lane.h"
#include "fastpath/link/link_end.h"
#include "fastpath/peer_world.h"
#include "fastpath/sim/sim_link.h"

namespace bypass::fastpath::test {
namespace {

// --- A lane

constexpr std::uint64_t kMemory = 1U << 20;
constexpr std::uint8_t kRingLog2 = 19;
constexpr std::uint64_t kWrite = 4096, kAhead = LaneRules::kAhead, kMost = Lane::kGatheredAhead;

/// One end of a lane that is open and cut. Nothing comes back but what the test sends.
class GatherTest : public ::testing::Test {
 protected:
  struct Table {
    Lane& lane;
    std::vector<std::byte>& buffer;
    Lane* find(std::uint16_t number) { return number == 0 ? &lane : nullptr; }
    ByteSource source(std::uint16_t) { return {buffer.data(), 0, buffer.size()}; }
    template <typename F>
    void for_each(F&& f) {
      f(lane);
    }
  };

  GatherTest() : buffer_(1U << kRingLog2), memory_(kMemory) {
    const LaneAddress at{.ring = 1U << kRingLog2, .credit = sizeof(LinkBlock), .lane = 0, .ring_log2 = kRingLog2};
    lane_.offer(1, at, kMemory);
    lane_.on_record({.type = RecordType::kLaneOk, .link = 1, .address = at});
    lane_.cut();
  }
  /// The messages that a write leads to.
  std::vector<Message> write(std::uint64_t bytes, Lane::Gather how = Lane::Gather::kAhead) {
    lane_.write(bytes);
    lane_.gather(how);
    return turn();
  }
  std::vector<Message> turn() {
    std::vector<Message> all;
    end_.enqueue(0, table_);
    lengths_.clear();
    for (Write write; end_.next_write(memory_, table_, write); write = {}) {
      all.push_back(to_message(write.immediate));
      lengths_.push_back(write.size());
    }
    return all;
  }
  /// Writes until the peer is far behind, and has been asked to say when it has caught up.
  void get_ahead() {
    for (std::uint64_t sent = kWrite; sent < kAhead; sent += kWrite) {
      const auto all = write(kWrite);
      ASSERT_EQ(all.size(), 1U);
      ASSERT_EQ(all[0].op, Op::kData) << sent;
    }
    const auto all = write(kWrite);
    ASSERT_EQ(all.size(), 1U);
    ASSERT_EQ(all[0].op, Op::kDataBlocked) << "the next will wait";
  }
  void expect_gone(std::uint64_t bytes) {
    EXPECT_EQ(lengths_, std::vector<std::uint64_t>{bytes});
    EXPECT_EQ(lane_.next_offset(), lane_.end());
  }

  Lane lane_{{.opens = true}};
  std::vector<std::byte> buffer_, memory_;
  Table table_{lane_, buffer_};
  LinkEnd end_{512};
  std::vector<std::uint64_t> lengths_;
};

TEST_F(GatherTest, FarAhead_LittleMakesOneMessageOfMuch) {
  get_ahead();
  for (std::uint64_t bytes = kWrite; bytes < kMost; bytes += kWrite) EXPECT_TRUE(write(kWrite).empty()) << bytes;
  write(kWrite);
  expect_gone(kMost);
}

TEST_F(GatherTest, PeersWord_LetsItGo) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  write_credit(memory_.data() + lane_.local().credit, {kAhead, kAhead});
  end_.on_arrival({to_immediate({.op = Op::kCredit, .lane = 0}), 0}, table_);
  turn();
  expect_gone(kWrite);
}

// The peer has written its credit block, and sent no message yet.
TEST_F(GatherTest, PeersBlock_LetsItGoToo) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  write_credit(memory_.data() + lane_.local().credit, {kAhead, kAhead});
  turn();
  expect_gone(kWrite);
}

TEST_F(GatherTest, AnswerToTheQuestionAndStillFarBehind_GoesAndAsksAgain) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  end_.on_arrival({to_immediate({.op = Op::kCredit, .lane = 0}), 0}, table_);
  const auto all = turn();
  expect_gone(kWrite);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].op, Op::kDataBlocked);
}

TEST_F(GatherTest, ProgramReads_LetsItGo) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  lane_.gather(Lane::Gather::kNothing);
  turn();
  expect_gone(kWrite);
}

TEST_F(GatherTest, EndOfTheStream_LetsItGo) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  lane_.shutdown_send();
  const auto all = turn();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(lengths_[0], kWrite);
  EXPECT_EQ(all[1].op, Op::kFin);
}

TEST_F(GatherTest, UrgentByte_LetsItGo) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  lane_.write(1);
  lane_.mark_urgent();
  const auto all = turn();
  expect_gone(kWrite + 1);
  EXPECT_EQ(all.back().op, Op::kUrgent);
}

TEST_F(GatherTest, LargeWrite_TakesItAlongToItsLastByte) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  EXPECT_FALSE(write(kMost, Lane::Gather::kNothing).empty());
  EXPECT_EQ(lane_.next_offset(), lane_.end());
}

TEST_F(GatherTest, WriteAtOnce_FindsWhatWasGathered) {
  get_ahead();
  EXPECT_TRUE(write(kWrite).empty());
  EXPECT_TRUE(lane_.may_write_whole(kMost - kWrite));
  EXPECT_FALSE(lane_.may_write_whole(kMost - kWrite + 1)) << "with it, it is more than one message";
  lane_.write(kWrite);
  EXPECT_TRUE(lane_.is_gathering());
  lane_.gather(Lane::Gather::kNothing);
  EXPECT_FALSE(lane_.is_gathering());
  EXPECT_EQ(lane_.write_whole(table_.source(0)).size(), 2 * kWrite);
}

// --- A connection

/// A connection that has sent `before` bytes, all of which have arrived. By default that is more than an answer. So the
/// connection counts as a stream, and its next writes would be held.
struct StreamWorld {
  explicit StreamWorld(std::size_t before = 700'000) : c(world.open()) {
    EXPECT_TRUE(world.reach_lane(c));
    while (sent < before) write(kWrite), take_all();
  }
  void write(std::size_t size) {
    const std::vector<std::byte> bytes(size, std::byte{7});
    EXPECT_EQ(world.write(c, 0, bytes), size);
    sent += size;
  }
  void take_all() {
    EXPECT_TRUE(world.run_until([&] { return (arrived += world.read(c, 1).size()) == sent; }));
  }
  /// Writes while the peer does not look, and calls `after` after each write.
  void burst(
      std::span<const std::size_t> writes, const std::function<void()>& after = [] {}) {
    world.stopped[1] = true;
    for (const std::size_t size : writes) {
      write(size);
      world.run_for(1us);
      after();
    }
    world.stopped[1] = false;
  }
  /// Whether bytes of a write were held.
  bool holds_of(const std::vector<std::size_t>& writes) {
    bool any = false;
    burst(writes, [&] { any = any || lane().next_offset() != lane().end(); });
    return any;
  }
  [[nodiscard]] std::uint64_t messages() const { return world.yard.newest->posted(); }
  Lane& lane() { return world.framed(c, 0)->lane; }

  PeerWorld world{1, 8U << 20};
  PeerWorld::Connection& c;
  std::size_t sent = 0, arrived = 0;
};
constexpr std::size_t kLarge = std::size_t{64} << 10, kRest = 17'000;

TEST(Gathering, Stream_IsHeld) {
  StreamWorld w;
  EXPECT_TRUE(w.holds_of({kLarge, kRest, kRest, kRest}));
  w.take_all();
}

TEST(Gathering, RestOfALargeWrite_IsNot) {
  StreamWorld w;
  EXPECT_FALSE(w.holds_of({kLarge, kRest, kLarge, kRest, kLarge, kRest}));
  w.take_all();
}

TEST(Gathering, NoDelay_MeansNone) {
  StreamWorld w;
  w.c.tcb[0]->options.no_delay = true;
  EXPECT_FALSE(w.holds_of({kLarge, kRest, kRest, kRest}));
  w.take_all();
}

// Held bytes are not sent. They would stop a writer that allows little unsent data.
TEST(Gathering, LittleNotSentWanted_MeansNone) {
  const std::vector<std::size_t> writes(8, kWrite);
  StreamWorld usual;
  EXPECT_TRUE(usual.holds_of(writes));
  usual.take_all();
  StreamWorld w;
  w.c.tcb[0]->options.not_sent_low_water = 16U << 10;
  EXPECT_FALSE(w.holds_of(writes));
  w.take_all();
}

// Writes of any size, also sizes that do not fill a message exactly.
TEST(Gathering, NoMessageIsMoreThanATurn) {
  StreamWorld w;
  const std::size_t writes = w.world.short_writes;
  for (const std::size_t size : {5000U, 12'000U, 16'000U}) {
    std::uint64_t messages = w.messages(), before = w.lane().next_offset();
    w.burst(std::vector<std::size_t>(30, size), [&] {
      EXPECT_LE(w.lane().next_offset() - before, (w.messages() - messages) * LinkEnd::kQuantum);
      messages = w.messages(), before = w.lane().next_offset();
    });
    w.take_all();
  }
  EXPECT_GT(w.world.short_writes, writes);
}

TEST(Gathering, HeldBytes_AreToBeLookedAfter) {
  StreamWorld w;
  (void)w.world.links(0).take_held();
  EXPECT_TRUE(w.holds_of({kLarge, kRest, kRest, kRest}));
  EXPECT_TRUE(w.world.links(0).take_held());
  EXPECT_FALSE(w.world.links(0).take_held());
  w.take_all();
}

TEST(Gathering, StreamOfOneWhoIsFarAhead_TakesFewMessagesAndLeavesNothingBehind) {
  constexpr std::size_t kCount = 40;
  StreamWorld w(0);
  const auto messages_of_a_burst = [&] {
    const std::uint64_t before = w.messages();
    w.burst(std::vector<std::size_t>(kCount, kWrite));
    const std::uint64_t messages = w.messages() - before;
    w.take_all();  // no call follows, and all bytes come
    return messages;
  };
  for (int i = 0; i < 3; i++) EXPECT_EQ(messages_of_a_burst(), kCount) << "no more than an answer may have";
  for (int i = 0; i < 6; i++) {
    const std::uint64_t messages = messages_of_a_burst();
    if (i == 0) continue;  // not a stream yet, at its beginning
    EXPECT_LE(messages, kAhead / kWrite + (kCount - kAhead / kWrite) / (kMost / kWrite) + 1) << i;
  }
  // It reads first. So its next write is an answer.
  ASSERT_TRUE(w.world.transfer(w.c, 1, 100));
  EXPECT_EQ(messages_of_a_burst(), kCount);
}

}  // namespace
}  // namespace bypass::fastpath::test
