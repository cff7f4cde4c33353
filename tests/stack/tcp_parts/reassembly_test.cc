#include "stack/tcp/input/reassembly.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

constexpr Reassembly::Limits kLimits{1U << 20, 1000};
using Outcome = Reassembly::Outcome;

/// A queue with its arena and frames; numbers are relative to `kBase`, just below the wrap.
class ReassemblyTest : public testing::Test {
 protected:
  static constexpr SeqNum kBase{0xffffff00};

  ~ReassemblyTest() override {
    pool_.release(queue_.clear(*arena_));
    EXPECT_EQ(pool_.out(), 0U) << "frames leaked";
  }
  Outcome insert(std::uint32_t begin, std::uint32_t end, Reassembly::Limits limits = kLimits) {
    const auto result = queue_.insert(*arena_, pool_.make(kBase + begin, end - begin), limits);
    pool_.release(result.release);
    EXPECT_EQ(queue_.violated(nxt_), nullptr);
    return result.outcome;
  }
  /// Takes in-order bytes up to `to`, then what the queue has behind them; returns where that ends.
  std::uint32_t advance(std::uint32_t to) {
    const auto ready = queue_.advance(*arena_, kBase + to);
    nxt_ = kBase + to;
    for (Packet* frame = ready.frames; frame != nullptr; frame = frame->queue_next) check(*frame);
    EXPECT_EQ(distance(kBase + to, nxt_), ready.bytes);
    EXPECT_EQ(queue_.violated(nxt_), nullptr);
    pool_.release(ready.release);
    pool_.release(ready.frames);
    return distance(kBase, nxt_);
  }
  using Blocks = std::vector<std::array<std::uint32_t, 2>>;
  Blocks sack(std::size_t room = 4) {
    std::array<SackBlock, 4> out;
    const std::size_t n = queue_.take_sack_blocks(std::span(out).first(room));
    Blocks blocks;
    for (const auto& b : std::span(out).first(n)) blocks.push_back({distance(kBase, b.begin), distance(kBase, b.end)});
    return blocks;
  }

  Arena arena_;
  FramePool pool_;
  Reassembly queue_;
  SeqNum nxt_ = kBase;

 private:
  void check(const Packet& frame) {
    ASSERT_EQ(SeqNum{frame.seq}, nxt_);
    for (std::uint32_t i = 0; i < frame.payload_len; i++)
      ASSERT_EQ(frame.data[frame.offset + i], std::byte{FramePool::pattern(nxt_ + i)});
    nxt_ += frame.payload_len;
  }
};

TEST_F(ReassemblyTest, HoleFills_RunComesOut) {
  EXPECT_EQ(insert(200, 300), Outcome::kQueued);
  EXPECT_EQ(insert(300, 400), Outcome::kQueued);
  EXPECT_EQ(insert(500, 600), Outcome::kQueued);
  EXPECT_EQ(queue_.islands(), 2U);
  EXPECT_EQ(queue_.bytes(), 300U);
  EXPECT_EQ(advance(100), 100U) << "the hole is still there";
  EXPECT_EQ(advance(200), 400U);
  EXPECT_EQ(advance(500), 600U);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(arena_.used(), 0U) << "an empty queue costs nothing";
}

TEST_F(ReassemblyTest, Backwards_IslandsMerge) {
  insert(400, 500);
  insert(200, 300);
  insert(300, 400);
  EXPECT_EQ(queue_.islands(), 1U);
  EXPECT_EQ(advance(200), 500U);
}

TEST_F(ReassemblyTest, OverlapAtBothEnds_KeepsWhatCameFirst) {
  insert(100, 200);
  insert(300, 400);
  EXPECT_EQ(insert(150, 350), Outcome::kQueued);
  EXPECT_EQ(queue_.bytes(), 300U);
  EXPECT_EQ(sack(), (Blocks{{150, 200}, {100, 400}})) << "the first duplicate part, then the island";
  EXPECT_EQ(advance(100), 400U);
}

TEST_F(ReassemblyTest, FrameCoversIslands_TheyGiveWay) {
  insert(200, 210);
  insert(220, 230);
  insert(300, 400);
  EXPECT_EQ(insert(150, 250), Outcome::kQueued);
  EXPECT_EQ(queue_.islands(), 2U);
  EXPECT_EQ(queue_.frames(), 2U);
  EXPECT_EQ(advance(150), 250U);
}

TEST_F(ReassemblyTest, Duplicate_IsReportedOnceBeforeItsIsland) {  // RFC 2883 §4
  insert(100, 300);
  insert(500, 600);
  EXPECT_EQ(insert(150, 250), Outcome::kDuplicate);
  EXPECT_EQ(sack(), (Blocks{{150, 250}, {100, 300}, {500, 600}}));
  EXPECT_EQ(sack(), (Blocks{{100, 300}, {500, 600}}));
}

TEST_F(ReassemblyTest, DuplicateBelowRcvNxt_IsReportedWithoutIslands) {
  queue_.note_duplicate(kBase + 10, kBase + 20);
  EXPECT_TRUE(queue_.has_sack());
  EXPECT_EQ(sack(), (Blocks{{10, 20}}));
  EXPECT_FALSE(queue_.has_sack());
}

