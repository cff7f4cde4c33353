// rtnetlink's messages: what a dump contains, and which messages report a change.
#include "os/net/kernel_network.h"

#include <gtest/gtest.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

IpAddress ip(std::string_view text) {
  return *parse_ip(text);
}

// Messages one after another, as the kernel arranges them.
class Messages {
 public:
  template <typename Body>
  Messages& begin(std::uint16_t type, const Body& body) {
    start_ = bytes_.size();
    nlmsghdr head{};
    head.nlmsg_type = type;
    append(&head, sizeof head);
    append(&body, sizeof body);
    return end();
  }
  Messages& attribute(std::uint16_t type, const void* data, std::size_t bytes) {
    rtattr head{};
    head.rta_type = type;
    head.rta_len = static_cast<std::uint16_t>(RTA_LENGTH(bytes));
    append(&head, sizeof head);
    append(data, bytes);
    return end();
  }
  Messages& number(std::uint16_t type, std::uint32_t value) { return attribute(type, &value, sizeof value); }
  Messages& address(std::uint16_t type, const char* text) {
    const IpAddress address = ip(text);
    return attribute(type, address.bytes.data() + (address.is_v4() ? 12 : 0), address.is_v4() ? 4 : 16);
  }
  [[nodiscard]] std::span<const std::byte> all() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> all() { return bytes_; }

  Messages& link(int index, const char* name, std::uint32_t mtu) {
    ifinfomsg body{};
    body.ifi_index = index;
    begin(RTM_NEWLINK, body).attribute(IFLA_IFNAME, name, std::strlen(name) + 1);
    return number(IFLA_MTU, mtu);
  }
  Messages& own(int index, const char* local, std::uint8_t length, const char* peer = nullptr) {
    ifaddrmsg body{};
    body.ifa_family = ip(local).is_v4() ? AF_INET : AF_INET6;
    body.ifa_prefixlen = length;
    body.ifa_index = static_cast<unsigned>(index);
    begin(RTM_NEWADDR, body).address(IFA_ADDRESS, peer != nullptr ? peer : local);
    return peer != nullptr ? address(IFA_LOCAL, local) : *this;
  }
  Messages& route(std::uint16_t type, const char* to, std::uint8_t length, int index, std::uint32_t metric = 0,
                  std::uint8_t kind = RTN_UNICAST, std::uint8_t table = RT_TABLE_MAIN) {
    rtmsg body{};
    body.rtm_family = AF_INET;
    body.rtm_dst_len = length;
    body.rtm_table = table;
    body.rtm_type = kind;
    begin(type, body).address(RTA_DST, to);
    if (index != 0) number(RTA_OIF, static_cast<std::uint32_t>(index));
    return number(RTA_PRIORITY, metric);
  }

 private:
  void append(const void* data, std::size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
    bytes_.resize((bytes_.size() + 3) & ~std::size_t{3});
  }
  Messages& end() {
    const auto bytes = static_cast<std::uint32_t>(bytes_.size() - start_);
    std::memcpy(bytes_.data() + start_, &bytes, sizeof bytes);
    return *this;
  }
  std::vector<std::byte> bytes_;
  std::size_t start_ = 0;
};

KernelNetwork read(const Messages& messages) {
  KernelNetworkReader reader;
  std::size_t left = messages.all().size();
  const auto* each = reinterpret_cast<const nlmsghdr*>(messages.all().data());
  for (; NLMSG_OK(each, left); each = NLMSG_NEXT(each, left)) reader.take(*each);
  return reader.finish();
}

