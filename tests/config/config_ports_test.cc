// Ports, addresses, gateways, MACs and MTUs, and whether they fit each other.
#include <gtest/gtest.h>

#include "config/environment.h"
#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

void expect_problem(std::initializer_list<const char*> variables, const char* start) {
  const std::string text = messages(from_environment(variables));
  EXPECT_EQ(text.substr(0, std::string_view(start).size()), start) << text;
}

TEST(ConfigPorts, TwoPorts_EachGetsItsOwnEntries) {
  const Config config =
      from_environment({"BYPASS_PORT=vhost:/tmp/a ; tap:bp0", "BYPASS_ADDR=10.9.0.1/24, fd09::1/64 ; 10.8.0.1/16",
                        "BYPASS_GATEWAY=;10.8.0.254", "BYPASS_MAC=;02:00:00:00:00:07", "BYPASS_MTU=9000",
                        "BYPASS_PORT_MEMORY=8M", "BYPASS_HUGEPAGES=on"});
  ASSERT_EQ(messages(config), "");
  const PortConfig& first = config.ports[0];
  EXPECT_EQ(first.kind, "vhost");
  EXPECT_EQ(first.target, "/tmp/a");
  ASSERT_EQ(first.addresses.size(), 2U);
  EXPECT_EQ(to_text(first.addresses[1]).view(), "fd09::1/64");
  EXPECT_TRUE(first.gateways.empty());
  EXPECT_TRUE(first.mac.is_zero());
  EXPECT_EQ(first.mtu, 9000U);
  const PortConfig& second = config.ports[1];
  EXPECT_EQ(to_text(second.addresses[0]).view(), "10.8.0.1/16");
  EXPECT_EQ(to_text(second.gateways[0]).view(), "10.8.0.254");
  EXPECT_EQ(to_text(second.mac).view(), "02:00:00:00:00:07");
  EXPECT_EQ(second.mtu, 0U);
  const PortSpec spec = port_spec(config, 1);
  EXPECT_EQ(spec.kind, "tap");
  EXPECT_EQ(spec.target, "bp0");
  EXPECT_EQ(spec.addresses, std::vector{IpAddress::from_v4(0x0a080001)});
  EXPECT_EQ(spec.buffer_memory, 8U << 20);
  EXPECT_EQ(spec.hugepages, Hugepages::kOn);
}

TEST(ConfigPorts, EveryKind_Parses) {
  for (const char* port : {"vhost:/tmp/x", "virtio:/tmp/x", "vhost:/tmp/x,peer=nobody", "virtio:/tmp/x,peer=65534",
                           "netdev:eth0", "af_xdp:eth0", "af_packet:eth0", "tap:bp0", "pci:0000:03:00.0", "pci:03:00.1",
                           "dpdk:net_memif0,role=client", "verbs:mlx5_0", "verbs:soft0:1", "auto"}) {
    const std::string variable = std::string("BYPASS_PORT=") + port;
    EXPECT_EQ(messages(from_environment({variable.c_str(), "BYPASS_ADDR=10.9.0.1/24"})), "") << port;
  }
  EXPECT_TRUE(from_environment({"BYPASS_PORT=none", "BYPASS_ADDR=10.9.0.1/24"}).ports.empty());
}

TEST(ConfigPorts, Kinds_NameTheirPlugin) {
  EXPECT_STREQ(plugin_of_kind("vhost"), "dpdk");
  for (const char* kind : {"pci", "dpdk"}) EXPECT_STREQ(plugin_of_kind(kind), "cards");
  for (const char* kind : {"af_packet", "af_xdp", "netdev", "tap"}) EXPECT_STREQ(plugin_of_kind(kind), "packet");
  EXPECT_STREQ(plugin_of_kind("verbs"), "verbs");
  EXPECT_EQ(plugin_of_kind("nonsense"), nullptr);
}

