#include "stack/tcp/output/sack_scoreboard.h"

#include <array>
#include <vector>

#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

using Rule = Scoreboard::Rule;
constexpr std::uint32_t kMss = 100;

/// A flight of ten segments, numbered from 0; the sequence space wraps inside of it.
class ScoreboardTest : public testing::Test {
 protected:
  static constexpr SeqNum kBase{0xfffffed4};  // the wrap is at 300

  ScoreboardTest() {
    board_.start(kBase, true);
    send(1000);
  }
  ~ScoreboardTest() override { board_.clear(*arena_); }

  using Blocks = std::vector<std::array<std::uint32_t, 2>>;
  Scoreboard::Update ack(std::uint32_t una, const Blocks& blocks, bool duplicate = false) {
    std::vector<SackBlock> wire;
    for (const auto& b : blocks) wire.push_back({kBase + b[0], kBase + b[1]});
    const auto update = board_.on_ack(*arena_, kBase + una, nxt_, wire, duplicate, kMss);
    EXPECT_EQ(board_.violated(), nullptr);
    return update;
  }
  void send(std::uint32_t bytes) {
    board_.on_sent(nxt_, bytes);
    nxt_ += bytes;
  }
  /// The next segment by rule, begin and length. Also marks it as sent.
  std::array<std::uint32_t, 3> next(bool new_data = false, std::uint32_t max = kMss) {
    const auto segment = board_.next_segment(max, kMss, new_data);
    const std::uint32_t at = segment.length == 0 ? 0 : distance(kBase, segment.begin);
    if (segment.rule == Rule::kNewData)
      send(kMss);
    else if (segment.rule != Rule::kNothing)
      board_.on_retransmitted(segment);
    EXPECT_EQ(board_.violated(), nullptr);
    return {static_cast<std::uint32_t>(segment.rule), at, segment.length};
  }
  void recover() { board_.enter_recovery(nxt_); }

  using Next = std::array<std::uint32_t, 3>;
  static constexpr Next kNothing{0, 0, 0}, kNew{2, 0, 0};

  Arena arena_;
  Scoreboard board_;
  SeqNum nxt_ = kBase;
};

// Each of SND.UNA, the block's begin and its end lies "before" the next, modulo 2^32.
TEST_F(ScoreboardTest, BlockOfHalfTheNumbers_IsALie) {
  const auto update = ack(0, {{0x7fffffff, 0x90000000}, {0x7fffff00, 0x80000400}});
  EXPECT_EQ(update.newly_sacked, 0U);
  EXPECT_EQ(board_.sacked_bytes(), 0U);
  EXPECT_EQ(board_.pipe(), 1000U);
}

TEST_F(ScoreboardTest, NoLoss_CostsNothing) {
  EXPECT_EQ(board_.pipe(), 1000U);
  const auto update = ack(400, {});
  EXPECT_EQ(update.delivered, 400U);
  EXPECT_EQ(board_.pipe(), 600U);
  EXPECT_TRUE(board_.clean());
  EXPECT_EQ(arena_.used(), 0U);
  EXPECT_EQ(next(true), kNew);
}

TEST_F(ScoreboardTest, ThreeSegmentsAbove_FirstIsLost) {  // RFC 6675 §4 IsLost
  EXPECT_EQ(ack(0, {{100, 200}}).newly_sacked, 100U);
  ack(0, {{100, 300}});
  EXPECT_FALSE(board_.should_recover());
  EXPECT_FALSE(board_.is_lost(kBase));
  EXPECT_EQ(ack(0, {{100, 400}}).newly_sacked, 100U);
  EXPECT_TRUE(board_.should_recover());
  EXPECT_TRUE(board_.is_lost(kBase));
  EXPECT_FALSE(board_.is_lost(kBase + 100)) << "SACKed";
  EXPECT_FALSE(board_.is_lost(kBase + 400)) << "above all that is SACKed";
  EXPECT_EQ(board_.pipe(), 600U);
  EXPECT_EQ(board_.lost_bytes(), 100U);
}

