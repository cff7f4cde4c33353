#include "os/net/address_text.h"

#include <gtest/gtest.h>

namespace bypass::runtime {
namespace {

TEST(AddressText, Ipv4_RoundTrips) {
  const auto address = parse_ip("10.9.0.1");
  ASSERT_TRUE(address);
  EXPECT_EQ(*address, IpAddress::from_v4(0x0a090001));
  EXPECT_EQ(to_text(*address).view(), "10.9.0.1");
}

TEST(AddressText, Ipv6_RoundTrips) {
  const auto address = parse_ip("fd09::1");
  ASSERT_TRUE(address);
  EXPECT_FALSE(address->is_v4());
  EXPECT_EQ(to_text(*address).view(), "fd09::1");
}

TEST(AddressText, MappedIpv6_IsTheIpv4Address) {
  EXPECT_EQ(parse_ip("::ffff:10.9.0.1"), IpAddress::from_v4(0x0a090001));
}

TEST(AddressText, Rubbish_IsNoAddress) {
  for (const char* text : {"", "10.9.0", "10.9.0.256", "10.9.0.1 ", "fd09::1%eth0", "localhost", "10.9.0.1/24"})
    EXPECT_FALSE(parse_ip(text)) << text;
  EXPECT_FALSE(parse_ip(std::string(200, '1')));
}

TEST(AddressText, Prefix_LengthIsCheckedByFamily) {
  EXPECT_EQ(parse_prefix("10.9.0.0/16")->length, 16);
  EXPECT_EQ(parse_prefix("10.9.0.1")->length, 32);
  EXPECT_EQ(parse_prefix("fd09::/64")->length, 64);
  EXPECT_EQ(parse_prefix("fd09::1")->length, 128);
  for (const char* text : {"10.9.0.0/33", "fd09::/129", "10.9.0.0/", "10.9.0.0/a", "10.9.0.0/8/8", "/8"})
    EXPECT_FALSE(parse_prefix(text)) << text;
}

TEST(AddressText, Mac_RoundTrips) {
  const auto mac = parse_mac("02:00:5e:10:0a:FF");
  ASSERT_TRUE(mac);
  EXPECT_EQ(to_text(*mac).view(), "02:00:5e:10:0a:ff");
  for (const char* text : {"", "02:00:5e:10:0a", "02-00-5e-10-0a-ff", "02:00:5e:10:0a:fg", "2:0:5e:10:a:ff:0:1:2"})
    EXPECT_FALSE(parse_mac(text)) << text;
}

TEST(AddressText, Endpoint_BracketsIpv6) {
  EXPECT_EQ(to_text(Endpoint{*parse_ip("10.9.0.1"), 80}).view(), "10.9.0.1:80");
  EXPECT_EQ(to_text(Endpoint{*parse_ip("fd09::1"), 80}).view(), "[fd09::1]:80");
  EXPECT_EQ(to_text(Prefix{*parse_ip("fd09::"), 64}).view(), "fd09::/64");
}

}  // namespace
}  // namespace bypass::runtime
