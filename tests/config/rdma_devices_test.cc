#include "config/rdma_devices.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "backends/soft_name.h"
#include "config/environment.h"
#include "os/net/address_text.h"
#include "runtime/routing/live_network.h"
#include "runtime/routing/routes.h"

namespace bypass::runtime {
namespace {

namespace fs = std::filesystem;

IpAddress ip(std::string_view text) {
  return *parse_ip(text);
}

// eth0 has the default route. eth1 is the card's interface.
KernelNetwork two_interfaces() {
  KernelNetwork network;
  network.interfaces = {{1, "lo", 65536}, {2, "eth0", 1500}, {3, "eth1", 4000}};
  network.addresses = {{1, *parse_prefix("127.0.0.1/8")},
                       {2, *parse_prefix("192.0.2.5/24")},
                       {3, *parse_prefix("10.9.0.1/24")},
                       {3, *parse_prefix("fd09::1/64")},
                       {3, *parse_prefix("fe80::1/64")}};
  network.routes = {
      {2, *parse_prefix("0.0.0.0/0"), ip("192.0.2.1")},     {2, *parse_prefix("10.9.0.128/25"), ip("192.0.2.1")},
      {2, *parse_prefix("192.0.2.0/24"), ip("0.0.0.0")},    {3, *parse_prefix("10.9.0.0/24"), ip("0.0.0.0")},
      {3, *parse_prefix("10.20.0.0/16"), ip("10.9.0.254")}, {3, *parse_prefix("10.30.0.0/16"), ip("172.16.0.1")}};
  return network;
}

// A stand-in for /sys/class/infiniband.
class Devices {
 public:
  Devices() {
    char name[] = "/tmp/bypass-rdma-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Devices() { fs::remove_all(root_); }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  void add(const std::string& device, const std::string& port, const std::string& interface) const {
    const fs::path folder = root_ / device / "ports" / port / "gid_attrs/ndevs";
    fs::create_directories(folder);
    std::ofstream(folder / "0") << interface << "\n";
  }
  void add_old(const std::string& device, const std::string& interface) const {
    fs::create_directories(root_ / device / "device/net" / interface);
  }
  [[nodiscard]] std::string root() const { return root_.string(); }

 private:
  fs::path root_;
};

Config completed(std::initializer_list<const char*> environment, const Devices& devices) {
  Config config = from_environment(environment);
  EXPECT_EQ(messages(config), "");
  EXPECT_TRUE(asks_the_kernel(config));
  complete_from_kernel(config, two_interfaces(), devices.root());
  return config;
}

TEST(RdmaDevices, Interface_IsThePortsOwn) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  devices.add("mlx5_0", "2", "eth2");
  devices.add_old("mlx4_0", "eth3");
  EXPECT_EQ(interface_of_device("mlx5_0", devices.root()), "eth1");
  EXPECT_EQ(interface_of_device("mlx5_0:2", devices.root()), "eth2");
  EXPECT_EQ(interface_of_device("mlx4_0", devices.root()), "eth3");
  EXPECT_EQ(interface_of_device("mlx9_0", devices.root()), "");
}

TEST(RdmaDevices, SoftDevice_IsKnownByItsName) {
  EXPECT_EQ(soft_index("soft0"), 0U);
  EXPECT_EQ(soft_index("soft12:1"), 12U);
  for (const char* other : {"soft", "softy", "mlx5_0", "soft1x", "soft00", "soft:1", ""})
    EXPECT_EQ(soft_index(other), std::nullopt);
}

TEST(RdmaDevices, PortWithoutAddress_SharesTheDevicesInterface) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  const Config config = completed({"BYPASS_PORT=verbs:mlx5_0"}, devices);
  ASSERT_TRUE(config.ok()) << messages(config);
  const PortConfig& port = config.ports.at(0);
  EXPECT_TRUE(port.shared);
  ASSERT_EQ(port.addresses.size(), 1U);  // the stack's wire is IPv4's
  EXPECT_EQ(port.addresses[0].address, ip("10.9.0.1"));
  ASSERT_EQ(port.routes.size(), 1U);  // by routers on the link
  EXPECT_EQ(port.routes[0].gateway, ip("10.9.0.254"));
  EXPECT_TRUE(port_spec(config, 0).share_interface);
  EXPECT_EQ(port_spec(config, 0).interface, "eth1");
  EXPECT_EQ(port.mtu, 4000U);
  EXPECT_TRUE(port_spec(config, 0).follows_mtu);
}

