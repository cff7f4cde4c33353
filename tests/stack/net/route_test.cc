#include "stack/ip/route.h"

#include <gtest/gtest.h>

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

std::uint32_t v4(const char* text) {
  return ip(text).v4();
}

class Routes : public testing::Test {
 protected:
  Result<bool> set(std::uint16_t port, std::initializer_list<Prefix> addresses, const char* gateway = nullptr,
                   std::uint32_t mtu = 1500) {
    return table.set(port, {.mac = mac(port + 1U),
                            .mtu = mtu,
                            .addresses = {addresses.begin(), addresses.size()},
                            .gateway = gateway != nullptr ? ip(gateway) : IpAddress{}});
  }
  RouteTable table;
};

TEST(IpAddress, Loopback_IsTheWholeNetworkOfV4AndOneOfV6) {
  EXPECT_TRUE(ip("127.0.0.1").is_loopback());
  EXPECT_TRUE(ip("127.255.255.254").is_loopback());
  EXPECT_FALSE(ip("126.255.255.255").is_loopback());
  EXPECT_FALSE(ip("128.0.0.1").is_loopback());
  EXPECT_TRUE((IpAddress{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}).is_loopback());
  EXPECT_FALSE((IpAddress{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}}).is_loopback());
  EXPECT_FALSE((IpAddress{{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}).is_loopback());
  EXPECT_FALSE(IpAddress{}.is_loopback());
}

TEST_F(Routes, OnLink_GoesStraight) {
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}));
  const Route* route = table.lookup(v4("10.9.0.77"));
  ASSERT_NE(route, nullptr);
  EXPECT_EQ(route->gateway, 0U);
  EXPECT_EQ(route->source, v4("10.9.0.1"));
}

TEST_F(Routes, NothingMatches_NoRoute) {
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}));
  EXPECT_EQ(table.lookup(v4("10.9.1.1")), nullptr);
}

TEST_F(Routes, Gateway_TakesTheRest) {
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}, "10.9.0.254"));
  EXPECT_EQ(table.lookup(v4("8.8.8.8"))->gateway, v4("10.9.0.254"));
  EXPECT_EQ(table.lookup(v4("10.9.0.9"))->gateway, 0U);
}

TEST_F(Routes, LongestPrefix_Wins) {
  ASSERT_TRUE(set(0, {{ip("10.0.0.1"), 8}}));
  ASSERT_TRUE(set(1, {{ip("10.9.0.1"), 16}, {ip("10.9.9.1"), 24}}));
  EXPECT_EQ(table.lookup(v4("10.1.1.1"))->port, 0);
  EXPECT_EQ(table.lookup(v4("10.9.1.1"))->source, v4("10.9.0.1"));
  EXPECT_EQ(table.lookup(v4("10.9.9.9"))->source, v4("10.9.9.1"));
}

TEST_F(Routes, EqualPrefixes_LowerPortWins) {
  ASSERT_TRUE(set(1, {{ip("10.9.0.2"), 24}}));
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}));
  EXPECT_EQ(table.lookup(v4("10.9.0.9"))->port, 0);
}

TEST_F(Routes, SetAgain_ReplacesWhatThePortHad) {
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}));
  ASSERT_TRUE(set(0, {{ip("10.8.0.1"), 24}}));
  EXPECT_EQ(table.lookup(v4("10.9.0.9")), nullptr);
  EXPECT_EQ(table.owner(v4("10.9.0.1")), RouteTable::kNone);
  EXPECT_EQ(table.owner(v4("10.8.0.1")), 0);
}

TEST_F(Routes, WrongConfigurations_AreRefused) {
  EXPECT_EQ(set(16, {{ip("10.9.0.1"), 24}}).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("10.9.0.1"), 33}}).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("10.9.0.255"), 24}}).error(), Error::kInvalid) << "the broadcast address";
  EXPECT_EQ(set(0, {{ip("0.0.0.0"), 24}}).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("127.0.0.1"), 8}}).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("224.0.0.1"), 8}}).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("10.9.0.1"), 24}}, nullptr, 67).error(), Error::kInvalid);
  EXPECT_EQ(set(0, {{ip("10.9.0.1"), 24}}, "10.8.0.1").error(), Error::kNetUnreachable);
  EXPECT_EQ(set(0, {{ip("10.9.0.1"), 24}}, "10.9.0.1").error(), Error::kInvalid);
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 24}}));
  EXPECT_EQ(set(1, {{ip("10.9.0.1"), 16}}).error(), Error::kAddressInUse);
}

