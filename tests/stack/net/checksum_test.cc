#include "stack/frame/checksum.h"

#include <gtest/gtest.h>

#include <vector>

#include "backends/sim/sim_wire.h"

namespace bypass {
namespace {

// RFC 1071 §1, word by word in network order.
std::uint16_t reference(const std::vector<std::byte>& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i++) {
    const auto v = std::to_integer<std::uint32_t>(bytes[i]);
    sum += i % 2 == 0 ? v << 8 : v;
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

std::vector<std::byte> random_bytes(sim::Random& random, std::size_t len) {
  std::vector<std::byte> bytes(len);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

TEST(Checksum, Rfc1071Example_GivesItsSum) {
  const std::vector<std::byte> bytes{std::byte{0x00}, std::byte{0x01}, std::byte{0xf2}, std::byte{0x03},
                                     std::byte{0xf4}, std::byte{0xf5}, std::byte{0xf6}, std::byte{0xf7}};
  EXPECT_EQ(host_to_be16(checksum_fold(checksum(bytes.data(), bytes.size()))), 0xddf2);
}

TEST(Checksum, EveryLengthAndAlignment_MatchesTheReference) {
  sim::Random random{1};
  for (std::size_t len = 0; len < 200; len++) {
    const auto bytes = random_bytes(random, len);
    for (std::size_t shift = 0; shift < 4; shift++) {
      std::vector<std::byte> shifted(shift + len);
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
      EXPECT_EQ(host_to_be16(checksum_fold(checksum(shifted.data() + shift, len))), reference(bytes)) << len;
    }
  }
}

TEST(Checksum, LongRunsOfOnes_CarryRightly) {
  const std::vector<std::byte> ones(65536, std::byte{0xff});
  EXPECT_EQ(checksum_fold(checksum(ones.data(), ones.size())), 0xffff);
}

TEST(Checksum, CopyAndSum_CopiesAndMatches) {
  sim::Random random{2};
  for (std::size_t len : {0, 1, 7, 31, 32, 33, 1459, 1460, 9001}) {
    const auto from = random_bytes(random, len);
    std::vector<std::byte> to(len + 1, std::byte{0xaa});
    EXPECT_EQ(checksum_fold(copy_checksum(to.data(), from.data(), len)), checksum_fold(checksum(from.data(), len)));
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
    EXPECT_EQ(to[len], std::byte{0xaa});
  }
}

TEST(Checksum, ChainWithOddSplits_SumsAsOneFrame) {
  sim::Random random{3};
  for (int round = 0; round < 200; round++) {
    const auto bytes = random_bytes(random, 1 + random.below(300));
    std::vector<Packet> chain(1 + random.below(5));
    std::size_t at = 0;
    auto whole = bytes;
    for (std::size_t i = 0; i < chain.size(); i++) {
      const bool last = i + 1 == chain.size();
      const std::size_t take = last ? bytes.size() - at : random.below(bytes.size() - at + 1);
      chain[i] = Packet{};
      chain[i].data = whole.data() + at;
      chain[i].len = static_cast<std::uint32_t>(take);
      chain[i].next_segment = last ? nullptr : &chain[i + 1];
      at += take;
    }
    const std::size_t offset = random.below(bytes.size() + 1), len = random.below(bytes.size() - offset + 1);
    EXPECT_EQ(checksum_fold(checksum_frame(chain[0], offset, len)),
              checksum_fold(checksum(bytes.data() + offset, len)));
  }
}

TEST(Checksum, FrameShorterThanAsked_StopsAtItsEnd) {
  std::byte bytes[10];
  std::fill_n(bytes, 10, std::byte{1});
  Packet packet{};
  packet.data = bytes;
  packet.len = 10;
  EXPECT_EQ(checksum_fold(checksum_frame(packet, 4, 1000)), checksum_fold(checksum(bytes + 4, 6)));
}

TEST(Checksum, FinishedSum_IsGoodWhenSummedAgain) {
  sim::Random random{4};
  auto bytes = random_bytes(random, 64);
  bytes[10] = bytes[11] = std::byte{0};
  const std::uint16_t sum = checksum_finish(checksum(bytes.data(), bytes.size()));
  std::memcpy(&bytes[10], &sum, 2);
  EXPECT_TRUE(checksum_is_good(checksum(bytes.data(), bytes.size())));
  bytes[20] ^= std::byte{4};
  EXPECT_FALSE(checksum_is_good(checksum(bytes.data(), bytes.size())));
}

}  // namespace
}  // namespace bypass