TEST(RdmaDevices, TheKernelsAddress_IsShared) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  EXPECT_TRUE(completed({"BYPASS_PORT=verbs:mlx5_0", "BYPASS_ADDR=10.9.0.1/24"}, devices).ports.at(0).shared);
  EXPECT_FALSE(completed({"BYPASS_PORT=verbs:mlx5_0", "BYPASS_ADDR=10.9.0.7/24"}, devices).ports.at(0).shared);
}

TEST(RdmaDevices, AddressesOfBothKinds_AreAProblem) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  const Config config = completed({"BYPASS_PORT=verbs:mlx5_0", "BYPASS_ADDR=10.9.0.1/24,10.9.0.7/24"}, devices);
  EXPECT_NE(messages(config).find("BYPASS_ADDR=10.9.0.1/24,10.9.0.7/24 (environment): has addresses of the kernel's on "
                                  "eth1 beside others"),
            std::string::npos)
      << messages(config);
}

TEST(RdmaDevices, MoreThanTheStackHolds_IsAProblem) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  Config config = from_environment({"BYPASS_PORT=verbs:mlx5_0"});
  KernelNetwork network = two_interfaces();
  for (std::uint32_t i = 2; i <= 9; i++) network.addresses.push_back({3, {IpAddress::from_v4(0x0a090000 + i), 24}});
  complete_from_kernel(config, network, devices.root());
  EXPECT_NE(messages(config).find("shares eth1, which has 9 IPv4 addresses; accepted are at most 8"), std::string::npos)
      << messages(config);
  EXPECT_FALSE(config.ports.at(0).shared);
}

TEST(RdmaDevices, SoftwareDeviceThatNothingMakes_IsAProblem) {
  const Config config = completed({"BYPASS_PORT=verbs:soft7", "BYPASS_SOFT=vhost:/tmp/x"}, Devices{});
  EXPECT_NE(
      messages(config).find("BYPASS_PORT=verbs:soft7 (environment): has the port 'verbs:soft7', a software device "
                            "that nothing makes"),
      std::string::npos)
      << messages(config);
}

TEST(RdmaDevices, SoftwareDeviceWithoutAnAddress_IsAProblem) {
  const Config config = completed({"BYPASS_PORT=verbs:soft0", "BYPASS_SOFT=vhost:/tmp/x"}, Devices{});
  EXPECT_NE(messages(config).find("BYPASS_ADDR: gives no IPv4 address to the port 'verbs:soft0', and its wire "
                                  "has none; accepted is ADDRESS/LENGTH"),
            std::string::npos)
      << messages(config);
}

TEST(RdmaDevices, RdmaDeviceBelowASoftwareOne_IsAProblem) {
  for (const char* soft : {"BYPASS_SOFT=auto", "BYPASS_SOFT=verbs:mlx5_0"})
    EXPECT_NE(messages(completed({soft}, Devices{})).find("which stands for an RDMA device; accepted is"),
              std::string::npos);
}

TEST(RdmaDevices, SoftwareDevicesAddressesOfBothKinds_AreBlamedOnWhatGaveThem) {
  for (const char* variable : {"BYPASS_ADDR", "BYPASS_SOFT_ADDR"}) {
    const std::string addresses = std::string(variable) + "=10.9.0.1/24,10.9.0.7/24";
    const Config config = completed({"BYPASS_SOFT=af_packet:eth1", addresses.c_str()}, Devices{});
    EXPECT_EQ(messages(config).find(addresses + " (environment): has addresses of the kernel's"), 0U)
        << messages(config);
  }
}

TEST(RdmaDevices, SoftwareDevicesWire_IsSharedLikeACard) {
  const Config config = completed({"BYPASS_PORT=verbs:soft0", "BYPASS_SOFT=af_packet:eth1"}, Devices{});
  ASSERT_TRUE(config.ok()) << messages(config);
  EXPECT_TRUE(config.soft.at(0).shared);
  EXPECT_EQ(config.soft[0].addresses.size(), 2U);
  EXPECT_TRUE(config.ports.at(0).shared);
  EXPECT_EQ(config.ports[0].addresses.at(0).address, ip("10.9.0.1"));
}