TEST_F(ReassemblyTest, SackBlocks_LastChangedFirst) {  // RFC 2018 §4
  insert(100, 200);
  insert(300, 400);
  insert(500, 600);
  insert(700, 800);
  EXPECT_EQ(sack(), (Blocks{{700, 800}, {500, 600}, {300, 400}, {100, 200}}));
  insert(200, 250);
  EXPECT_EQ(sack(3), (Blocks{{100, 250}, {700, 800}, {500, 600}}));
}

TEST_F(ReassemblyTest, InOrderFrameOvertakesTheQueue_QueueIsTrimmed) {
  insert(100, 200);
  insert(200, 300);
  insert(400, 500);
  EXPECT_EQ(advance(250), 300U) << "the second frame gives its second half";
  EXPECT_EQ(sack(), (Blocks{{100, 250}, {400, 500}})) << "what came twice is a duplicate";
  EXPECT_EQ(advance(500), 500U);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(ReassemblyTest, TrimmedFrame_KeepsItsBytesInPlace) {
  insert(100, 200);
  const auto result = queue_.insert(*arena_, pool_.make(kBase + 50, 100, 66), kLimits);
  EXPECT_EQ(result.outcome, Outcome::kQueued);
  const auto ready = queue_.advance(*arena_, kBase + 50);
  EXPECT_EQ(ready.frames->offset, 66U);
  EXPECT_EQ(ready.frames->payload_len, 50U);
  EXPECT_EQ(ready.count, 2U);
  EXPECT_EQ(ready.last->payload_len, 100U);
  pool_.release(ready.frames);
}

TEST_F(ReassemblyTest, EmptyFrame_IsGivenBack) {
  EXPECT_EQ(insert(100, 100), Outcome::kDuplicate);
  EXPECT_FALSE(queue_.has_sack());
}

TEST_F(ReassemblyTest, Limits_RefuseBytesAndFrames) {
  insert(100, 200);
  EXPECT_EQ(insert(300, 400, {199, 10}), Outcome::kRefused);
  EXPECT_EQ(insert(300, 400, {200, 1}), Outcome::kRefused);
  EXPECT_EQ(insert(300, 400, {50, 10}), Outcome::kRefused);
  EXPECT_EQ(insert(300, 400, {200, 2}), Outcome::kQueued);
}

TEST_F(ReassemblyTest, TooManyIslands_NewOnesAreRefusedAndHolesStillFill) {
  for (std::uint32_t i = 1; i <= Reassembly::kMaxIslands; i++) ASSERT_EQ(insert(10 * i, 10 * i + 1), Outcome::kQueued);
  EXPECT_EQ(arena_.used(), 4096U);
  EXPECT_EQ(insert(5000, 5001), Outcome::kRefused);
  EXPECT_EQ(insert(11, 20), Outcome::kQueued) << "this one makes two islands one";
  EXPECT_EQ(insert(5000, 5001), Outcome::kQueued);
}

TEST(Reassembly, NoMemory_RefusesTheFrame) {
  Arena arena(1 << 20, 0);
  FramePool pool;
  Reassembly queue;
  const auto result = queue.insert(*arena, pool.make(SeqNum{10}, 10), kLimits);
  EXPECT_EQ(result.outcome, Outcome::kNoMemory);
  pool.release(result.release);
}

/// What a receiver holds, byte by byte.
struct Model {
  std::vector<bool> have = std::vector<bool>(4000);
  std::uint32_t nxt = 0;

  void add(std::uint32_t begin, std::uint32_t end) { std::fill(have.begin() + begin, have.begin() + end, true); }
  std::uint32_t in_order() {
    while (nxt < have.size() && have[nxt]) nxt++;
    return nxt;
  }
  [[nodiscard]] std::size_t queued() const {
    return static_cast<std::size_t>(std::count(have.begin() + nxt, have.end(), true));
  }
};

TEST_F(ReassemblyTest, RandomFrames_AgreeWithAByteMap) {
  for (std::uint32_t seed = 0; seed < 30; seed++) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Model model;
    nxt_ = kBase;
    while (model.nxt < model.have.size()) {
      const std::uint32_t window = static_cast<std::uint32_t>(model.have.size()) - model.nxt;
      const std::uint32_t begin = model.nxt + (random.chance(10) ? 0 : random.below(window));
      const std::uint32_t longest = static_cast<std::uint32_t>(model.have.size()) - begin;
      const std::uint32_t end = begin + random.between(1, std::min(longest, random.chance(5) ? 900U : 40U));
      if (begin == model.nxt) {
        model.add(begin, end);
        ASSERT_EQ(advance(end), model.in_order());
      } else if (insert(begin, end) != Outcome::kRefused) {
        model.add(begin, end);
      }
      ASSERT_EQ(queue_.bytes(), model.queued());
      for (const auto& block : sack())
        for (std::uint32_t i = block[0]; i < block[1]; i++) ASSERT_TRUE(model.have[i]);
    }
    ASSERT_TRUE(queue_.empty());
    ASSERT_EQ(pool_.out(), 0U);
  }
}

}  // namespace
}  // namespace bypass::tcp
