// What a device tells a port that steers: which flows each rule is, once, however many rules share them.
#include "softverbs/engine/port_steering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/engine/device.h"
#include "stack/frame/wire.h"
#include "stack/no_wire.h"
#include "stack/world.h"

namespace bypass::rdma::test {
namespace {

using bypass::test::ip;
using bypass::test::mac;
using bypass::test::NoWire;

// A port without frames that keeps a list of its flows. It refuses flows that belong to another process.
class SteeringPort final : public NoWire {
 public:
  SteeringPort() : NoWire({.mtu = 1500, .steering = true}) {}
  bool steer(const FlowSpec& flow, bool add) override {
    if (std::ranges::find(taken, flow) != taken.end()) return false;
    if (add) {
      EXPECT_EQ(std::ranges::count(flows, flow), 0);
      flows.push_back(flow);
    } else {
      EXPECT_EQ(std::erase(flows, flow), 1U);
    }
    return true;
  }

  std::vector<FlowSpec> flows, taken;
};

constexpr std::uint16_t kRoce = 4791;
constexpr IpAddress kLinkLocal{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77}};
constexpr IpAddress kGlobal{{0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

FlowRule to_port(std::uint8_t protocol, std::uint16_t port) {
  FlowRule rule;
  rule.value.protocol = protocol;
  rule.mask.protocol = 0xff;
  rule.value.destination_port = port;
  rule.mask.destination_port = 0xffff;
  return rule;
}

FlowRule to_mac(const MacAddress& mac) {
  FlowRule rule;
  rule.value.destination = mac;
  rule.mask.destination = MacAddress::broadcast();
  return rule;
}

FlowRule to_address(FlowRule rule, const char* address) {
  rule.value.ip_destination = ip(address);
  rule.mask.ip_destination = IpAddress::from_v4(0xffffffff);
  return rule;
}

FlowRule from(FlowRule rule, const char* address, std::uint16_t port) {
  rule.value.ip_source = ip(address);
  rule.mask.ip_source = IpAddress::from_v4(0xffffffff);
  rule.value.source_port = port;
  rule.mask.source_port = port == 0 ? 0 : 0xffff;
  return rule;
}

FlowRule of_type(FlowRule rule, std::uint16_t type) {
  rule.value.ether_type = type;
  rule.mask.ether_type = 0xffff;
  return rule;
}

FlowSpec at(std::uint8_t protocol, const IpAddress& local, std::uint16_t port) {
  return {protocol, {local, port}, {}};
}
FlowSpec at(std::uint8_t protocol, const char* local, std::uint16_t port) {
  return at(protocol, ip(local), port);
}

class PortSteeringTest : public testing::Test {
 protected:
  PortSteeringTest() : device_(make()) {}

  std::unique_ptr<Device> make() {
    DeviceConfig config;
    config.addresses = {{ip("10.9.0.1"), 24}, {ip("10.9.1.1"), 24}, {kGlobal, 64}};
    config.link_local = kLinkLocal;
    return Device::create(config, port);
  }
  Made<Qp> add_qp(ibv_qp_type type) {
    if (pd_ == nullptr) pd_ = device_->alloc_pd().object;
    if (cq_ == nullptr) cq_ = device_->create_cq(16, nullptr).object;
    QpInit init;
    init.pd = pd_;
    init.send_cq = init.receive_cq = cq_;
    init.type = type;
    init.cap = {1, 1, 1, 1, 0};
    return device_->create_qp(init);
  }
  Qp& raw() {
    if (raw_ == nullptr) raw_ = add_qp(IBV_QPT_RAW_PACKET).object;
    return *raw_;
  }
  std::vector<FlowSpec> flows_of_rule(const FlowRule& rule) {
    const Made<Flow> made = device_->create_flow(raw(), rule);
    EXPECT_EQ(made.error, 0);
    std::vector<FlowSpec> flows = port.flows;
    if (made.object != nullptr) device_->destroy_flow(*made.object);
    EXPECT_TRUE(port.flows.empty()) << "they go with the rule";
    return flows;
  }
  int error_of(const FlowRule& rule) { return device_->create_flow(raw(), rule).error; }

  SteeringPort port;
  std::unique_ptr<Device> device_;
  Pd* pd_ = nullptr;
  Cq* cq_ = nullptr;
  Qp* raw_ = nullptr;
};

TEST_F(PortSteeringTest, RuleWithAnAddress_IsOneFlow) {
  const FlowRule rule = of_type(to_address(to_mac(mac(1)), "10.9.0.1"), wire::kEtherTypeIpv4);
  FlowRule listener = rule;
  listener.value.protocol = wire::kProtocolTcp;
  listener.mask.protocol = 0xff;
  listener.value.destination_port = 80;
  listener.mask.destination_port = 0xffff;
  EXPECT_EQ(flows_of_rule(listener), std::vector{at(wire::kProtocolTcp, "10.9.0.1", 80)});
  EXPECT_EQ(flows_of_rule(from(listener, "10.9.0.2", 999)),
            (std::vector{FlowSpec{wire::kProtocolTcp, {ip("10.9.0.1"), 80}, {ip("10.9.0.2"), 999}}}));
}

TEST_F(PortSteeringTest, RuleWithoutAnAddress_IsAFlowForEachOfOurs) {
  const auto all = flows_of_rule(to_port(wire::kProtocolUdp, 7));
  EXPECT_EQ(all, (std::vector{at(wire::kProtocolUdp, kLinkLocal, 7), at(wire::kProtocolUdp, "10.9.0.1", 7),
                              at(wire::kProtocolUdp, "10.9.1.1", 7), at(wire::kProtocolUdp, kGlobal, 7)}));
  EXPECT_EQ(flows_of_rule(of_type(to_port(wire::kProtocolUdp, 7), wire::kEtherTypeIpv4)).size(), 2U);
  EXPECT_EQ(flows_of_rule(from(to_port(wire::kProtocolUdp, 7), "10.9.0.2", 9)).size(), 2U);
}

TEST_F(PortSteeringTest, RuleForTheMacAddress_IsEveryFrame) {
  EXPECT_EQ(flows_of_rule(to_mac(mac(1))), std::vector{FlowSpec{}});
  FlowRule rest;
  rest.type = IBV_FLOW_ATTR_ALL_DEFAULT;
  EXPECT_EQ(flows_of_rule(rest), std::vector{FlowSpec{}});
}

TEST_F(PortSteeringTest, WhatComesAsCopies_IsNotSteered) {
  FlowRule groups;
  groups.type = IBV_FLOW_ATTR_MC_DEFAULT;
  FlowRule icmpv6 = of_type({}, 0x86dd);
  icmpv6.value.protocol = 58;
  icmpv6.mask.protocol = 0xff;
  for (const FlowRule& rule :
       {groups, icmpv6, of_type({}, wire::kEtherTypeArp), to_mac(MacAddress::broadcast()),
        to_mac({{1, 0, 0x5e, 0, 0, 1}}), to_address(to_port(wire::kProtocolUdp, 7), "224.0.0.1")})
    EXPECT_TRUE(flows_of_rule(rule).empty());
}

TEST_F(PortSteeringTest, WhatThePortCannotSteer_IsRefused) {
  FlowRule sniffer, source = to_port(wire::kProtocolUdp, 7), prefix = source, half_port = source;
  sniffer.type = IBV_FLOW_ATTR_SNIFFER;
  source.mask.source = MacAddress::broadcast();
  prefix.value.ip_destination = ip("10.9.0.0");
  prefix.mask.ip_destination = IpAddress::from_v4(0xffffff00);
  half_port.mask.destination_port = 0xff00;
  for (const FlowRule& rule :
       {sniffer, source, prefix, half_port, to_mac(mac(2)), of_type({}, 0x88b5), of_type({}, wire::kEtherTypeIpv4),
        to_port(wire::kProtocolIcmp, 7), to_address({}, "10.9.0.1"),
        from(to_port(wire::kProtocolTcp, 7), "10.9.0.2", 0), from(to_address({}, "10.9.0.1"), "10.9.0.2", 9)})
    EXPECT_EQ(error_of(rule), EOPNOTSUPP);
  EXPECT_TRUE(port.flows.empty());
}

TEST_F(PortSteeringTest, RulesThatShareAFlow_SteerItOnce) {
  Flow* const all = device_->create_flow(raw(), to_port(wire::kProtocolUdp, 7)).object;
  Flow* const one = device_->create_flow(raw(), to_address(to_port(wire::kProtocolUdp, 7), "10.9.0.1")).object;
  EXPECT_EQ(port.flows.size(), 4U);
  device_->destroy_flow(*all);
  EXPECT_EQ(port.flows, std::vector{at(wire::kProtocolUdp, "10.9.0.1", 7)});
  device_->destroy_flow(*one);
  EXPECT_TRUE(port.flows.empty());
}

TEST_F(PortSteeringTest, FlowOfAnotherProcess_IsInUse) {
  port.taken = {at(wire::kProtocolUdp, "10.9.1.1", 7)};
  EXPECT_EQ(error_of(to_port(wire::kProtocolUdp, 7)), EADDRINUSE);
  EXPECT_TRUE(port.flows.empty()) << "all of a rule or nothing";
  EXPECT_EQ(error_of(to_address(to_port(wire::kProtocolUdp, 7), "10.9.0.1")), 0);
}

TEST_F(PortSteeringTest, RoceIsTakenWithTheFirstQueuePairThatNeedsIt) {
  raw();
  EXPECT_TRUE(port.flows.empty());
  port.taken = {at(wire::kProtocolUdp, "10.9.0.1", kRoce)};
  EXPECT_EQ(add_qp(IBV_QPT_RC).error, EADDRINUSE);
  EXPECT_TRUE(port.flows.empty());
  port.taken.clear();
  Qp* const qp = add_qp(IBV_QPT_UD).object;
  ASSERT_NE(qp, nullptr);
  const std::vector every = {at(wire::kProtocolUdp, kLinkLocal, kRoce), at(wire::kProtocolUdp, "10.9.0.1", kRoce),
                             at(wire::kProtocolUdp, "10.9.1.1", kRoce), at(wire::kProtocolUdp, kGlobal, kRoce)};
  EXPECT_EQ(port.flows, every);
  EXPECT_EQ(add_qp(IBV_QPT_RC).error, 0);
  device_->destroy_qp(*qp);
  EXPECT_EQ(port.flows, every);
  device_.reset();
  EXPECT_TRUE(port.flows.empty());
}

}  // namespace
}  // namespace bypass::rdma::test