TEST(RdmaDevices, SoftwareDevicesOwnAddress_IsThePortsToo) {
  const Config config =
      completed({"BYPASS_PORT=verbs:soft0", "BYPASS_SOFT=vhost:/tmp/x", "BYPASS_SOFT_ADDR=10.9.0.1/24"}, Devices{});
  EXPECT_FALSE(config.ports.at(0).shared);
  EXPECT_EQ(config.ports[0].addresses.at(0).address, ip("10.9.0.1"));
}

TEST(RdmaDevices, Auto_IsEveryDeviceWithAnAddressAndEverySoftwareDevice) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  devices.add("mlx5_1", "1", "eth7");  // no address
  devices.add("ibp1", "1", "");        // InfiniBand
  const Config config = completed({"BYPASS_PORT=auto", "BYPASS_SOFT=vhost:/tmp/x", "BYPASS_ADDR=10.8.0.1/24"}, devices);
  ASSERT_EQ(config.ports.size(), 2U);
  EXPECT_EQ(port_text(config.ports[0]), "verbs:mlx5_0");
  EXPECT_TRUE(config.ports[0].shared);
  EXPECT_EQ(port_text(config.ports[1]), "verbs:soft0");
  EXPECT_EQ(config.ports[1].addresses.at(0).address, ip("10.8.0.1"));
}

TEST(RdmaDevices, DeviceThatIsNamedTwice_IsAProblem) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  for (const char* ports :
       {"BYPASS_PORT=auto;auto", "BYPASS_PORT=auto;verbs:mlx5_0", "BYPASS_PORT=verbs:mlx5_0:1;auto"}) {
    const Config config = completed({ports}, devices);
    EXPECT_EQ(messages(config).find(std::string(ports) + " (environment): has 'verbs:mlx5_0' twice"), 0U)
        << messages(config);
  }
  EXPECT_EQ(messages(completed({"BYPASS_PORT=verbs:mlx5_0;verbs:mlx5_0:2"}, devices)), "");
}

TEST(RdmaDevices, GatewayThatTheInterfaceDoesNotReach_IsAProblem) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  const auto problem_of = [&](const char* gateway) {
    return messages(completed({"BYPASS_PORT=verbs:mlx5_0", gateway}, devices));
  };
  EXPECT_EQ(problem_of("BYPASS_GATEWAY=10.9.0.254"), "");
  EXPECT_EQ(problem_of("BYPASS_GATEWAY=1.2.3.4")
                .find("BYPASS_GATEWAY=1.2.3.4 (environment): has 1.2.3.4, which lies in no prefix of the port"),
            0U);
  EXPECT_EQ(problem_of("BYPASS_GATEWAY=10.9.0.1")
                .find("BYPASS_GATEWAY=10.9.0.1 (environment): has 10.9.0.1, which is an address of the port"),
            0U);
}

TEST(RdmaDevices, AutoThatFindsNone_IsAProblem) {
  const Config config = completed({"BYPASS_PORT=auto"}, Devices{});
  EXPECT_NE(messages(config).find("BYPASS_PORT=auto (environment): finds no RDMA device"), std::string::npos);
}

TEST(RdmaDevices, WhatOtherInterfacesReachBetter_IsTheKernels) {
  const Devices devices;
  devices.add("mlx5_0", "1", "eth1");
  const Config config = completed({"BYPASS_PORT=verbs:mlx5_0"}, devices);
  const Routes routes(config);
  EXPECT_EQ(routes.port_to(ip("10.9.0.2")), 0U);
  EXPECT_EQ(routes.port_to(ip("10.20.1.1")), 0U);             // by its router
  EXPECT_EQ(routes.port_to(ip("10.9.0.200")), std::nullopt);  // a longer prefix
  EXPECT_EQ(routes.port_to(ip("192.0.2.5")), std::nullopt);   // the host itself
  EXPECT_EQ(routes.port_to(ip("10.9.0.1")), std::nullopt);
  EXPECT_EQ(routes.port_to(ip("198.51.100.1")), std::nullopt);
}

