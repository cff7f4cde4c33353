#include "runtime/routing/decide.h"

#include <gtest/gtest.h>

#include "config/environment.h"
#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

using observe::Reason;

// A configuration and what it decides.
struct Decisions {
  Config config;
  LiveNetwork network{config};
  Decider decider{config, network};

  explicit Decisions(std::initializer_list<const char*> variables) : config(from_environment(variables)) {
    EXPECT_EQ(messages(config), "");
  }
  Verdict connect(std::string_view address, std::uint16_t port, RuleProto proto = RuleProto::kTcp) const {
    return decider.connect(proto, {*parse_ip(address), port});
  }
  Verdict listen(std::string_view address) const { return decider.listen(RuleProto::kTcp, {*parse_ip(address), 80}); }
};

const Decisions& with_gateway() {
  static const Decisions decisions({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.9.0.254"});
  return decisions;
}

TEST(Decide, Gateway_DoesNotDrawLoopbackToTheWire) {
  const Verdict verdict = with_gateway().connect("127.0.0.1", 6379);
  EXPECT_EQ(verdict.action, RuleAction::kKernel);
  EXPECT_EQ(verdict.reason, Reason::kLoopback);
  EXPECT_STREQ(verdict.detail, "");
}

TEST(Decide, Gateway_DoesNotDrawDnsToTheWire) {
  const Verdict verdict = with_gateway().connect("192.0.2.53", 53, RuleProto::kUdp);
  EXPECT_EQ(verdict.action, RuleAction::kKernel);
  EXPECT_EQ(verdict.reason, Reason::kDns);
  EXPECT_EQ(with_gateway().connect("10.9.0.53", 53, RuleProto::kUdp).action, RuleAction::kBypass);
}

TEST(Decide, Gateway_TakesTheRestOfTheWorld) {
  EXPECT_EQ(with_gateway().connect("192.0.2.1", 443).action, RuleAction::kBypass);
}

TEST(Decide, PrefixOfLengthZero_LeavesLoopbackAndDnsToTheKernel) {
  const Decisions own({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/0"});
  EXPECT_EQ(own.connect("127.0.0.53", 53).reason, Reason::kLoopback);
  EXPECT_EQ(own.connect("192.0.2.53", 53).reason, Reason::kDns);
  EXPECT_EQ(own.connect("192.0.2.1", 443).action, RuleAction::kBypass);
}

TEST(Decide, UsersRuleForEverything_StillDoesNotPutLoopbackOnTheWire) {
  const Decisions own(
      {"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.9.0.254", "BYPASS_RULES=bypass tcp *"});
  EXPECT_EQ(own.connect("127.0.0.1", 80).reason, Reason::kNoRoute);
}

TEST(Decide, WithoutGateway_OtherNetworksAreTheKernels) {
  const Decisions own({"BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(own.connect("10.9.0.7", 80).action, RuleAction::kBypass);
  EXPECT_EQ(own.connect("192.0.2.1", 80).reason, Reason::kNoRoute);
}

TEST(Decide, Ipv6Peer_IsTheKernels) {
  const Decisions own({"BYPASS_PORT=tap:a", "BYPASS_ADDR=fd09::1/64"});
  EXPECT_EQ(own.connect("fd09::7", 80).reason, Reason::kAfUnsupported);
}

TEST(Decide, Listener_TakesOwnAddressesAndTheWildcard) {
  EXPECT_EQ(with_gateway().listen("10.9.0.1").action, RuleAction::kBypass);
  EXPECT_EQ(with_gateway().listen("0.0.0.0").action, RuleAction::kBypass);
  EXPECT_EQ(with_gateway().listen("127.0.0.1").reason, Reason::kLoopback);
  EXPECT_EQ(with_gateway().listen("192.0.2.1").reason, Reason::kAddressNotOurs);
  EXPECT_EQ(with_gateway().listen("fd09::1").reason, Reason::kAfUnsupported);
}

}  // namespace
}  // namespace bypass::runtime