TEST(KernelNetworkReader, TakesLinksAddressesAndRoutes) {
  Messages dump;
  dump.link(2, "eth0", 1500).link(3, "eth1", 9000);
  dump.own(3, "10.9.0.1", 24).own(3, "10.9.7.1", 32, "10.9.7.2").own(3, "fd09::1", 64).own(3, "fe80::1", 64);
  dump.route(RTM_NEWROUTE, "10.20.0.0", 16, 3).address(RTA_GATEWAY, "10.9.0.254");
  const KernelNetwork network = read(dump);
  EXPECT_EQ(network.index_of("eth1"), 3);
  EXPECT_EQ(network.mtu_of(3), 9000U);
  const std::vector<Prefix> own = network.addresses_of(3);
  ASSERT_EQ(own.size(), 3U);
  EXPECT_EQ(own[0].address, ip("10.9.0.1"));
  EXPECT_EQ(own[1].address, ip("10.9.7.1"));  // not the link's other end
  EXPECT_EQ(network.link_local_of(3), ip("fe80::1"));
  ASSERT_EQ(network.routes.size(), 1U);
  EXPECT_EQ(network.routes[0].interface, 3);
  EXPECT_EQ(network.routes[0].gateway, ip("10.9.0.254"));
  EXPECT_EQ(network.routes[0].destination.length, 16);
}

TEST(KernelNetworkReader, RoutesOfTheMainTable_TheBetterMetricFirst) {
  Messages dump;
  dump.route(RTM_NEWROUTE, "10.1.0.0", 16, 3, 200).route(RTM_NEWROUTE, "10.1.0.0", 16, 2, 100);
  dump.route(RTM_NEWROUTE, "10.2.0.0", 16, 3, 0, RTN_UNICAST, 7);
  dump.route(RTM_NEWROUTE, "10.9.0.1", 32, 3, 0, RTN_LOCAL, RT_TABLE_LOCAL);
  dump.route(RTM_NEWROUTE, "10.3.0.0", 16, 3, 300, RTN_BLACKHOLE);
  const KernelNetwork network = read(dump);
  ASSERT_EQ(network.routes.size(), 3U);
  EXPECT_EQ(network.routes[0].interface, 2);
  EXPECT_EQ(network.routes[1].interface, 3);
  EXPECT_EQ(network.routes[2].interface, 0);  // leads nowhere
}

TEST(NetworkChange, IsALinkAnAddressOrARouteOfTheMainTable) {
  EXPECT_TRUE(has_network_change(Messages().link(3, "eth1", 1400).all()));
  EXPECT_TRUE(has_network_change(Messages().own(3, "10.9.5.1", 24).all()));
  EXPECT_TRUE(has_network_change(Messages().route(RTM_DELROUTE, "10.1.0.0", 16, 3).all()));
  EXPECT_TRUE(has_network_change(Messages().route(RTM_NEWROUTE, "10.1.0.0", 16, 0, 0, RTN_UNREACHABLE).all()));
  EXPECT_FALSE(has_network_change({}));
}

TEST(NetworkChange, OfOtherTables_IsNone) {
  Messages told;
  told.route(RTM_NEWROUTE, "10.9.0.1", 32, 3, 0, RTN_LOCAL, RT_TABLE_LOCAL);
  told.route(RTM_NEWROUTE, "10.9.0.255", 32, 3, 0, RTN_BROADCAST, RT_TABLE_LOCAL);
  told.route(RTM_NEWROUTE, "10.2.0.0", 16, 3).number(RTA_TABLE, 1000);
  told.begin(RTM_NEWNEIGH, ndmsg{});
  EXPECT_FALSE(has_network_change(told.all()));
  EXPECT_TRUE(has_network_change(told.link(3, "eth1", 1400).all()));  // behind those
}

TEST(NetworkChange, WhatIsCutShort_MayBeOne) {
  Messages told;
  told.route(RTM_NEWROUTE, "10.9.0.1", 32, 3, 0, RTN_LOCAL, RT_TABLE_LOCAL);
  for (std::size_t bytes = 1; bytes < told.all().size(); bytes++)
    EXPECT_TRUE(has_network_change(std::as_const(told).all().first(bytes))) << bytes;
  const std::uint32_t nothing = 0;  // a length that would never end
  std::memcpy(told.all().data(), &nothing, sizeof nothing);
  EXPECT_TRUE(has_network_change(std::as_const(told).all()));
}

}  // namespace
}  // namespace bypass::runtime
