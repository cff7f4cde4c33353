// Which rules a card is asked for a flow, and when.
#include "backends/verbs/flow_rules.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "stack/frame/wire.h"

namespace bypass::verbs {
namespace {

const MacAddress kMac{{2, 0, 0, 0, 0, 1}};

// A device that records what it is asked.
class FlowDevice {
 public:
  FlowDevice() {
    context_.sz = sizeof context_;
    context_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context_.ibv_create_flow = [](ibv_qp* pair, ibv_flow_attr* wanted) {
      return static_cast<FlowDevice*>(pair->qp_context)->create(*wanted);
    };
    context_.ibv_destroy_flow = [](ibv_flow* flow) {
      delete flow;
      alive--;
      return 0;
    };
    queue.context = &context_.context;
    queue.qp_context = this;
    alive = 0;
  }

  ibv_qp queue{};
  std::vector<std::string> asked;
  std::function<void()> before;  // it answers
  bool refuses = false;
  int refusal = EBUSY;
  static inline std::atomic<int> alive = 0;

 private:
  // Reads a rule as a driver does: one part after another, by their sizes.
  ibv_flow* create(const ibv_flow_attr& wanted) {
    const auto* at = reinterpret_cast<const char*>(&wanted + 1);
    std::string text = "port " + std::to_string(wanted.port);
    for (int i = 0; i < wanted.num_of_specs; i++) {
      ibv_flow_spec_tcp_udp ports{};
      ibv_flow_spec_ipv4 ip{};
      ibv_flow_spec_eth ethernet{};
      const auto& head = *reinterpret_cast<const ibv_flow_spec_eth*>(at);  // type and size come first in each
      if (head.type == IBV_FLOW_SPEC_ETH) {
        std::memcpy(&ethernet, at, sizeof ethernet);
        if (ethernet.mask.dst_mac[0] == 0xff) text += " mac " + std::to_string(ethernet.val.dst_mac[5]);
      } else if (head.type == IBV_FLOW_SPEC_IPV4) {
        std::memcpy(&ip, at, sizeof ip);
        text += " to " + part(ip.val.dst_ip, ip.mask.dst_ip) + " from " + part(ip.val.src_ip, ip.mask.src_ip);
      } else {
        std::memcpy(&ports, at, sizeof ports);
        text += head.type == IBV_FLOW_SPEC_TCP ? " tcp " : " udp ";
        text += part(ports.val.dst_port, ports.mask.dst_port) + "<" + part(ports.val.src_port, ports.mask.src_port);
      }
      at += head.size;
    }
    EXPECT_EQ(at, reinterpret_cast<const char*>(&wanted) + wanted.size);
    asked.push_back(text);
    if (before) before();
    errno = refusal;
    if (refuses) return nullptr;
    alive++;
    return new ibv_flow{0, &context_.context, 0};
  }
  static std::string part(std::uint32_t value, std::uint32_t mask) {
    if (mask == 0) return "*";
    EXPECT_EQ(mask, 0xffff'ffffU);
    return std::to_string(be32_to_host(value) & 0xff);
  }
  static std::string part(std::uint16_t value, std::uint16_t mask) {
    if (mask == 0) return "*";
    EXPECT_EQ(mask, 0xffffU);
    return std::to_string(be16_to_host(value));
  }

  verbs_context context_{};
};

FlowSpec listener() {
  return {wire::kProtocolTcp, {IpAddress::from_v4(0x0a090001), 80}, {}};
}

FlowSpec connection() {
  return {wire::kProtocolTcp, {IpAddress::from_v4(0x0a090001), 5000}, {IpAddress::from_v4(0x0a090002), 80}};
}

TEST(FlowRules, ListenerAndConnection_AreAskedForByWhatTheyName) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 2, kMac), 0U);
  EXPECT_TRUE(rules.add(listener()));
  EXPECT_TRUE(rules.add(connection()));
  FlowSpec datagrams = listener();
  datagrams.protocol = wire::kProtocolUdp;
  EXPECT_TRUE(rules.add(datagrams));
  EXPECT_EQ(device.asked,
            (std::vector<std::string>{"port 2 mac 1 to 1 from * tcp 80<*", "port 2 mac 1 to 1 from 2 tcp 5000<80",
                                      "port 2 mac 1 to 1 from * udp 80<*"}));
}

TEST(FlowRules, SharedFlow_IsOneRuleUntilTheLastLeaves) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  EXPECT_TRUE(rules.add(listener()));
  EXPECT_TRUE(rules.add(listener()));
  EXPECT_EQ(device.asked.size(), 1U);
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(FlowDevice::alive, 1);
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(FlowDevice::alive, 0);
  EXPECT_FALSE(rules.remove(listener()));
}