TEST_F(ScoreboardTest, OneAckForABurst_BytesTellTheLoss) {
  ack(0, {{100, 1000}});
  EXPECT_EQ(board_.duplicate_acks(), 1U);
  EXPECT_TRUE(board_.should_recover());
}

TEST_F(ScoreboardTest, ThreeRangesOfOneByte_FirstIsLost) {
  ack(0, {{901, 902}, {701, 702}, {501, 502}});
  EXPECT_TRUE(board_.is_lost(kBase + 500));
  EXPECT_FALSE(board_.is_lost(kBase + 600));
}

TEST_F(ScoreboardTest, LimitedTransmit_PipeFallsWithEachSackedSegment) {  // RFC 6675 §5 step 3
  ack(0, {{100, 200}});
  EXPECT_EQ(board_.pipe(), 900U);
  EXPECT_EQ(next(true), kNew);
  EXPECT_EQ(board_.pipe(), 1000U);
  EXPECT_EQ(next(false), kNothing);
}

TEST_F(ScoreboardTest, Recovery_SendsLostThenNewThenHoles) {  // RFC 6675 §4 NextSeg
  ack(0, {{100, 200}, {300, 400}, {500, 600}});
  recover();
  EXPECT_TRUE(board_.in_recovery());
  EXPECT_EQ(next(true), (Next{1, 0, 100}));
  EXPECT_EQ(next(true), kNew) << "200 is not lost: only two ranges are above it";
  EXPECT_EQ(next(false), (Next{3, 200, 100}));
  EXPECT_EQ(next(false), (Next{3, 400, 100}));
  EXPECT_EQ(next(false), kNothing) << "nothing above the highest range, and no rescue yet";
  ack(0, {{900, 1000}, {500, 600}, {300, 400}});
  EXPECT_EQ(next(false), (Next{3, 600, 100}));
}

TEST_F(ScoreboardTest, Retransmissions_CountInThePipe) {
  ack(0, {{100, 200}, {300, 400}, {500, 1000}});
  recover();
  EXPECT_EQ(board_.pipe(), 0U) << "0, 200 and 400 are lost";
  EXPECT_EQ(board_.lost_bytes(), 300U);
  next();
  EXPECT_EQ(board_.pipe(), 100U);
  EXPECT_EQ(ack(300, {{300, 400}}).delivered, 200U);
  next();
  EXPECT_EQ(board_.lost_bytes(), 0U);
  EXPECT_EQ(board_.pipe(), 100U);
}

TEST_F(ScoreboardTest, FirstSegment_IsSentAgainThoughNotByBytes) {  // RFC 6675 §5 step 4.3
  ack(0, {{110, 111}});
  ack(0, {{110, 112}});
  ack(0, {{110, 113}});
  EXPECT_TRUE(board_.should_recover()) << "three duplicate ACKs";
  EXPECT_FALSE(board_.is_lost(kBase));
  recover();
  EXPECT_EQ(next(true), (Next{1, 0, 100}));
  EXPECT_EQ(next(true), kNew);
}

TEST_F(ScoreboardTest, LongHole_IsGivenUpToTheLimit) {
  ack(0, {{500, 1000}});
  recover();
  EXPECT_EQ(next(false, 350), (Next{1, 0, 350}));
  EXPECT_EQ(next(false, 350), (Next{1, 350, 150}));
}

TEST_F(ScoreboardTest, EndOfFlightLost_IsRescuedOnce) {  // RFC 6675 §4 rule 4
  ack(0, {{100, 400}});
  recover();
  EXPECT_EQ(next(), (Next{1, 0, 100}));
  EXPECT_EQ(next(), kNothing) << "not before the first segment is acknowledged";
  ack(500, {});
  EXPECT_EQ(next(), (Next{4, 900, 100}));
  EXPECT_EQ(next(), kNothing);
  ack(600, {});
  EXPECT_EQ(next(), kNothing) << "once a recovery";
}