// The rest of this file tests what the kernel changes later.
struct Followed {
  Devices devices;
  KernelNetwork network = two_interfaces();
  Config config;
  explicit Followed(std::initializer_list<const char*> environment) : config(from_environment(environment)) {
    devices.add("mlx5_0", "1", "eth1");
    complete_from_kernel(config, network, devices.root());
    EXPECT_EQ(messages(config), "");
  }
  [[nodiscard]] PortNetwork now() const { return follow_kernel(config, network); }
};

std::string addresses_of(const PortConfig& port) {
  std::string text;
  for (const Prefix& each : port.addresses) text += std::string(to_text(each).view()) + " ";
  return text;
}

TEST(FollowedKernel, WithoutAChange_IsWhatTheConfigurationHas) {
  const Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  LiveNetwork live(followed.config);
  EXPECT_TRUE(live.changes());
  EXPECT_FALSE(live.replace(followed.now()));
  EXPECT_FALSE(LiveNetwork(from_environment({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24"})).changes());
}

TEST(FollowedKernel, AddressesComeAndGo) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  followed.network.addresses.push_back({3, *parse_prefix("10.9.5.1/24")});
  PortNetwork now = followed.now();
  EXPECT_EQ(addresses_of(now.ports[0]), "10.9.0.1/24 10.9.5.1/24 ");
  EXPECT_EQ(Routes(now).port_to(ip("10.9.5.9")), 0U);
  EXPECT_EQ(Routes(now).owner_of(ip("10.9.5.1")), 0U);
  std::erase_if(followed.network.addresses, [](const auto& each) { return each.interface == 3; });
  now = followed.now();
  EXPECT_EQ(addresses_of(now.ports[0]), "");
  EXPECT_EQ(Routes(now).port_to(ip("10.9.0.9")), std::nullopt);
  EXPECT_EQ(Routes(now).port_to(ip("10.20.1.1")), std::nullopt);  // its router is not on a link any more
}

TEST(FollowedKernel, NamedAddresses_AreServedWhileTheKernelHasThem) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0", "BYPASS_ADDR=10.9.0.1/24"});
  followed.network.addresses.push_back({3, *parse_prefix("10.9.5.1/24")});
  EXPECT_EQ(addresses_of(followed.now().ports[0]), "10.9.0.1/24 ");
  std::erase_if(followed.network.addresses, [](const auto& each) { return each.prefix.address == ip("10.9.0.1"); });
  EXPECT_EQ(addresses_of(followed.now().ports[0]), "");
}

TEST(FollowedKernel, SoftwareDevicesPort_FollowsItsWire) {
  Followed followed({"BYPASS_SOFT=af_packet:eth1", "BYPASS_PORT=verbs:soft0"});
  followed.network.addresses.push_back({3, *parse_prefix("10.9.5.1/24")});
  followed.network.interfaces[2].mtu = 1400;
  const PortNetwork now = followed.now();
  EXPECT_EQ(addresses_of(now.ports[0]), "10.9.0.1/24 10.9.5.1/24 ");
  EXPECT_EQ(now.ports[0].mtu, 1400U);
  EXPECT_EQ(port_spec(followed.config, 0).mtu, 0U);  // the device's, at whatever time the port is opened
}

TEST(FollowedKernel, NamedMtu_Stays) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0", "BYPASS_MTU=1300"});
  followed.network.interfaces[2].mtu = 1400;
  EXPECT_EQ(followed.now().ports[0].mtu, 1300U);
  EXPECT_EQ(port_spec(followed.config, 0).mtu, 1300U);
}

TEST(FollowedKernel, RouteOfTheBetterMetric_Counts) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  auto& routes = followed.network.routes;
  routes.push_back({3, *parse_prefix("10.40.0.0/16"), ip("10.9.0.254")});
  routes.push_back({2, *parse_prefix("10.40.0.0/16"), ip("192.0.2.1")});
  EXPECT_EQ(Routes(followed.now()).port_to(ip("10.40.1.1")), 0U);
  std::swap(routes[routes.size() - 1], routes[routes.size() - 2]);
  EXPECT_EQ(Routes(followed.now()).port_to(ip("10.40.1.1")), std::nullopt);
}