TEST_F(Routes, PointToPointPrefixes_HaveNoBroadcast) {
  ASSERT_TRUE(set(0, {{ip("10.9.0.1"), 31}}));
  EXPECT_FALSE(table.is_broadcast(v4("10.9.0.1")));
  ASSERT_TRUE(set(1, {{ip("10.8.0.1"), 24}}));
  EXPECT_TRUE(table.is_broadcast(v4("10.8.0.255")));
}

TEST_F(Routes, AllPortsFull_StillFit) {
  for (std::uint16_t port = 0; port < Context::kMaxPorts; port++) {
    std::vector<Prefix> prefixes;
    for (std::uint32_t i = 0; i < Interface::kMaxAddresses; i++)
      prefixes.push_back({IpAddress::from_v4(0x0a000001U + (port << 16) + (i << 8)), 24});
    ASSERT_TRUE(table.set(
        port,
        {.mac = mac(port + 1U), .addresses = prefixes, .gateway = IpAddress::from_v4(0x0a0000feU + (port << 16))}));
  }
  EXPECT_EQ(table.lookup(v4("10.15.7.9"))->port, 15);
}

// What Network asks the table.
class NetworkRoutes : public OneHost {
 protected:
  NetworkRoutes() : OneHost({.gateway = "10.9.0.254"}) {}
};

TEST_F(NetworkRoutes, Resolve_FillsThePath) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("8.8.8.8"), path));
  EXPECT_EQ(path.local, ip("10.9.0.1"));
  EXPECT_EQ(path.next_hop, ip("10.9.0.254"));
  EXPECT_EQ(path.mtu, 1500U);
  EXPECT_EQ(host.network().resolve(ip("10.9.0.7"), ip("8.8.8.8"), path).error(), Error::kNoRoute);
  IpAddress v6;
  v6.bytes[0] = 0xfd;
  EXPECT_EQ(host.network().resolve({}, v6, path).error(), Error::kNoRoute);
  EXPECT_EQ(host.network().resolve({}, ip("0.0.0.0"), path).error(), Error::kNoRoute);
}

TEST_F(NetworkRoutes, RoutesAndLocal_SayWhatIsOurs) {
  Network& network = host.network();
  EXPECT_TRUE(network.routes(ip("10.9.0.2")));
  EXPECT_TRUE(network.routes(ip("10.9.0.1"))) << "to ourselves";
  EXPECT_TRUE(network.routes(ip("8.8.8.8")));
  EXPECT_FALSE(network.routes(ip("255.255.255.255")));
  EXPECT_FALSE(network.routes(ip("239.1.1.1")));
  EXPECT_TRUE(network.is_local(ip("10.9.0.1")));
  EXPECT_TRUE(network.is_local(ip("10.9.0.255")));
  EXPECT_FALSE(network.is_local(ip("10.9.0.2")));
}

TEST_F(NetworkRoutes, PacketThroughGateway_AsksForTheGateway) {
  ASSERT_TRUE(send_to("8.8.8.8"));
  const auto asked = run(1us);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(arp(asked[0]).target_ip, v4("10.9.0.254"));
  const auto sent = exchange(arp_reply("10.9.0.254", mac(9)));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(ethernet(sent[0]).destination, mac(9));
  EXPECT_EQ(ipv4(sent[0]).destination, v4("8.8.8.8"));
}

TEST_F(NetworkRoutes, AddressTakenAway_PacketHasNoRoute) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  const Prefix other{ip("10.8.0.1"), 24};
  ASSERT_TRUE(host.stack().set_interface(0, {.mac = mac(1), .addresses = {&other, 1}}));
  EXPECT_FALSE(send_on(path));
  EXPECT_EQ(counters().drop_no_route, 1U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(NetworkRoutes, BroadcastAndMulticast_NeedNoNeighbour) {
  ASSERT_TRUE(send_to("10.9.0.255"));
  Path path;
  ASSERT_TRUE(host.network().resolve(ip("10.9.0.1"), ip("239.129.2.3"), path));
  ASSERT_TRUE(send_on(path));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(ethernet(sent[0]).destination, MacAddress::broadcast());
  EXPECT_EQ(ethernet(sent[1]).destination, (MacAddress{{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}}));
}

}  // namespace
}  // namespace bypass::test
