#include "backends/packet/frames/partial_checksum.h"

#include <gtest/gtest.h>

#include "packet/frames.h"

namespace bypass::packet {
namespace {

// The pseudo header of make_frame()'s addresses, by hand: 0a09 + 0002 + 0a09 + 0001 + protocol + length.
std::size_t pseudo_sum(std::uint8_t protocol, std::size_t l4_bytes) {
  return 0x0a09 + 2 + 0x0a09 + 1 + protocol + l4_bytes;
}

TEST(PartialChecksum, FieldWithThePseudoHeadersSum_IsOne) {
  Bytes udp = make_frame(kProtocolUdp, 100);
  put16(udp, kUdp + 6, pseudo_sum(kProtocolUdp, 108));
  EXPECT_TRUE(has_partial_checksum(udp));
  Bytes tcp = make_frame(kProtocolTcp, 1000);
  put16(tcp, kUdp + 16, pseudo_sum(kProtocolTcp, 1020));
  EXPECT_TRUE(has_partial_checksum(tcp));
}

TEST(PartialChecksum, AnyOtherField_IsNone) {
  Bytes udp = make_frame(kProtocolUdp, 100);
  EXPECT_FALSE(has_partial_checksum(udp));
  put16(udp, kUdp + 6, 0xffff ^ pseudo_sum(kProtocolUdp, 108));  // inverted: made, over nothing but the pseudo header
  EXPECT_FALSE(has_partial_checksum(udp));
}

TEST(PartialChecksum, FrameThatIsCutAnywhere_IsNoneAndIsNotReadBeyondItsEnd) {
  Bytes tcp = make_frame(kProtocolTcp, 10);
  put16(tcp, kUdp + 16, pseudo_sum(kProtocolTcp, 30));
  for (std::size_t length = 0; length < kUdp + 18; length++) {
    const Bytes cut(tcp.begin(), tcp.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(has_partial_checksum(cut)) << length;
  }
}

TEST(PartialChecksum, HeaderLengthsThatLie_AreNone) {
  Bytes tcp = make_frame(kProtocolTcp, 0);
  tcp[kIp] = std::byte{0x4f};  // 60 bytes of IP header in a frame of 54
  EXPECT_FALSE(has_partial_checksum(tcp));
  put16(tcp, kIp + 2, 3);  // a total shorter than the header
  EXPECT_FALSE(has_partial_checksum(tcp));
}

}  // namespace
}  // namespace bypass::packet