TEST(FlowRules, FlowOfALostDevice_IsRememberedForTheNext) {
  for (const int refusal : {EIO, ENODEV}) {
    FlowDevice device;
    FlowRules rules;
    EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
    device.refuses = true;
    device.refusal = refusal;
    EXPECT_TRUE(rules.add(listener()));
    EXPECT_TRUE(rules.add(listener()));
    EXPECT_TRUE(rules.add(connection()));
    EXPECT_TRUE(rules.remove(connection()));
    EXPECT_EQ(FlowDevice::alive, 0);
    device.refuses = false;
    EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
    EXPECT_EQ(FlowDevice::alive, 1);
    EXPECT_TRUE(rules.remove(listener()));
    EXPECT_EQ(FlowDevice::alive, 1);
    EXPECT_TRUE(rules.remove(listener()));
    EXPECT_EQ(FlowDevice::alive, 0);
  }
}

// Two sockets of one flow: the first was refused the rule, the second got it, and the first ends.
TEST(FlowRules, RefusedFlowsEnd_LeavesTheNextOnesRule) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  device.refuses = true;
  EXPECT_FALSE(rules.add(listener()));
  EXPECT_EQ(errno, EBUSY);
  device.refuses = false;
  EXPECT_TRUE(rules.add(listener()));
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(FlowDevice::alive, 1);
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(FlowDevice::alive, 0);
  EXPECT_EQ(rules.size(), 0U);
}

TEST(FlowRules, RefusedFlow_IsAskedForAgainByTheNextQueuePairAndCountsOnce) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  device.refuses = true;
  EXPECT_FALSE(rules.add(listener()));
  rules.destroy();
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);  // its socket knows
  rules.destroy();
  device.refuses = false;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  EXPECT_EQ(FlowDevice::alive, 1);
  rules.destroy();
  device.refuses = true;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 1U);
  EXPECT_EQ(device.asked.size(), 4U);
}

TEST(FlowRules, NewQueuePair_HasTheOldOnesRules) {
  FlowDevice device, other;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  (void)rules.add(listener());
  (void)rules.add(connection());
  rules.destroy();
  EXPECT_EQ(FlowDevice::alive, 0);
  EXPECT_EQ(rules.begin(&other.queue, 1, kMac), 0U);
  EXPECT_EQ(other.asked.size(), 2U);
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(FlowDevice::alive, 1);
  rules.destroy();
  other.refuses = true;
  EXPECT_EQ(rules.begin(&other.queue, 1, kMac), 1U);
  EXPECT_EQ(FlowDevice::alive, 0);
  EXPECT_TRUE(rules.remove(connection()));
  EXPECT_EQ(rules.size(), 0U);
}

TEST(FlowRules, AskedForWithoutAQueuePair_IsMadeForTheNextUnlessItHasEnded) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  EXPECT_TRUE(rules.add(listener()));
  rules.suspend();
  EXPECT_TRUE(rules.add(connection()));
  EXPECT_EQ(device.asked.size(), 1U);
  rules.destroy();
  EXPECT_TRUE(rules.remove(listener()));
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  EXPECT_EQ(device.asked.size(), 2U);  // the connection's alone
  EXPECT_TRUE(rules.remove(connection()));
  EXPECT_EQ(FlowDevice::alive, 0);
}

TEST(FlowRules, DeviceDiesWhileTheyAreMade_NoneIsLost) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_TRUE(rules.add(listener()));
  device.refuses = true;
  device.refusal = EIO;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  rules.destroy();
  device.refuses = false;
  EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U);
  EXPECT_EQ(FlowDevice::alive, 1);
}

// When a socket has ended, its port may be the kernel's next one. No rule for it is left, and none comes.
TEST(FlowRules, EndsWhileItsRuleIsMade_IsGoneOnceThatReturns) {
  FlowDevice device;
  FlowRules rules;
  EXPECT_TRUE(rules.add(listener()));
  EXPECT_TRUE(rules.add(connection()));
  std::latch asked(1), go_on(1);
  device.before = [&] {
    asked.count_down();
    go_on.wait();
  };
  std::thread maker([&] { EXPECT_EQ(rules.begin(&device.queue, 1, kMac), 0U); });
  asked.wait();
  EXPECT_EQ(device.asked.size(), 1U);
  const bool listeners = device.asked[0].find("from *") != std::string::npos;
  const FlowSpec made = listeners ? listener() : connection(), next = listeners ? connection() : listener();
  EXPECT_TRUE(rules.add(made));
  EXPECT_TRUE(rules.remove(made));
  EXPECT_TRUE(rules.remove(next));  // waits for nothing
  std::atomic<bool> removed{false};
  std::thread ends([&] {
    EXPECT_TRUE(rules.remove(made));
    removed = true;
    EXPECT_EQ(FlowDevice::alive, 0);
  });
  while (rules.is_steered(made)) std::this_thread::yield();
  EXPECT_FALSE(removed);
  go_on.count_down();
  ends.join();
  maker.join();
  EXPECT_EQ(device.asked.size(), 1U);
  EXPECT_EQ(rules.size(), 0U);
}

}  // namespace
}  // namespace bypass::verbs