// An on-link route to a network in which this host has no address, a router beyond the link, and destinations that lead
// nowhere.
TEST(FollowedKernel, RouteThatTheStackCannotTake_IsTheKernels) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  auto& routes = followed.network.routes;
  routes.push_back({3, *parse_prefix("10.20.7.0/24"), ip("0.0.0.0")});
  routes.push_back({3, *parse_prefix("10.20.8.0/24"), ip("172.16.0.1")});
  routes.push_back({0, *parse_prefix("10.20.9.0/24"), ip("0.0.0.0")});
  const PortNetwork now = followed.now();
  EXPECT_EQ(Routes(now).port_to(ip("10.20.6.1")), 0U);
  for (const char* each : {"10.20.7.1", "10.20.8.1", "10.20.9.1"})
    EXPECT_EQ(Routes(now).port_to(ip(each)), std::nullopt) << each;
}

TEST(FollowedKernel, WhatTheStackHasNoRoomFor_StaysTheKernels) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  for (std::uint32_t i = 2; i <= 9; i++)
    followed.network.addresses.push_back({3, {IpAddress::from_v4(0x0a090000 + i), 24}});
  for (std::uint32_t i = 0; i < 24; i++)
    followed.network.routes.push_back({3, {IpAddress::from_v4(0x0a140000 + (i << 8)), 24}, ip("10.9.0.254")});
  const PortNetwork now = followed.now();
  EXPECT_EQ(now.ports[0].addresses.size(), 8U);
  EXPECT_EQ(now.ports[0].routes.size(), 24U);
  ASSERT_EQ(now.left_out.size(), 2U);
  EXPECT_EQ(now.left_out[0], "eth1 has 9 IPv4 addresses; those beyond the first 8 are the kernel's alone");
  EXPECT_EQ(Routes(now).port_to(ip("10.9.0.9")), std::nullopt);  // this host itself
  EXPECT_EQ(Routes(now).port_to(ip("10.20.22.1")), 0U);
  EXPECT_EQ(Routes(now).port_to(ip("10.20.23.1")), std::nullopt);  // not by the router of 10.20.0.0/16
}

TEST(LiveNetwork, WhoReads_HasAWholeStateUntilTheEnd) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  LiveNetwork live(followed.config);
  {
    const LiveNetwork::Reading before(live);
    followed.network.addresses.push_back({3, *parse_prefix("10.9.5.1/24")});
    EXPECT_TRUE(live.replace(followed.now()));
    EXPECT_EQ(before->ports[0].addresses.size(), 1U);
    EXPECT_EQ(LiveNetwork::Reading(live)->ports[0].addresses.size(), 2U);
  }
  EXPECT_FALSE(live.replace(followed.now()));
}

// Under a sanitizer this shows that a state is not freed while it is read.
TEST(LiveNetwork, ReplacedWhileOthersRead) {
  Followed followed({"BYPASS_PORT=verbs:mlx5_0"});
  LiveNetwork live(followed.config);
  std::atomic<bool> over{false};
  std::atomic<unsigned> looks{0};
  std::thread reader([&] {
    while (!over) {
      const LiveNetwork::Reading now(live);
      for (const Prefix& each : now->ports[0].addresses) EXPECT_TRUE(each.address.is_v4());
      looks++;
    }
  });
  for (std::uint32_t i = 0; i < 500 || looks < 500; i++) {
    followed.network.interfaces[2].mtu = 1000 + i % 2;
    EXPECT_TRUE(live.replace(followed.now()));
  }
  over = true;
  reader.join();
}

TEST(KernelNetwork, OfThisMachine_HasTheLoopback) {
  const KernelNetwork network = read_kernel_network();
  const int loopback = network.index_of("lo");
  ASSERT_NE(loopback, 0);
  EXPECT_EQ(network.index_of("bp-nosuch"), 0);
  for (const Prefix& own : network.addresses_of(loopback)) EXPECT_TRUE(own.address.is_loopback());
}

}  // namespace
}  // namespace bypass::runtime