TEST_F(ScoreboardTest, RecoveryPointAcknowledged_RecoveryEnds) {
  ack(0, {{100, 400}});
  recover();
  next();
  send(500);
  ack(999, {});
  EXPECT_TRUE(board_.in_recovery());
  ack(1000, {});
  EXPECT_FALSE(board_.in_recovery());
  EXPECT_EQ(board_.pipe(), 500U);
  EXPECT_EQ(arena_.used(), 0U);
}

TEST_F(ScoreboardTest, Timeout_EverythingNotSackedIsLost) {
  ack(0, {{300, 400}});
  board_.on_timeout(*arena_, nxt_);
  EXPECT_TRUE(board_.in_timeout());
  EXPECT_EQ(board_.pipe(), 0U);
  EXPECT_EQ(board_.lost_bytes(), 900U);
  EXPECT_EQ(next(true), (Next{1, 0, 100}));
  ack(100, {{300, 400}});
  EXPECT_EQ(next(true, 500), (Next{1, 100, 200})) << "up to what arrived";
  EXPECT_EQ(next(true, 500), (Next{1, 400, 500}));
  EXPECT_EQ(next(true, 500), (Next{1, 900, 100}));
  EXPECT_EQ(next(true), kNew);
  EXPECT_FALSE(board_.should_recover()) << "one repair at a time";
  ack(1000, {});
  EXPECT_FALSE(board_.in_timeout());
}

TEST_F(ScoreboardTest, TimeoutInRecovery_StartsOver) {
  ack(0, {{100, 400}});
  recover();
  next();
  board_.on_timeout(*arena_, nxt_);
  EXPECT_FALSE(board_.in_recovery());
  EXPECT_EQ(next(), (Next{1, 0, 100}));
}

TEST_F(ScoreboardTest, SpuriousTimeout_UndoHoldsNothingLost) {
  board_.on_timeout(*arena_, nxt_);
  next();
  board_.undo();
  EXPECT_EQ(board_.pipe(), 1000U);
  EXPECT_TRUE(board_.clean());
}

TEST_F(ScoreboardTest, ReceiverRenegs_TimeoutForgetsItsBlocks) {  // RFC 2018 §8
  ack(0, {{200, 500}});
  EXPECT_TRUE(ack(200, {}).reneged) << "it had 200 and does not acknowledge it";
  EXPECT_TRUE(board_.is_sacked(kBase + 200));
  board_.on_timeout(*arena_, nxt_);
  EXPECT_EQ(board_.lost_bytes(), 800U);
  EXPECT_EQ(arena_.used(), 0U);
}

TEST_F(ScoreboardTest, DuplicateReport_IsReportedAndChangesNothing) {  // RFC 2883 §4
  ack(300, {{500, 700}});
  auto update = ack(300, {{100, 200}, {500, 700}});
  EXPECT_TRUE(update.duplicate_reported);
  EXPECT_EQ(update.duplicate, (SackBlock{kBase + 100, kBase + 200}));
  EXPECT_EQ(update.newly_sacked, 0U);
  update = ack(300, {{550, 600}, {500, 700}});
  EXPECT_TRUE(update.duplicate_reported) << "within the second block";
  EXPECT_EQ(board_.duplicate_acks(), 1U) << "the first ACK's, which brought news";
  EXPECT_EQ(board_.sacked_bytes(), 200U);
}

TEST_F(ScoreboardTest, NonsenseBlocks_AreIgnored) {
  ack(300, {{600, 600}, {700, 650}, {900, 1100}, {300, 400}});
  ack(300, {{800, 800}, {200, 500}, {0, 100}});
  EXPECT_EQ(board_.sacked_bytes(), 0U) << "empty, backwards, never sent, at or below SND.UNA";
  EXPECT_EQ(arena_.used(), 0U);
}

TEST_F(ScoreboardTest, Delivered_CountsEachByteOnce) {
  EXPECT_EQ(ack(0, {{200, 400}}).delivered, 200U);
  EXPECT_EQ(ack(0, {{200, 400}}).delivered, 0U);
  EXPECT_EQ(ack(100, {{200, 500}}).delivered, 200U) << "0 to 100, and 400 to 500";
  EXPECT_EQ(ack(1000, {}).delivered, 600U);
}

