#include "backends/packet/frames/udp_segments.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "packet/frames.h"

namespace bypass::packet {
namespace {

VnetHeader segments_of(std::uint16_t size) {
  VnetHeader header{};
  header.gso_type = VnetHeader::kUdpDatagrams;
  header.gso_size = size;
  return header;
}

class UdpSegmentsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string problem;
    ASSERT_TRUE(pool_.create(FramePool::kLarge, 1, 0, Hugepages::kOff, problem)) << problem;
  }
  std::vector<Packet*> split(const Bytes& frame, std::uint16_t size) {
    std::vector<Packet*> all;
    for (Packet* p = split_datagrams(pool_, frame, segments_of(size)); p != nullptr; p = p->queue_next)
      all.push_back(p);
    return all;
  }

  FramePool pool_;
};

TEST_F(UdpSegmentsTest, Frame_BecomesDatagramsWithLengthsOfTheirOwn) {
  const Bytes frame = make_frame(kProtocolUdp, 2500);
  const auto datagrams = split(frame, 1000);
  ASSERT_EQ(datagrams.size(), 3U);
  const std::size_t sizes[] = {1000, 1000, 500};
  Bytes payload;
  for (std::size_t i = 0; i < 3; i++) {
    const Packet& p = *datagrams[i];
    EXPECT_EQ(p.frame_len, kUdpPayload + sizes[i]);
    EXPECT_EQ(get16(p.data + kIp + 2), 20 + 8 + sizes[i]);
    EXPECT_EQ(get16(p.data + kUdp + 4), 8 + sizes[i]);
    EXPECT_EQ(p.flags, kRxIpChecksumGood | kRxL4ChecksumGood);
    payload.insert(payload.end(), p.data + kUdpPayload, p.data + p.len);
  }
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), frame.begin() + kUdpPayload, frame.end()));
}

TEST_F(UdpSegmentsTest, FramesThatAreNotWhatTheyShouldBe_AreRefused) {
  EXPECT_TRUE(split(make_frame(kProtocolUdp, 100), 0).empty());
  EXPECT_TRUE(split(make_frame(kProtocolUdp, 20'000), 9'000).empty());  // more than a buffer holds
  EXPECT_TRUE(split(make_frame(kProtocolUdp, 0), 100).empty());
  Bytes frame = make_frame(kProtocolUdp, 100);
  frame[kIp] = std::byte{0x65};
  EXPECT_TRUE(split(frame, 50).empty());
  frame[kIp] = std::byte{0x41};
  EXPECT_TRUE(split(frame, 50).empty());
  for (std::size_t length = 0; length <= kUdpPayload; length++)
    EXPECT_TRUE(split(Bytes(length, std::byte{0x45}), 50).empty()) << length;
}

TEST_F(UdpSegmentsTest, PoolThatRunsDry_LosesTheLastDatagrams) {
  std::vector<Packet*> most(pool_.total() - 2);
  ASSERT_EQ(pool_.alloc(most), most.size());
  EXPECT_EQ(split(make_frame(kProtocolUdp, 500), 100).size(), 2U);
}

}  // namespace
}  // namespace bypass::packet
