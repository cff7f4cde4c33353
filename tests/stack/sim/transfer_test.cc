// Two stacks, a bad wire, 10 MB both ways: the bytes arrive whole and in order. A failing seed is printed;
// BYPASS_TEST_SEED=n replays it alone, BYPASS_TEST_LONG=1 runs 200 seeds of 100 MB.
#include "stack/sim/transfer.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "long_form.h"

namespace bypass::test {
namespace {

constexpr std::size_t kShort = 10'000'000, kLong = 100'000'000;
constexpr std::uint64_t kShortSeeds = tries(20, 1, false), kLongSeeds = 200;

void run_seed(std::uint64_t seed, std::size_t bytes) {
  const TransferConfig config = transfer_of(seed, bytes);
  EXPECT_EQ(run_transfer(config), "") << "BYPASS_TEST_SEED=" << seed << " replays this (" << config.text << ")";
}

class Transfer : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Transfer, BadWire_ArrivesWhole) {
  run_seed(GetParam(), kShort);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Transfer, testing::Range(std::uint64_t{0}, kShortSeeds));

TEST(TransferLong, ManySeeds_ArriveWhole) {
  if (!long_form()) GTEST_SKIP() << "BYPASS_TEST_LONG=1 runs it";
  for (std::uint64_t seed = 0; seed < kLongSeeds && !HasFailure(); seed++) run_seed(seed, kLong);
}

TEST(TransferReplay, SeedFromEnvironment_ArrivesWhole) {
  const char* text = std::getenv("BYPASS_TEST_SEED");
  if (text == nullptr) GTEST_SKIP() << "BYPASS_TEST_SEED=n replays one seed";
  run_seed(std::strtoull(text, nullptr, 10), long_form() ? kLong : kShort);
}

}  // namespace
}  // namespace bypass::test
