#include "runtime/routing/routes.h"

#include <gtest/gtest.h>

#include "config/environment.h"
#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

IpAddress ip(std::string_view text) {
  return *parse_ip(text);
}

const Config& two_ports() {
  static const Config config = from_environment(
      {"BYPASS_PORT=tap:a;tap:b", "BYPASS_ADDR=10.9.0.1/16;10.9.8.1/24,fd09::1/64", "BYPASS_GATEWAY=;10.9.8.254"});
  EXPECT_EQ(messages(config), "");
  return config;
}

TEST(Routes, LongestPrefix_Wins) {
  const Routes routes(two_ports());
  EXPECT_EQ(routes.port_to(ip("10.9.1.1")), 0U);
  EXPECT_EQ(routes.port_to(ip("10.9.8.7")), 1U);
}

TEST(Routes, Gateway_ReachesTheRestOfItsFamilyAndOwnsNoneOfIt) {
  const Routes routes(two_ports());
  EXPECT_EQ(routes.port_to(ip("192.0.2.1")), 1U);
  EXPECT_EQ(routes.port_to(ip("2001:db8::1")), std::nullopt);
  EXPECT_FALSE(routes.on_link(ip("192.0.2.1")));
  EXPECT_TRUE(routes.on_link(ip("10.9.8.7")));
  EXPECT_TRUE(routes.on_link(ip("fd09::7")));
}

TEST(Routes, Loopback_IsReachedByNoPort) {
  const Routes routes(two_ports());
  for (const char* address : {"127.0.0.1", "127.5.5.5", "::1"}) {
    EXPECT_EQ(routes.port_to(ip(address)), std::nullopt) << address;
    EXPECT_FALSE(routes.on_link(ip(address))) << address;
  }
}

TEST(Routes, PrefixOfLengthZero_IsARouteAndOwnsItsOwnAddressOnly) {
  const Config config = from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/0"});
  ASSERT_EQ(messages(config), "");
  const Routes routes(config);
  EXPECT_EQ(routes.port_to(ip("192.0.2.1")), 0U);
  EXPECT_FALSE(routes.on_link(ip("192.0.2.1")));
  EXPECT_TRUE(routes.on_link(ip("10.9.0.1")));
  EXPECT_EQ(routes.port_to(ip("127.0.0.1")), std::nullopt);
}

TEST(Routes, PrefixAroundLoopback_DoesNotTakeIt) {
  const Config config = from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=126.0.0.1/7"});
  ASSERT_EQ(messages(config), "");
  const Routes routes(config);
  EXPECT_TRUE(routes.on_link(ip("126.3.0.1")));
  EXPECT_FALSE(routes.on_link(ip("127.0.0.1")));
  EXPECT_EQ(routes.port_to(ip("127.0.0.1")), std::nullopt);
}

}  // namespace
}  // namespace bypass::runtime
