// What a hostile peer may send: seeded bytes into the option parser, seeded frames into the reassembly queue and seeded
// blocks into the scoreboard. Failures name their seed.
#include <algorithm>
#include <array>
#include <vector>

#include "stack/tcp/input/options.h"
#include "stack/tcp/input/reassembly.h"
#include "stack/tcp/output/sack_scoreboard.h"
#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

/// Bytes that look enough like options to pass the first check. They lie in a block of their exact size, so that a
/// sanitizer sees a read behind them.
std::vector<std::byte> random_options(Random& random) {
  std::vector<std::byte> list(random.below(kMaxOptionBytes + 1));
  for (auto& b : list) b = std::byte(random.chance(70) ? random.below(12) : random.below(256));
  return list;
}

void expect_options_consistent(std::span<const std::byte> list, const SegmentOptions& options) {
  ASSERT_LE(options.sack_count, kMaxSackBlocks);
  ASSERT_LE(options.window_scale, kMaxWindowScale);
  std::array<UnknownOption, kMaxOptionBytes / 2> unknown;
  ASSERT_EQ(unknown_options(list, unknown), options.unknown_count);
  for (const auto& option : std::span(unknown).first(options.unknown_count)) {
    ASSERT_GE(option.body.data(), list.data());
    ASSERT_LE(option.body.data() + option.body.size(), list.data() + list.size());
  }
}

TEST(Hostile, RandomOptions_ParseOrFailWithinTheirBytes) {
  Random random(1);
  int parsed = 0;
  for (int i = 0; i < 20000; i++) {
    const auto list = random_options(random);
    const auto result = parse_options(list);
    if (!result) continue;
    parsed++;
    expect_options_consistent(list, *result);
    if (testing::Test::HasFatalFailure()) FAIL() << "list " << i;
  }
  EXPECT_GT(parsed, 1000) << "the generator should make some that parse";
  EXPECT_LT(parsed, 19000);
}

TEST(Hostile, WrittenOptionsWithOneByteChanged_ParseOrFail) {
  Random random(2);
  for (int i = 0; i < 5000; i++) {
    std::vector<std::byte> list(kMaxOptionBytes);
    const std::size_t syn = write_syn_options(list, {1460, true, true, true, 7, random.below(1000), 0});
    const SackBlock block{{random.below(1000)}, {random.below(1000)}};
    list.resize(syn + write_sack(std::span(list).subspan(syn), {&block, 1}));
    list[random.below(static_cast<std::uint32_t>(list.size()))] = std::byte(random.below(256));
    const auto result = parse_options(list);
    if (result) expect_options_consistent(list, *result);
  }
}

/// Frames lie anywhere in a window, have any length, and mostly overlap. rcv_nxt moves at random.
TEST(Hostile, RandomOverlappingFrames_QueueStaysConsistent) {
  for (std::uint32_t seed = 0; seed < 20; seed++) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Arena arena;
    FramePool pool;
    Reassembly queue;
    SeqNum nxt{random.below(0xffffffff)};
    const Reassembly::Limits limits{random.between(100, 20000), random.between(1, 300)};
    for (int i = 0; i < 300; i++) {
      if (random.chance(97)) {
        const std::uint32_t length = random.chance(50) ? 1 : random.below(random.chance(10) ? 3000 : 60);
        auto* frame = pool.make(nxt + random.between(1, 2000), length);
        pool.release(queue.insert(*arena, frame, limits).release);
      } else {
        nxt += random.between(1, 300);
        const auto ready = queue.advance(*arena, nxt);
        nxt += ready.bytes;
        pool.release(ready.frames);
        pool.release(ready.release);
      }
      ASSERT_EQ(queue.violated(nxt), nullptr);
      ASSERT_LE(queue.bytes(), limits.bytes);
      ASSERT_LE(queue.frames(), limits.frames);
      ASSERT_EQ(pool.out(), queue.frames());
      std::array<SackBlock, 4> blocks;
      for (const auto& b : std::span(blocks).first(queue.take_sack_blocks(blocks))) ASSERT_TRUE(before(b.begin, b.end));
    }
    pool.release(queue.clear(*arena));
  }
}

TEST(Hostile, OneByteFramesFromTheTop_CostABoundedBlock) {
  Arena arena;
  FramePool pool;
  Reassembly queue;
  for (std::uint32_t i = 4000; i != 0; i--)
    pool.release(queue.insert(*arena, pool.make(SeqNum{2 * i}, 1), {1 << 20, 1 << 20}).release);
  EXPECT_EQ(queue.islands(), Reassembly::kMaxIslands);
  EXPECT_EQ(pool.out(), Reassembly::kMaxIslands);
  EXPECT_EQ(arena.used(), 4096U);
  pool.release(queue.clear(*arena));
}

/// Any ACK, honest or not, between sending, recovering and timing out.
TEST(Hostile, RandomAcks_ScoreboardStaysConsistentAndProgresses) {
  for (std::uint32_t seed = 0; seed < 30; seed++) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Arena arena;
    Scoreboard board;
    SeqNum una{random.below(0xffffffff)}, nxt = una;
    board.start(una, random.chance(80));
    for (int i = 0; i < 500; i++) {
      std::array<SackBlock, 4> blocks;
      for (auto& b : blocks) b = {una + random.below(1200) - 100, una + random.below(1200) - 100};
      if (random.chance(30)) una += random.below(distance(una, nxt) + 1);
      board.on_ack(*arena, una, nxt, std::span(blocks).first(random.below(5)), random.chance(50), 100);
      if (board.should_recover()) board.enter_recovery(nxt);
      if (random.chance(5)) board.on_timeout(*arena, nxt);
      if (random.chance(2)) board.undo();
      for (std::uint32_t n = random.below(10); n != 0; n--) {
        const auto segment = board.next_segment(random.between(1, 300), 100, distance(una, nxt) < 1000);
        if (segment.rule == Scoreboard::Rule::kNothing) break;
        if (segment.rule == Scoreboard::Rule::kNewData) {
          board.on_sent(nxt, 100);
          nxt += 100;
        } else {
          ASSERT_NE(segment.length, 0U) << "a retransmission of nothing would loop";
          ASSERT_TRUE(after_or_at(segment.begin, una) && before_or_at(segment.begin + segment.length, nxt));
          board.on_retransmitted(segment);
        }
      }
      ASSERT_EQ(board.violated(), nullptr);
      ASSERT_LE(board.pipe(), 2 * distance(una, nxt));
    }
    board.on_timeout(*arena, nxt);
    ASSERT_TRUE(una == nxt || board.lost_bytes() != 0) << "a timeout finds something to send";
    board.clear(*arena);
  }
}

}  // namespace
}  // namespace bypass::tcp
