#include "stack/tcp/seq.h"

#include <gtest/gtest.h>

namespace bypass::tcp {
namespace {

constexpr SeqNum kLast{0xffffffff};

TEST(SeqNum, Comparison_AcrossWrapAround_FollowsTheCircle) {
  static_assert(before(kLast, SeqNum{0}));
  static_assert(after(SeqNum{5}, kLast - 10));
  static_assert(before_or_at(kLast, kLast) && after_or_at(kLast, kLast));
  static_assert(!before(kLast, kLast) && !after(kLast, kLast));
  EXPECT_EQ(kLast + 1, SeqNum{0});
  EXPECT_EQ(SeqNum{0} - 1, kLast);
}

TEST(SeqNum, Difference_AcrossWrapAround_IsSigned) {
  EXPECT_EQ(SeqNum{2} - kLast, 3);
  EXPECT_EQ(kLast - SeqNum{2}, -3);
  EXPECT_EQ(distance(kLast, SeqNum{2}), 3U);
}

TEST(SeqNum, Comparison_JustBelowHalfTheCircle_IsStillDefined) {
  const SeqNum a{0x80000000};
  EXPECT_TRUE(before(a, a + 0x7fffffff));
  EXPECT_TRUE(after(a, a - 0x7fffffff));
}

TEST(SeqNum, EarlierLater_AcrossWrapAround_PickByOrderNotByValue) {
  EXPECT_EQ(earlier(SeqNum{3}, kLast), kLast);
  EXPECT_EQ(later(SeqNum{3}, kLast), SeqNum{3});
}

TEST(SeqNum, InWindow_WindowWraps_HoldsBothParts) {
  EXPECT_TRUE(in_window(kLast, kLast - 1, 4));
  EXPECT_TRUE(in_window(SeqNum{1}, kLast - 1, 4));
  EXPECT_FALSE(in_window(SeqNum{2}, kLast - 1, 4));
  EXPECT_FALSE(in_window(kLast - 2, kLast - 1, 4));
  EXPECT_FALSE(in_window(kLast, kLast, 0)) << "a window of 0 holds nothing";
}

TEST(SeqNum, StreamOffset_ManyWraps_ReturnsToTheSequenceNumber) {
  const SeqNum base{0xfffffff0};
  const std::uint64_t base_offset = (std::uint64_t{7} << 32) + 100;
  EXPECT_EQ(stream_offset(base + 0x20, base, base_offset), base_offset + 0x20);
  EXPECT_EQ(stream_offset(base - 0x20, base, base_offset), base_offset - 0x20);
  for (std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1} << 31, std::uint64_t{5} << 32})
    EXPECT_EQ(sequence_at(base_offset + step, base, base_offset), base + static_cast<std::uint32_t>(step));
}

}  // namespace
}  // namespace bypass::tcp