// DPDK starts once in a process, with the drivers of all its ports.
TEST(ConfigPorts, AWireBesideACard_HasItsPlugin) {
  const Config wires = from_environment({"BYPASS_PORT=vhost:/tmp/x", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_STREQ(plugin_of_port(wires, wires.ports.at(0)), "dpdk");
  const Config both = from_environment(
      {"BYPASS_PORT=vhost:/tmp/x;tap:bp0;pci:03:00.0", "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24;10.7.0.1/24"});
  EXPECT_STREQ(plugin_of_port(both, both.ports.at(0)), "cards");
  EXPECT_STREQ(plugin_of_port(both, both.ports.at(1)), "packet");
  EXPECT_STREQ(plugin_of_port(both, both.ports.at(2)), "cards");
}

TEST(ConfigPorts, BadPort_IsNamed) {
  expect_problem({"BYPASS_PORT=vhots:/tmp/x"},
                 "BYPASS_PORT=vhots:/tmp/x (environment): has the unknown kind 'vhots' (did you mean 'vhost'?); "
                 "accepted is vhost:PATH, ");
  expect_problem({"BYPASS_PORT=vhost"},
                 "BYPASS_PORT=vhost (environment): has the port 'vhost', which names no target behind the colon");
  expect_problem({"BYPASS_PORT=tap:a-name-that-is-too-long"},
                 "BYPASS_PORT=tap:a-name-that-is-too-long (environment): has the port 'tap:a-name-that-is-too-long', "
                 "which names no possible network interface");
  expect_problem({"BYPASS_PORT=pci:eth0"},
                 "BYPASS_PORT=pci:eth0 (environment): has the port 'pci:eth0', which is no PCI address");
  expect_problem(
      {"BYPASS_PORT=vhost:wire"},
      "BYPASS_PORT=vhost:wire (environment): has the port 'vhost:wire', which has no absolute path; accepted");
  expect_problem({"BYPASS_SOFT=virtio:./wire"},
                 "BYPASS_SOFT=virtio:./wire (environment): has the port 'virtio:./wire', which has no absolute path");
  expect_problem({"BYPASS_PORT=vhost:/tmp/x,peer="},
                 "BYPASS_PORT=vhost:/tmp/x,peer= (environment): has the port 'vhost:/tmp/x,peer=', which names no user "
                 "behind peer=; accepted is vhost:PATH, virtio:PATH (absolute ones; each may end with ,peer=USER)");
  const std::string long_path = "BYPASS_PORT=vhost:/" + std::string(200, 'x');
  EXPECT_EQ(from_environment({long_path.c_str(), "BYPASS_ADDR=10.9.0.1/24"}).problems.size(), 1U);
}

TEST(ConfigPorts, PortWithoutAddress_IsAProblem) {
  expect_problem({"BYPASS_PORT=vhost:/tmp/x"},
                 "BYPASS_ADDR: gives no address to the port 'vhost:/tmp/x'; accepted is ");
  EXPECT_EQ(messages(from_environment({"BYPASS_PORT=verbs:mlx5_0"})), "");  // has its interface's address
}

TEST(ConfigPorts, BadAddress_IsNamed) {
  expect_problem(
      {"BYPASS_ADDR=10.9.0.1"},
      "BYPASS_ADDR=10.9.0.1 (environment): has '10.9.0.1' without the length of the link's prefix; accepted");
  for (const char* bad : {"10.9.0.999/24", "10.9.0.1/33", "0.0.0.0/0", "127.0.0.1/8", "224.0.0.1/24", "ff02::1/64",
                          "10.9.0.0/24", "10.9.0.255/24", "255.255.255.255/32", "eth0"}) {
    const std::string variable = std::string("BYPASS_ADDR=") + bad;
    EXPECT_EQ(from_environment({variable.c_str()}).problems.size(), 1U) << bad;
  }
  // RFC 3021: both addresses of a /31 are hosts.
  EXPECT_EQ(messages(from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.0/31"})), "");
}

TEST(ConfigPorts, BadAddress_IsTheOnlyProblem) {
  EXPECT_EQ(from_environment({"BYPASS_PORT=tap:a;tap:b", "BYPASS_ADDR=10.9.0.1;10.8.0.1/24"}).problems.size(), 1U);
  EXPECT_EQ(
      from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1", "BYPASS_GATEWAY=10.9.0.254"}).problems.size(), 1U);
}

TEST(ConfigPorts, ListsThatDoNotFit_AreProblems) {
  expect_problem(
      {"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24"},
      "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24 (environment): has 2 entries for 1 port; accepted is one entry a port");
  expect_problem({"BYPASS_PORT=tap:a;tap:b", "BYPASS_ADDR=10.9.0.1/24;10.9.0.1/16"}, "BYPASS_ADDR=");
  expect_problem({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.8.0.1"},
                 "BYPASS_GATEWAY=10.8.0.1 (environment): has 10.8.0.1, which lies in no prefix of the port 'tap:a'");
  expect_problem({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.9.0.1"},
                 "BYPASS_GATEWAY=10.9.0.1 (environment): has 10.9.0.1, which is an address of the port 'tap:a' itself");
  expect_problem({"BYPASS_SOFT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.8.0.1"},
                 "BYPASS_GATEWAY=10.8.0.1 (environment): has 10.8.0.1, which lies in no prefix of the port 'tap:a'");
  expect_problem({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.9.0.2,10.9.0.3"},
                 "BYPASS_GATEWAY=10.9.0.2,10.9.0.3 (environment): has two gateways of one family");
  EXPECT_EQ(messages(from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=fd09::1/64", "BYPASS_GATEWAY=fe80::1"})), "");
}

TEST(ConfigPorts, PrefixOfTwoPorts_IsAProblem) {
  expect_problem({"BYPASS_PORT=virtio:/tmp/a;virtio:/tmp/b", "BYPASS_ADDR=10.9.0.1/24;10.9.0.2/24"},
                 "BYPASS_ADDR=10.9.0.1/24;10.9.0.2/24 (environment): gives 10.9.0.2/24 to the port 'virtio:/tmp/b', in "
                 "the same prefix as an address of 'virtio:/tmp/a', which alone would be used to it; accepted is a "
                 "prefix of its own for each port\n");
  for (const char* good :
       {"BYPASS_ADDR=10.9.0.1/16;10.9.8.1/24", "BYPASS_ADDR=10.9.0.1/25;10.9.0.129/25",
        "BYPASS_ADDR=10.9.0.1/24,10.9.0.2/24;10.8.0.1/24", "BYPASS_ADDR=10.9.0.1/24,fe80::1/64;10.8.0.1/24,fe80::2/64"})
    EXPECT_EQ(messages(from_environment({"BYPASS_PORT=tap:a;tap:b", good})), "") << good;
}

TEST(ConfigPorts, InterfaceOfTwoPorts_IsAProblem) {
  expect_problem({"BYPASS_PORT=af_packet:eth1;netdev:eth1", "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24"},
                 "BYPASS_PORT=af_packet:eth1;netdev:eth1 (environment): has 'af_packet:eth1' and 'netdev:eth1', which "
                 "are one interface; accepted is one port an interface\n");
  EXPECT_EQ(from_environment({"BYPASS_PORT=tap:a;tap:a", "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24"}).problems.size(), 1U);
}

TEST(ConfigPorts, MacAndMtu_AreChecked) {
  for (const char* bad : {"BYPASS_MAC=01:00:5e:00:00:01", "BYPASS_MAC=00:00:00:00:00:00", "BYPASS_MAC=x",
                          "BYPASS_MTU=575", "BYPASS_MTU=65522", "BYPASS_MTU=large"})
    EXPECT_EQ(from_environment({bad}).problems.size(), 1U) << bad;
  EXPECT_EQ(messages(from_environment(
                {"BYPASS_PORT=tap:a;tap:b", "BYPASS_ADDR=10.9.0.1/24;10.8.0.1/24", "BYPASS_MTU=576;65521"})),
            "");
}

TEST(ConfigPorts, MorePortsThanTheStackHolds_AreRefused) {
  std::string ports = "BYPASS_PORT=tap:p0", addresses = "BYPASS_ADDR=10.0.0.1/24";
  for (int i = 1; i < 16; i++) {
    ports += ";tap:p" + std::to_string(i);
    addresses += ";10.0." + std::to_string(i) + ".1/24";
  }
  EXPECT_EQ(messages(from_environment({ports.c_str(), addresses.c_str()})), "");
  ports += ";tap:p16";
  const std::string text = messages(from_environment({ports.c_str(), addresses.c_str()}));
  EXPECT_EQ(text, ports + " (environment): has 17 ports; accepted are at most 16\n");
}

TEST(ConfigPorts, ListsWithoutAPort_AreProblems) {
  expect_problem({"BYPASS_ADDR=10.9.0.1/24"},
                 "BYPASS_ADDR=10.9.0.1/24 (environment): has no effect without BYPASS_PORT; accepted is vhost:PATH, ");
  for (const char* alone : {"BYPASS_GATEWAY=10.9.0.254", "BYPASS_MAC=02:00:00:00:00:01", "BYPASS_MTU=1500"})
    EXPECT_EQ(from_environment({alone}).problems.size(), 1U) << alone;
  // A user who turns the bypass off for one program need not remove the other settings of that program.
  EXPECT_EQ(messages(from_environment({"BYPASS_PORT=none", "BYPASS_MTU=1500"})), "");
}

TEST(ConfigPorts, SoftAddressesWithoutADevice_AreAProblem) {
  expect_problem({"BYPASS_SOFT_ADDR=10.7.0.1/24"},
                 "BYPASS_SOFT_ADDR=10.7.0.1/24 (environment): has no effect without BYPASS_SOFT; accepted is WIRE");
  EXPECT_EQ(from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_SOFT_ADDR=10.7.0.1/24"})
                .problems.size(),
            1U);
  EXPECT_EQ(messages(from_environment({"BYPASS_SOFT=none", "BYPASS_SOFT_ADDR=10.7.0.1/24"})), "");
}

TEST(ConfigPorts, SoftDevices_TakeTheirOwnAddressesElseThePorts) {
  const Config own = from_environment({"BYPASS_SOFT=tap:a", "BYPASS_SOFT_ADDR=10.7.0.1/24", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(to_text(own.soft.at(0).addresses.at(0)).view(), "10.7.0.1/24");
  const Config shared = from_environment({"BYPASS_SOFT=tap:a", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(to_text(shared.soft.at(0).addresses.at(0)).view(), "10.9.0.1/24");
}

TEST(ConfigPorts, SoftDevices_TakeTheListsOfTheirWires) {
  const Config config =
      from_environment({"BYPASS_SOFT=tap:a;tap:b", "BYPASS_SOFT_ADDR=10.7.0.1/24;10.8.0.1/24",
                        "BYPASS_GATEWAY=10.7.0.9", "BYPASS_MAC=;02:00:00:00:00:07", "BYPASS_MTU=4200;9000"});
  ASSERT_EQ(messages(config), "");
  const PortSpec first = port_spec(config, config.soft.at(0), config.soft.size());
  EXPECT_EQ(first.kind + ":" + first.target, "tap:a");
  EXPECT_EQ(first.mtu, 4200U);
  EXPECT_TRUE(first.mac.is_zero());
  EXPECT_EQ(first.ports, 2U);
  EXPECT_EQ(config.soft[0].gateways.size(), 1U);
  EXPECT_EQ(config.soft[1].mtu, 9000U);
  EXPECT_FALSE(config.soft[1].mac.is_zero());
}

TEST(ConfigPorts, MoreSoftAddressesThanDevices_AreRefused) {
  expect_problem({"BYPASS_SOFT=tap:a;tap:b;tap:a"}, "BYPASS_SOFT=tap:a;tap:b;tap:a (environment): has 'tap:a' twice");
  expect_problem({"BYPASS_SOFT=tap:a", "BYPASS_SOFT_ADDR=10.7.0.1/24;10.8.0.1/24"},
                 "BYPASS_SOFT_ADDR=10.7.0.1/24;10.8.0.1/24 (environment): has 2 entries for 1 port");
}

}  // namespace
}  // namespace bypass::runtime
