#include "stack/tcp/input/options.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace bypass::tcp {
namespace {

std::vector<std::byte> bytes(std::initializer_list<unsigned> list) {
  std::vector<std::byte> out;
  for (unsigned b : list) out.push_back(std::byte(b));
  return out;
}

TEST(Options, None_ParseAsNothing) {
  const auto parsed = parse_options({});
  ASSERT_TRUE(parsed);
  EXPECT_FALSE(parsed->has_timestamps || parsed->has_window_scale || parsed->sack_permitted);
  EXPECT_EQ(parsed->mss, 0);
  EXPECT_EQ(parsed->sack_count, 0);
}

TEST(Options, LinuxSyn_ParsesWhole) {
  const auto syn = bytes({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7});
  const auto parsed = parse_options(syn);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->mss, 1460);
  EXPECT_TRUE(parsed->sack_permitted && parsed->has_timestamps && parsed->has_window_scale);
  EXPECT_EQ(parsed->window_scale, 7);
  EXPECT_EQ(parsed->ts_value, 0x01020304U);
  EXPECT_EQ(parsed->unknown_count, 0);
}

TEST(Options, AlignedTimestamps_FastAndSlowPathAgree) {
  std::byte room[kTimestampsBytes];
  write_timestamps(room, 0xdeadbeef, 0x12345678);
  SegmentOptions fast, slow;
  ASSERT_TRUE(parse_options(room, fast));
  ASSERT_TRUE(parse_any_options(room, slow));
  for (const SegmentOptions& parsed : {fast, slow}) {
    EXPECT_TRUE(parsed.has_timestamps);
    EXPECT_EQ(parsed.ts_value, 0xdeadbeefU);
    EXPECT_EQ(parsed.ts_echo, 0x12345678U);
  }
}

TEST(Options, TwelveBytesOfOtherLayout_TakeTheSlowPath) {
  const auto parsed = parse_options(bytes({8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1}));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->ts_value, 1U);
  EXPECT_EQ(parsed->ts_echo, 2U);
}

TEST(Options, WindowScaleAbove14_CountsAs14) {  // RFC 7323 §2.3
  EXPECT_EQ(parse_options(bytes({3, 3, 200, 1}))->window_scale, 14);
}

TEST(Options, IllegalLength_IsAnError) {
  for (auto list : {bytes({2, 0, 5, 180}), bytes({2, 1, 5, 180}), bytes({2, 5, 5, 180}), bytes({1, 1, 1, 2}),
                    bytes({99, 40, 0, 0}), bytes({8, 10, 0, 0})})
    EXPECT_EQ(parse_options(list).error(), Error::kProtocol);
}

TEST(Options, KnownKindOfWrongLength_IsSkipped) {
  const auto parsed = parse_options(bytes({2, 3, 5, 5, 9, 0, 0, 0, 0, 0, 0, 0, 4, 2, 1, 1}));
  ASSERT_TRUE(parsed) << "an MSS of 3 bytes, a SACK of 9";
  EXPECT_EQ(parsed->mss, 0);
  EXPECT_EQ(parsed->sack_count, 0);
  EXPECT_TRUE(parsed->sack_permitted);
}

TEST(Options, AfterEnd_NothingIsRead) {
  const auto parsed = parse_options(bytes({1, 0, 2, 0}));
  ASSERT_TRUE(parsed) << "an illegal length behind the end does not matter";
  EXPECT_EQ(parsed->mss, 0);
}

TEST(Options, Unknown_AreReportedAsSpansInOrder) {
  const auto list = bytes({253, 4, 0xaa, 0xbb, 1, 2, 4, 5, 180, 254, 2, 0});
  const auto parsed = parse_options(list);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->unknown_count, 2);
  UnknownOption out[4];
  ASSERT_EQ(unknown_options(list, out), 2U);
  EXPECT_EQ(out[0].kind, 253);
  ASSERT_EQ(out[0].body.size(), 2U);
  EXPECT_EQ(out[0].body[1], std::byte{0xbb});
  EXPECT_EQ(out[1].kind, 254);
  EXPECT_TRUE(out[1].body.empty());
  EXPECT_EQ(unknown_options(list, std::span(out, 1)), 1U);
}

