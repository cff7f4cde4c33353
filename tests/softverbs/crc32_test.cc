// The CRC-32, by each unit that this processor has, against its check value and a computation bit by bit.
#include "softverbs/engine/wire/crc32.h"

#include <gtest/gtest.h>

#include <vector>

namespace bypass::rdma::test {
namespace {

constexpr std::size_t kMost = 1'300;  // several rounds of the widest unit, and every rest

std::vector<std::uint8_t> sample(std::size_t len) {
  std::vector<std::uint8_t> bytes(len);
  for (std::size_t i = 0; i < len; i++) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
  return bytes;
}

// sums[n]: of the first n bytes.
std::vector<std::uint32_t> bit_by_bit(std::uint32_t crc, const std::uint8_t* bytes, std::size_t len) {
  std::vector<std::uint32_t> sums = {crc};
  for (std::size_t i = 0; i < len; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0U);
    sums.push_back(crc);
  }
  return sums;
}

class Crc32 : public testing::TestWithParam<CrcUnit> {
 protected:
  void SetUp() override {
    if (!has_crc_unit(GetParam())) GTEST_SKIP() << "this processor has none";
  }
};

TEST_P(Crc32, MatchesItsCheckValue) {
  EXPECT_EQ(~crc32_update(GetParam(), kCrcStart, "123456789", 9), 0xcbf43926U);
}

TEST_P(Crc32, EveryLengthAndAlignment_IsRight) {
  const std::vector<std::uint8_t> bytes = sample(kMost);
  for (std::size_t offset = 0; offset < 17; offset++) {
    const std::vector<std::uint32_t> sums = bit_by_bit(0x12345678, bytes.data() + offset, kMost - offset);
    for (std::size_t len = 0; len < sums.size(); len++)
      ASSERT_EQ(crc32_update(GetParam(), 0x12345678, bytes.data() + offset, len), sums[len]) << offset << " " << len;
  }
}

INSTANTIATE_TEST_SUITE_P(Units, Crc32,
                         testing::Values(CrcUnit::kTable, CrcUnit::kFolding, CrcUnit::kPairFolding,
                                         CrcUnit::kWideFolding));

}  // namespace
}  // namespace bypass::rdma::test
