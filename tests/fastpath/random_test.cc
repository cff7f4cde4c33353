// Many connections over one simulated link that dies again and again. Every byte arrives once and in order.
//
// A failure prints its seed. BYPASS_TEST_SEED=n runs only that seed, BYPASS_TEST_LONG=1 runs ten times as many.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fastpath/hosts.h"
#include "long_form.h"

namespace bypass::fastpath::test {
namespace {

std::uint64_t number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

struct Sum {
  std::uint64_t lane_bytes = 0;
  unsigned deaths = 0;
  std::uint64_t runs = 0;
};

template <typename MakeConfig>
Sum run_seeds(std::uint64_t count, MakeConfig make_config) {
  const std::uint64_t only = number("BYPASS_TEST_SEED");
  count = bypass::test::tries(count, 10);
  Sum sum;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : count); seed++) {
    Hosts hosts(seed, make_config(seed));
    EXPECT_TRUE(hosts.run()) << "BYPASS_TEST_SEED=" << seed << "\n" << hosts.report();
    sum.lane_bytes += hosts.lane_bytes();
    sum.deaths += hosts.deaths();
    sum.runs++;
    if (::testing::Test::HasFailure()) break;
  }
  return sum;
}

TEST(LaneTransfer, ThousandsOfSeeds) {
  const Sum sum = run_seeds(2000, [](std::uint64_t seed) {
    HostsConfig config;
    config.connections = 1 + seed % 4;
    config.kills = static_cast<unsigned>(seed % 5);
    config.window = seed % 3 == 0 ? 16 : 64;
    config.link.queue = seed % 2 == 0 ? 4 : 64;
    config.gathers = seed % 8 < 3;
    config.link.reorder_lanes = seed % 7 == 0;
    config.link.jitter = Duration{static_cast<std::int64_t>(seed % 11 * 1000)};
    return config;
  });
  EXPECT_GT(sum.lane_bytes, 5000 * sum.runs) << "the lanes are used";
  EXPECT_GT(sum.deaths, sum.runs / 2);
}

TEST(LaneTransfer, SixtyFourLanesOnALinkThatDiesFiftyTimes) {
  const Sum sum = run_seeds(1, [](std::uint64_t) {
    HostsConfig config;
    config.connections = 64;
    config.bytes = 1'500'000;
    config.kills = 50;
    return config;
  });
  EXPECT_GT(sum.lane_bytes, 1'000'000U);
  EXPECT_GE(sum.deaths, 50U);
}

}  // namespace
}  // namespace bypass::fastpath::test