TEST_F(ScoreboardTest, HostileRanges_AreBounded) {
  send(10000);
  for (std::uint32_t i = 1; i < 2000; i++) ack(0, {{5 * i, 5 * i + 1}});
  EXPECT_EQ(board_.sacked_bytes(), Scoreboard::kMaxRanges);
  EXPECT_EQ(arena_.used(), 2048U);
  EXPECT_EQ(ack(0, {{1, 10000}}).newly_sacked, 9999 - Scoreboard::kMaxRanges) << "merging needs no place";
}

TEST(Scoreboard, NoMemory_BlocksCountAsNotArrived) {
  Arena arena(1 << 20, 0);
  Scoreboard board;
  board.start(SeqNum{0}, true);
  board.on_sent(SeqNum{0}, 1000);
  const SackBlock block{{100}, {400}};
  EXPECT_EQ(board.on_ack(*arena, SeqNum{0}, SeqNum{1000}, {&block, 1}, true, kMss).newly_sacked, 0U);
  EXPECT_EQ(board.pipe(), 1000U);
}

class NoSackTest : public ScoreboardTest {
 protected:
  NoSackTest() { board_.start(kBase, false), send(0); }
};

TEST_F(NoSackTest, ThreeDuplicates_FirstSegmentIsSentAgain) {  // RFC 5681 §3.2
  nxt_ = kBase + 1000;
  ack(0, {}, true);
  EXPECT_EQ(board_.pipe(), 900U) << "limited transmit, RFC 3042";
  ack(0, {}, true);
  EXPECT_FALSE(board_.should_recover());
  ack(0, {}, true);
  EXPECT_TRUE(board_.should_recover());
  recover();
  EXPECT_EQ(next(true), (Next{1, 0, 100}));
  EXPECT_EQ(board_.pipe(), 700U);
  ack(0, {}, true);
  EXPECT_EQ(board_.pipe(), 600U);
  EXPECT_EQ(next(true), kNew);
}

TEST_F(NoSackTest, PartialAck_NextSegmentIsSentAgain) {  // RFC 6582 §3.2
  for (int i = 0; i < 7; i++) ack(0, {}, true);
  recover();
  next();
  ack(300, {}, false);
  EXPECT_TRUE(board_.in_recovery());
  EXPECT_EQ(board_.duplicate_acks(), 5U) << "two of the seven are acknowledged now";
  EXPECT_EQ(next(), (Next{1, 300, 100}));
  EXPECT_EQ(next(), kNothing);
  EXPECT_EQ(board_.pipe(), 200U);
}

TEST_F(NoSackTest, DuplicatesAfterFullAck_StartNoRecovery) {  // RFC 6582 §4.1
  for (int i = 0; i < 3; i++) ack(0, {}, true);
  recover();
  next();
  send(500);
  ack(1000, {}, false);
  for (int i = 0; i < 3; i++) ack(1000, {}, true);
  EXPECT_FALSE(board_.should_recover());
  ack(1001, {}, false);
  for (int i = 0; i < 3; i++) ack(1001, {}, true);
  EXPECT_TRUE(board_.should_recover());
}

TEST_F(NoSackTest, NothingOutstanding_CountsNoDuplicate) {  // RFC 5681 §2 (a)
  ack(1000, {});
  for (int i = 0; i < 3; i++) ack(1000, {}, true);
  EXPECT_TRUE(board_.clean());
}

TEST_F(NoSackTest, SackBlocksThatWereNotNegotiated_AreIgnored) {
  ack(0, {{100, 900}}, false);
  EXPECT_EQ(board_.sacked_bytes(), 0U);
  EXPECT_TRUE(board_.clean());
}

TEST_F(NoSackTest, Timeout_GoesBackToTheFirst) {
  board_.on_timeout(*arena_, nxt_);
  EXPECT_EQ(next(false, 1000), (Next{1, 0, 1000}));
}

}  // namespace
}  // namespace bypass::tcp
