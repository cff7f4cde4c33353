// A frame above the MTU, in the pieces that a card makes.
#include "softverbs/engine/wire/large_frame.h"

#include <gtest/gtest.h>

#include <vector>

#include "stack/frame/checksum.h"

namespace bypass::rdma::test {
namespace {

constexpr std::size_t kIp = sizeof(wire::Ethernet), kTcp = kIp + 20, kHeaders = kTcp + 20;
constexpr std::uint32_t kMtu = 1500;

struct Large {
  explicit Large(std::size_t payload) : bytes(kHeaders + payload) {
    for (std::size_t i = 0; i < payload; i++) bytes[kHeaders + i] = static_cast<std::byte>(i % 251);
    auto& ethernet = *reinterpret_cast<wire::Ethernet*>(bytes.data());
    ethernet.type = wire::kEtherTypeIpv4;
    auto& ip = *reinterpret_cast<wire::Ipv4*>(bytes.data() + kIp);
    bytes[kIp] = std::byte{0x45};
    ip.total_len = static_cast<std::uint16_t>(40 + payload);
    ip.id = 0xffff;
    ip.protocol = wire::kProtocolTcp;
    bytes[kTcp + 4] = bytes[kTcp + 5] = bytes[kTcp + 6] = std::byte{0xff};  // the sequence number wraps on the way
    bytes[kTcp + 12] = std::byte{0x50};
    bytes[kTcp + 13] = std::byte{0x99};  // CWR, ACK, PSH, FIN
    // The frame lies in two buffers. The first ends inside the payload.
    const std::size_t first = std::min<std::size_t>(bytes.size(), 1000);
    segments[0].data = bytes.data();
    segments[0].len = static_cast<std::uint32_t>(first);
    segments[0].frame_len = static_cast<std::uint32_t>(bytes.size());
    segments[1].data = bytes.data() + first;
    segments[1].len = static_cast<std::uint32_t>(bytes.size() - first);
    if (segments[1].len != 0) segments[0].next_segment = &segments[1];
  }

  std::vector<std::byte> bytes;
  Packet segments[2]{};
};

std::vector<std::byte> read(LargeFrame& large) {
  std::vector<std::byte> piece(large.length());
  for (std::size_t at = 0; at < piece.size();) {  // in odd portions, as scattered buffers take it
    const std::size_t n = std::min<std::size_t>(7 + at, piece.size() - at);
    large.copy(piece.data() + at, n);
    at += n;
  }
  return piece;
}

TEST(LargeFrame, Pieces_AreWhatACardWouldSend) {
  Large frame(4000);
  LargeFrame large(frame.segments[0], kMtu);
  std::vector<std::byte> payload;
  std::uint16_t id = 0xffff;
  std::uint32_t sequence = 0xffffff00;
  unsigned pieces = 0;
  while (large.next()) {
    const std::vector<std::byte> piece = read(large);
    const auto& ip = *reinterpret_cast<const wire::Ipv4*>(piece.data() + kIp);
    EXPECT_LE(piece.size(), kMtu + kIp);
    EXPECT_EQ(std::uint16_t{ip.total_len}, piece.size() - kIp);
    EXPECT_EQ(std::uint16_t{ip.id}, id++);
    EXPECT_EQ(checksum_finish(checksum(&ip, 20)), 0);
    EXPECT_EQ(std::uint32_t{*reinterpret_cast<const wire::Be32*>(piece.data() + kTcp + 4)}, sequence);
    const bool first = pieces == 0, last = payload.size() + piece.size() - kHeaders == 4000;
    EXPECT_EQ(piece[kTcp + 13], std::byte{static_cast<std::uint8_t>(0x10 | (first ? 0x80 : 0) | (last ? 0x09 : 0))});
    sequence += static_cast<std::uint32_t>(piece.size() - kHeaders);
    payload.insert(payload.end(), piece.begin() + kHeaders, piece.end());
    pieces++;
  }
  EXPECT_EQ(pieces, 3U);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), frame.bytes.begin() + kHeaders, frame.bytes.end()));
}

TEST(LargeFrame, PiecesThatNobodyReads_ArePassedOver) {
  Large frame(4000);
  LargeFrame large(frame.segments[0], kMtu);
  std::array<std::byte, 100> some;
  large.next();
  large.next();
  large.copy(some.data(), some.size());
  ASSERT_TRUE(large.next());
  const std::vector<std::byte> piece = read(large);
  const auto before = static_cast<std::ptrdiff_t>(kHeaders + 2 * (kMtu - 40));
  EXPECT_TRUE(std::equal(piece.begin() + kHeaders, piece.end(), frame.bytes.begin() + before, frame.bytes.end()));
}

TEST(LargeFrame, SegmentSizeThatTheFrameTells_IsKept) {
  Large frame(3000);
  frame.segments[0].tso_mss = 1000;
  LargeFrame large(frame.segments[0], kMtu);
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(large.next());
    EXPECT_EQ(read(large).size(), 1000 + kHeaders);
  }
  EXPECT_FALSE(large.next());
}

TEST(LargeFrame, AnythingElse_StaysWhole) {
  const auto cut = [](auto change) {
    Large frame(4000);
    change(frame);
    return LargeFrame(frame.segments[0], kMtu).next();
  };
  EXPECT_TRUE(cut([](Large&) {}));
  EXPECT_FALSE(cut([](Large& f) { f.bytes[12] = std::byte{0x86}; })) << "another protocol than IPv4";
  EXPECT_FALSE(cut([](Large& f) { f.bytes[kIp] = std::byte{0x44}; })) << "an IP header of 16 bytes";
  EXPECT_FALSE(cut([](Large& f) { f.bytes[kIp + 6] = std::byte{0x20}; })) << "a fragment";
  EXPECT_FALSE(cut([](Large& f) { f.bytes[kIp + 9] = std::byte{17}; })) << "UDP";
  EXPECT_FALSE(cut([](Large& f) { f.bytes[kIp + 2] = std::byte{0xff}; })) << "longer than the frame";
  EXPECT_FALSE(cut([](Large& f) { f.bytes[kTcp + 12] = std::byte{0x10}; })) << "a TCP header of 4 bytes";
  EXPECT_FALSE(cut([](Large& f) { f.segments[0].len = 30; })) << "headers over two buffers";
}

}  // namespace
}  // namespace bypass::rdma::test
