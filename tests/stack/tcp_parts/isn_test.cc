#include "stack/tcp/open/isn.h"

#include <gtest/gtest.h>

#include <array>

namespace bypass::tcp {
namespace {

using namespace std::chrono_literals;

constexpr Secret kSecret{0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr Endpoint kLocal{IpAddress::from_v4(0x0a090001), 6379};
constexpr Endpoint kRemote{IpAddress::from_v4(0x0a090002), 40000};
constexpr Instant kStart{1000s};

std::array<std::byte, 64> counting() {
  std::array<std::byte, 64> bytes;
  for (std::size_t i = 0; i < bytes.size(); i++) bytes[i] = std::byte(i);
  return bytes;
}

TEST(SipHash, Vectors_OfThePaperAndItsReference_Match) {
  // Appendix A of the paper: key 00..0f, message 00..0e. The others are the first vectors of the authors' table.
  const auto bytes = counting();
  EXPECT_EQ(siphash24(kSecret, std::span(bytes).first(15)), 0xa129ca6149be45e5U);
  EXPECT_EQ(siphash24(kSecret, {}), 0x726fdb47dd0e0e31U);
  EXPECT_EQ(siphash24(kSecret, std::span(bytes).first(1)), 0x74f839c593dc67fdU);
  EXPECT_EQ(siphash24(kSecret, std::span(bytes).first(2)), 0x0d6c8009d9a94f5aU);
  EXPECT_EQ(siphash24(kSecret, std::span(bytes).first(8)), 0x93f5f5799a932462U);
  EXPECT_EQ(siphash24(kSecret, std::span(bytes).first(63)), 0x958a324ceb064572U);
}

TEST(InitialSequence, TimePasses_TicksEveryFourMicroseconds) {
  const SeqNum first = initial_sequence(kSecret, kLocal, kRemote, kStart);
  EXPECT_EQ(initial_sequence(kSecret, kLocal, kRemote, kStart + 4us), first + 1);
  EXPECT_EQ(initial_sequence(kSecret, kLocal, kRemote, kStart + 1s), first + 250'000);
}

TEST(InitialSequence, AnyPartDiffers_IsAnother) {
  const SeqNum first = initial_sequence(kSecret, kLocal, kRemote, kStart);
  EXPECT_NE(initial_sequence({1, 2}, kLocal, kRemote, kStart), first);
  EXPECT_NE(initial_sequence(kSecret, kRemote, kLocal, kStart), first);
  EXPECT_NE(initial_sequence(kSecret, kLocal, {kRemote.address, 40001}, kStart), first);
  EXPECT_NE(initial_sequence(kSecret, {kLocal.address, 6380}, kRemote, kStart), first);
}

TEST(TimestampOffset, SamePair_IsTheSameAndNotTheIsn) {
  EXPECT_EQ(timestamp_offset(kSecret, kLocal, kRemote), timestamp_offset(kSecret, kLocal, kRemote));
  EXPECT_NE(timestamp_offset(kSecret, kLocal, kRemote), timestamp_offset(kSecret, kRemote, kLocal));
  EXPECT_NE(timestamp_offset(kSecret, kLocal, kRemote), initial_sequence(kSecret, kLocal, kRemote, Instant{}).v);
}

TEST(EphemeralPort, WholeWalk_VisitsEachPortOnce) {
  const std::uint32_t offset = port_offset(kSecret, kLocal.address, kRemote);
  std::array<int, 100> seen{};
  for (std::uint32_t n = 0; n < 100; n++) seen[ephemeral_port(offset + n, 50000, 50099) - 50000U]++;
  for (int count : seen) EXPECT_EQ(count, 1);
  EXPECT_EQ(ephemeral_port(offset, 65535, 65535), 65535);
  EXPECT_NE(offset, port_offset(kSecret, kLocal.address, {kRemote.address, 40001}));
}

}  // namespace
}  // namespace bypass::tcp
