// The lane protocol over RC queue pairs. It shows what tests/fastpath/random_test.cc shows over the simulated link, on
// a wire that loses frames, with queue pairs that break in the middle of a batch. Every byte arrives once and in order.
//
// A failure prints its seed. BYPASS_TEST_SEED=n runs only that seed, BYPASS_TEST_LONG=1 runs ten times as many.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "hosts.h"
#include "long_form.h"

namespace bypass::verbs {
namespace {

using fastpath::test::HostsConfig;

std::uint64_t number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

struct Sum {
  std::uint64_t lane_bytes = 0;
  unsigned deaths = 0, links = 0;
  std::uint64_t runs = 0;
};

template <typename MakeConfig>
Sum run_seeds(std::uint64_t count, MakeConfig make) {
  const std::uint64_t only = number("BYPASS_TEST_SEED");
  count = bypass::test::tries(count, 10);
  Sum sum;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : count); seed++) {
    RcHosts::Config config;
    make(seed, config.hosts, config.joint);
    config.joint.spec.timeout = 8;  // 1 ms
    config.joint.spec.window = static_cast<std::uint16_t>(config.hosts.window);
    RcHosts run(seed, config);
    EXPECT_TRUE(run.hosts->run()) << "BYPASS_TEST_SEED=" << seed << "\n" << run.hosts->report();
    sum.lane_bytes += run.hosts->lane_bytes();
    sum.deaths += run.hosts->deaths();
    sum.runs++;
    sum.links += run.links;
    if (::testing::Test::HasFailure()) break;
  }
  return sum;
}

TEST(RcLanes, HundredsOfSeeds) {
  const Sum sum = run_seeds(500, [](std::uint64_t seed, HostsConfig& config, RcJoint::Config& joint) {
    config.connections = 1 + seed % 4;
    config.kills = static_cast<unsigned>(seed % 5);
    config.window = seed % 3 == 0 ? 16 : 64;
    joint.loss = seed % 2 == 0 ? 0.01 : 0;
    joint.spec.depth = seed % 7 == 0 ? 64 : 512;
  });
  EXPECT_GT(sum.lane_bytes, 4000 * sum.runs) << "the lanes are used";
  EXPECT_GT(sum.deaths, sum.runs / 2);
  EXPECT_GT(sum.links, sum.runs * 6 / 5) << "and links come again";
}

TEST(RcLanes, SixtyFourLanesOnALinkThatDiesFiftyTimes) {
  const Sum sum = run_seeds(1, [](std::uint64_t, HostsConfig& config, RcJoint::Config&) {
    config.connections = 64;
    config.bytes = 1'500'000;
    config.kills = 50;
  });
  EXPECT_GT(sum.lane_bytes, 1'000'000U);
  EXPECT_GE(sum.deaths, 50U);
}

// As many connections as a server has, over one queue pair.
TEST(RcLanes, TenThousandOverOneQueuePair) {
  if (bypass::test::is_sanitized() && !bypass::test::long_form()) GTEST_SKIP() << "the release build runs it";
  using Clock = std::chrono::steady_clock;
  RcHosts::Config config;
  config.hosts.connections = 10'000;
  config.hosts.bytes = 3'000;
  config.hosts.kills = 0;
  config.hosts.leaves = false;
  config.hosts.buffer_log2 = 11;
  config.hosts.window = 512;
  config.joint.spec.timeout = 8;
  const auto began = Clock::now();
  RcHosts run(1, config);
  EXPECT_TRUE(run.hosts->run()) << run.hosts->report().substr(0, 1000);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  EXPECT_EQ(run.links, 1U);
  EXPECT_GT(run.hosts->lane_bytes(), 1'000'000U);
  RecordProperty("milliseconds", static_cast<int>(took.count()));
  RecordProperty("bytes_of_lane", static_cast<int>(sizeof(fastpath::Lane) + sizeof(fastpath::CreditBlock)));
  std::printf("10,000 lanes, %llu bytes over them: %lld ms; a lane %zu bytes, its credit block %zu, its ring 4096\n",
              static_cast<unsigned long long>(run.hosts->lane_bytes()), static_cast<long long>(took.count()),
              sizeof(fastpath::Lane), sizeof(fastpath::CreditBlock));
}

}  // namespace
}  // namespace bypass::verbs