TEST(WriteOptions, FullSyn_IsLinuxsLayout) {
  std::byte room[kMaxOptionBytes];
  const std::size_t used = write_syn_options(room, {.mss = 1460,
                                                    .sack_permitted = true,
                                                    .timestamps = true,
                                                    .window_scaling = true,
                                                    .window_scale = 7,
                                                    .ts_value = 0x01020304});
  const auto expected = bytes({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7});
  EXPECT_EQ(std::vector<std::byte>(room, room + used), expected);
}

TEST(WriteOptions, EveryMixOfSynOptions_ParsesBackAligned) {
  for (unsigned mix = 0; mix < 16; mix++) {
    SCOPED_TRACE(mix);
    const SynOptions in{
        static_cast<std::uint16_t>(mix & 1 ? 536 : 0), (mix & 2) != 0, (mix & 4) != 0, (mix & 8) != 0, 9, 11, 12};
    std::byte room[kMaxOptionBytes];
    const std::size_t used = write_syn_options(room, in);
    EXPECT_EQ(used % 4, 0U);
    EXPECT_LE(used, 20U);
    const auto out = parse_options(std::span(room, used));
    ASSERT_TRUE(out);
    EXPECT_EQ(out->mss, in.mss);
    EXPECT_EQ(out->sack_permitted, in.sack_permitted);
    EXPECT_EQ(out->has_timestamps, in.timestamps);
    EXPECT_EQ(out->ts_echo, in.timestamps ? 12U : 0U);
    EXPECT_EQ(out->has_window_scale, in.window_scaling);
    EXPECT_EQ(out->window_scale, in.window_scaling ? 9 : 0);
  }
}

TEST(WriteOptions, SackBesideTimestamps_HoldsThreeBlocks) {
  const SackBlock blocks[4] = {{{1}, {2}}, {{0xfffffff0}, {8}}, {{30}, {40}}, {{50}, {60}}};
  std::byte room[kMaxOptionBytes];
  write_timestamps(room, 5, 6);
  const std::size_t used = kTimestampsBytes + write_sack(std::span(room).subspan(kTimestampsBytes), blocks);
  EXPECT_EQ(used, options_size(true, max_sack_blocks(true)));
  const auto parsed = parse_options(std::span(room, used));
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->sack_count, 3);
  EXPECT_EQ(parsed->sack[1], blocks[1]);
  EXPECT_EQ(parsed->ts_value, 5U);
}

TEST(WriteOptions, SackAlone_HoldsFourBlocksAndNoneWithoutRoom) {
  const SackBlock blocks[4] = {{{1}, {2}}, {{3}, {4}}, {{30}, {40}}, {{50}, {60}}};
  std::byte room[kMaxOptionBytes];
  EXPECT_EQ(write_sack(room, blocks), 36U);
  EXPECT_EQ(parse_options(std::span(room, 36))->sack_count, 4);
  EXPECT_EQ(write_sack(std::span(room).first(11), blocks), 0U);
  EXPECT_EQ(write_sack(room, {}), 0U);
}

TEST(WriteOptions, HookAppendedOddBytes_PaddingEndsTheList) {
  std::byte room[kMaxOptionBytes];
  room[0] = std::byte{253};
  room[1] = std::byte{3};
  room[2] = std::byte{1};
  EXPECT_EQ(pad_options(room, 3), 4U);
  EXPECT_EQ(parse_options(std::span(room, 4))->unknown_count, 1);
  EXPECT_EQ(pad_options(room, 4), 4U);
}

}  // namespace
}  // namespace bypass::tcp
