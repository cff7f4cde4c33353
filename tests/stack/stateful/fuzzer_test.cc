// What peers, program, memory and time do to the stack, at random: see fuzzer.h. A failing seed is printed.
//
//   BYPASS_TEST_SEED=n build/bin/stack_stateful_test                       replays it; BYPASS_TEST_TRACE=1 prints each
//   step BYPASS_TEST_STEPS=1000000 build/bin/stack_stateful_test                takes so many steps, with seeds of its
//   own
#include "stack/stateful/fuzzer.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace bypass::test {
namespace {

constexpr unsigned kSteps = 3000;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 100, kParts = 1;
#else
constexpr std::uint64_t kSeeds = 1000, kParts = 4;
#endif

std::uint64_t from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

void run_seed(std::uint64_t seed) {
  const auto fuzzer = std::make_unique<Fuzzer>(seed);
  EXPECT_EQ(fuzzer->run(kSteps), "") << "BYPASS_TEST_SEED=" << seed << " replays this";
}

class Stateful : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Stateful, AnythingAtAnyTime_KeepsEveryRule) {
  const std::uint64_t part = kSeeds / kParts;
  for (std::uint64_t i = 0; i < part && !HasFailure(); i++) run_seed(GetParam() * part + i);
}
INSTANTIATE_TEST_SUITE_P(Parts, Stateful, testing::Range(std::uint64_t{0}, kParts));

TEST(StatefulReplay, SeedFromEnvironment_KeepsEveryRule) {
  if (std::getenv("BYPASS_TEST_SEED") == nullptr) GTEST_SKIP() << "BYPASS_TEST_SEED=n replays one seed";
  run_seed(from_environment("BYPASS_TEST_SEED"));
}

TEST(StatefulLong, SoManySteps_KeepEveryRule) {
  const std::uint64_t steps = from_environment("BYPASS_TEST_STEPS");
  if (steps == 0) GTEST_SKIP() << "BYPASS_TEST_STEPS=n takes n steps with seeds that the short form does not have";
  const std::uint64_t first = from_environment("BYPASS_TEST_FIRST_SEED") + 1'000'000;
  for (std::uint64_t seed = first; (seed - first) * kSteps < steps && !HasFailure(); seed++) run_seed(seed);
}

}  // namespace
}  // namespace bypass::test
