// A hostile peer writes anything, at any time, to everything that it can write: rings, credit blocks, the link's own
// block, messages, the framed stream. It may end its own connections. No byte of others is lost, and nothing crashes.
// (This runs under AddressSanitizer as well.)
#include <gtest/gtest.h>

#include <algorithm>

#include "fastpath/hostile.h"

namespace bypass::fastpath::test {
namespace {

/// It changes memory, and a message comes, as soon as the call is made.
Hostile::Means at_once(Hosts& hosts) {
  return {.place =
              [&hosts](std::uint64_t to, std::span<const std::byte> bytes) {
                std::copy(bytes.begin(), bytes.end(), hosts.cable().end(0).writable_memory().subspan(to).begin());
              },
          .tell = [&hosts](const Arrival& message) { hosts.cable().end(0).inject(message); }};
}

TEST(LaneFuzz, OneLaneHostile_TheOthersAreUnharmed) {
  unsigned ended = 0, lane_bytes = 0;
  for (std::uint64_t seed = 1; seed <= 100; seed++) {
    SCOPED_TRACE(seed);
    HostsConfig config;
    config.connections = 5;
    config.kills = 0;
    Hosts hosts(seed, config);
    Hostile hostile(hosts, at_once(hosts));
    hosts.give_up(0);
    const auto misbehave = [&] {
      if (hosts.random().chance(0.3)) hostile.scribble(sizeof(LinkBlock), sizeof(CreditBlock));
      if (hosts.random().chance(0.3)) hostile.scribble(hosts.address(0).ring, 1U << kMinRingLog2);
      if (hosts.random().chance(seed % 2 == 0 ? 0.05 : 0.0)) hostile.message(0);
      if (hosts.random().chance(seed % 3 == 0 ? 0.05 : 0.0)) hostile.record(0);
      expect_sane(hosts, 0);
    };
    for (int turn = 0; turn < 20'000 && !hosts.done() && !HasFatalFailure(); turn++) {
      misbehave();
      hosts.step();
    }
    EXPECT_TRUE(hosts.report().empty()) << hosts.report();
    ended += hosts.stream(0, 0).lane.broken() ? 1U : 0U;
    lane_bytes += hosts.lane_bytes() != 0 ? 1U : 0U;
    if (HasFailure()) return;
  }
  EXPECT_GT(ended, 50U) << "most of what it does is noticed";
  EXPECT_GT(lane_bytes, 90U);
}

TEST(LaneFuzz, EverythingWritable_IsSurvived) {
  std::uint64_t messages = 0;
  for (std::uint64_t seed = 1; seed <= 150; seed++) {
    SCOPED_TRACE(seed);
    HostsConfig config;
    config.connections = 4;
    config.kills = 0;
    Hosts hosts(seed, config);
    Hostile hostile(hosts, at_once(hosts));
    for (std::size_t i = 0; i < 4; i++) hosts.give_up(i);
    const std::uint64_t all = hosts.cable().end(0).writable_memory().size();
    for (int turn = 0; turn < 400; turn++) {
      const std::size_t i = hosts.random().below(4);
      if (hosts.random().chance(0.5)) hostile.scribble(0, hosts.random().chance(0.5) ? 128 : all);
      if (hosts.random().chance(0.1)) hostile.message(static_cast<std::uint16_t>(i));
      if (hosts.random().chance(0.005)) hostile.message(static_cast<std::uint16_t>(hosts.random().next()));
      if (hosts.random().chance(0.05)) hostile.record(i);
      hosts.step();
      for (std::size_t k = 0; k < 4; k++) expect_sane(hosts, k);
      if (HasFailure()) return;
    }
    messages += hostile.messages();
  }
  EXPECT_GT(messages, 5'000U);
}

}  // namespace
}  // namespace bypass::fastpath::test
