#include "backends/packet/frames/vnet.h"

#include <gtest/gtest.h>

#include <array>

namespace bypass::packet {
namespace {

// A frame's head as the stack passes it on: Ethernet, IPv4, TCP with timestamps.
class VnetTest : public testing::Test {
 protected:
  void SetUp() override {
    head_.data = bytes_.data();
    head_.len = head_.frame_len = 66;
    head_.l2_len = 14;
    head_.l3_len = 20;
    head_.l4_len = 32;
    bytes_[14] = std::byte{0x45};
  }

  std::array<std::byte, 100> bytes_{};
  Packet head_{};
};

TEST_F(VnetTest, FrameWithoutOffloads_HasAnEmptyHeader) {
  const VnetHeader header = header_of(head_);
  EXPECT_EQ(header.flags, 0);
  EXPECT_EQ(header.gso_type, VnetHeader::kNone);
}

TEST_F(VnetTest, Checksum_SaysWhatIsSummedAndWhereTheSumGoes) {
  head_.flags = kTxL4Checksum;
  VnetHeader header = header_of(head_);
  EXPECT_EQ(header.flags, VnetHeader::kNeedsChecksum);
  EXPECT_EQ(header.csum_start, 34);
  EXPECT_EQ(header.csum_offset, 16);  // RFC 9293 §3.1
  head_.l4_len = 8;
  header = header_of(head_);
  EXPECT_EQ(header.csum_offset, 6);  // RFC 768
}

TEST_F(VnetTest, LargeFrame_SaysHowItIsCut) {
  head_.flags = kTxTso | kTxL4Checksum;
  head_.tso_mss = 1448;
  VnetHeader header = header_of(head_);
  EXPECT_EQ(header.gso_type, VnetHeader::kTcp4);
  EXPECT_EQ(header.gso_size, 1448);
  EXPECT_EQ(header.hdr_len, 66);
  EXPECT_EQ(header.flags, VnetHeader::kNeedsChecksum);
  bytes_[14] = std::byte{0x60};
  header = header_of(head_);
  EXPECT_EQ(header.gso_type, VnetHeader::kTcp6);
}

TEST_F(VnetTest, ReceivedHeader_BecomesFlags) {
  note_header({}, head_);
  EXPECT_EQ(head_.flags, 0) << "a checksum that nobody looked at is the stack's to verify";
  VnetHeader header{};
  header.flags = VnetHeader::kChecksumGood;
  note_header(header, head_);
  EXPECT_EQ(head_.flags, kRxL4ChecksumGood);
  header.flags = VnetHeader::kNeedsChecksum;
  header.gso_type = VnetHeader::kTcp4 | 0x80;  // with ECN
  header.gso_size = 1400;
  note_header(header, head_);
  EXPECT_EQ(head_.flags, kRxL4ChecksumGood | kRxLro);
  EXPECT_EQ(head_.tso_mss, 1400);
}

TEST_F(VnetTest, Pieces_AreTheSegmentsAndWhatLiesOutside) {
  Packet second{};
  second.data = bytes_.data() + 70;
  second.len = 10;
  head_.next_segment = &second;
  std::array<std::byte, 5> ring{};
  head_.external[0] = ring.data();
  head_.external_len[0] = 3;
  head_.external[1] = ring.data() + 3;
  head_.external_len[1] = 2;
  std::array<iovec, kMaxPieces> pieces{};
  ASSERT_EQ(gather(head_, pieces), 4U);
  const std::size_t sizes[] = {66, 10, 3, 2};
  const void* const starts[] = {bytes_.data(), second.data, ring.data(), ring.data() + 3};
  for (std::size_t i = 0; i < 4; i++) {
    EXPECT_EQ(pieces[i].iov_len, sizes[i]);
    EXPECT_EQ(pieces[i].iov_base, starts[i]);
  }
}

}  // namespace
}  // namespace bypass::packet
