#include "backends/packet/frames/frame_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace bypass::packet {
namespace {

class FramePoolTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kBuffers = 256;  // the least

  void SetUp() override {
    std::string problem;
    ASSERT_TRUE(
        pool_.create(FramePool::kLarge, std::size_t{kBuffers} * FramePool::kLarge.element, 3, Hugepages::kOff, problem))
        << problem;
  }

  FramePool pool_;
};

TEST_F(FramePoolTest, Frames_BeginBehindTheHeadroomAndKnowTheirPort) {
  Packet* const frame = pool_.take();
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->headroom(), kTxHeadroom);
  EXPECT_EQ(frame->tailroom(), FramePool::kLargeRoom);
  EXPECT_EQ(frame->port, 3);
  EXPECT_EQ(pool_.free_count(), kBuffers - 1);
  pool_.free_frame(frame);
  EXPECT_EQ(pool_.take(), frame) << "the warmest buffer comes first";
  pool_.free_frame(frame);
}

TEST_F(FramePoolTest, PoolThatRunsDry_GivesWhatItHasAndCounts) {
  std::vector<Packet*> all(kBuffers + 10);
  ASSERT_EQ(pool_.alloc(all), kBuffers);
  EXPECT_EQ(pool_.ran_dry(), 1U);
  all.resize(kBuffers);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "one buffer was given out twice";
  for (Packet* each : all) pool_.free_frame(each);
  EXPECT_EQ(pool_.free_count(), kBuffers);
}

TEST_F(FramePoolTest, FrameOf64KiB_LiesInAChainAndComesBackWhole) {
  std::vector<std::byte> bytes(65'549);
  for (std::size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<std::byte>(i % 251);
  Packet* const head = pool_.copy_in(bytes);
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->frame_len, bytes.size());
  std::vector<std::byte> read;
  for (const Packet* p = head; p != nullptr; p = p->next_segment)
    read.insert(read.end(), p->bytes().begin(), p->bytes().end());
  EXPECT_EQ(read, bytes);
  pool_.free_frame(head);
  EXPECT_EQ(pool_.free_count(), kBuffers);
}

TEST_F(FramePoolTest, FrameThatDoesNotFit_LeavesNothingOut) {
  std::vector<Packet*> most(kBuffers - 2);
  ASSERT_EQ(pool_.alloc(most), most.size());
  const std::vector<std::byte> bytes(3 * FramePool::kLargeRoom);
  EXPECT_EQ(pool_.copy_in(bytes), nullptr);
  EXPECT_EQ(pool_.free_count(), 2U);
  for (Packet* each : most) pool_.free_frame(each);
}

}  // namespace
}  // namespace bypass::packet
