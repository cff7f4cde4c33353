#include "config/rules.h"

#include <gtest/gtest.h>

#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

RuleSet rules(std::string_view text) {
  RuleSet set;
  std::string problem;
  EXPECT_TRUE(set.add(text, problem)) << problem;
  return set;
}

std::string problem_of(std::string_view text) {
  RuleSet set;
  std::string problem;
  EXPECT_FALSE(set.add(text, problem)) << text;
  return problem;
}

RuleQuery connect_tcp(std::string_view address, std::uint16_t port) {
  return {RuleProto::kTcp, RuleRole::kConnect, {*parse_ip(address), port}, false};
}

TEST(Rules, FirstMatch_Wins) {
  const RuleSet set = rules("bypass tcp connect 10.9.0.0/16:6379; kernel tcp *");
  EXPECT_EQ(set.decide(connect_tcp("10.9.3.4", 6379)).action, RuleAction::kBypass);
  const RuleDecision other = set.decide(connect_tcp("10.9.3.4", 6380));
  EXPECT_EQ(other.action, RuleAction::kKernel);
  EXPECT_EQ(other.source, RuleSource::kUser);
  EXPECT_STREQ(other.text, "kernel tcp *");
}

TEST(Rules, Protocol_SelectsDatagrams) {
  const RuleSet set = rules("kernel udp *");
  RuleQuery query = connect_tcp("10.9.3.4", 5000);
  EXPECT_EQ(set.decide(query).action, RuleAction::kBypass);
  query.proto = RuleProto::kUdp;
  EXPECT_EQ(set.decide(query).action, RuleAction::kKernel);
}

TEST(Rules, Role_SelectsListeners) {
  const RuleSet set = rules("fail * listen *:8000-8999");
  RuleQuery query = connect_tcp("10.9.0.1", 8080);
  EXPECT_EQ(set.decide(query).action, RuleAction::kBypass);
  query.role = RuleRole::kListen;
  EXPECT_EQ(set.decide(query).action, RuleAction::kFail);
  query.address.port = 9000;
  EXPECT_EQ(set.decide(query).action, RuleAction::kBypass);
}

TEST(Rules, Ipv6Prefix_WithAndWithoutPort) {
  const RuleSet set = rules("kernel tcp connect [fd09::/64]:443; fail fd0a::/16");
  EXPECT_EQ(set.decide(connect_tcp("fd09::5", 443)).action, RuleAction::kKernel);
  EXPECT_EQ(set.decide(connect_tcp("fd09::5", 80)).action, RuleAction::kBypass);
  EXPECT_EQ(set.decide(connect_tcp("fd0a::5", 80)).action, RuleAction::kFail);
}

TEST(Rules, Program_OtherProgramsRulesFallAway) {
  RuleSet set = rules("kernel tcp * program=redis*; fail * program=nginx");
  set.keep_program("redis-server");
  ASSERT_EQ(set.rules().size(), 1U);
  EXPECT_EQ(set.decide(connect_tcp("10.9.3.4", 1)).action, RuleAction::kKernel);
}

TEST(Rules, Rdma_NamesPeersAndDecidesNothing) {
  RuleSet set = rules("rdma 10.20.0.0/16; kernel tcp 10.20.1.0/24; rdma * * fd0a::/16 program=nginx; rdma 10.30.0.7");
  set.keep_program("redis-server");
  EXPECT_EQ(set.decide(connect_tcp("10.20.2.1", 6379)).source, RuleSource::kDefault);
  EXPECT_STREQ(set.decide(connect_tcp("10.20.1.1", 6379)).text, "kernel tcp 10.20.1.0/24");
  const std::vector<Prefix> peers = set.rdma_peers();
  ASSERT_EQ(peers.size(), 2U);
  EXPECT_TRUE(peers[0].contains(*parse_ip("10.20.255.1")));
  EXPECT_TRUE(peers[1].contains(*parse_ip("10.30.0.7")));
  EXPECT_FALSE(peers[1].contains(*parse_ip("10.30.0.8")));
}

TEST(Rules, Rdma_OfAnythingButPeersIsRefused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"rdma", "no peers are named"},
      {"rdma *", "no peers are named"},
      {"rdma tcp 10.20.0.0/16", "'tcp' does not fit: only an address, and program=NAME, can follow"},
      {"rdma udp 10.20.0.0/16", "'udp' does not fit"},
      {"rdma connect 10.20.0.0/16", "'connect' or 'listen' does not fit"},
      {"rdma 10.20.0.1:80", "a port does not fit"},
  };
  for (const auto& [text, what] : wrong) {
    const std::string problem = problem_of(text);
    EXPECT_NE(problem.find(std::string("'") + text + "' " + what), std::string::npos) << problem;
    EXPECT_NE(problem.find("rdma ADDRESS[/LENGTH] [program=NAME]"), std::string::npos) << problem;
  }
}

TEST(Rules, Loopback_StaysWithTheKernel) {
  const RuleSet set;
  for (const char* address : {"127.0.0.1", "127.5.5.5", "::1"}) {
    const RuleDecision decision = set.decide(connect_tcp(address, 80));
    EXPECT_EQ(decision.action, RuleAction::kKernel) << address;
    EXPECT_EQ(decision.source, RuleSource::kLoopback) << address;
  }
}

TEST(Rules, Dns_StaysWithTheKernelUnlessAPortOwnsTheAddress) {
  const RuleSet set;
  RuleQuery query = connect_tcp("10.9.0.53", 53);
  EXPECT_EQ(set.decide(query).source, RuleSource::kDns);
  query.port_owns_address = true;
  EXPECT_EQ(set.decide(query).action, RuleAction::kBypass);
  EXPECT_EQ(set.decide(query).source, RuleSource::kDefault);
}

TEST(Rules, UsersRule_ComesBeforeTheBuiltInOnes) {
  EXPECT_EQ(
      rules("bypass udp connect *:53").decide({RuleProto::kUdp, RuleRole::kConnect, {*parse_ip("8.8.8.8"), 53}}).action,
      RuleAction::kBypass);
}

TEST(Rules, EmptyPartsAndSpaces_AreNoRules) {
  EXPECT_EQ(rules(" ; kernel  tcp ;; ").rules().size(), 1U);
}

TEST(Rules, Mistakes_NameTheRuleTheWordAndTheForm) {
  EXPECT_EQ(problem_of("kernal udp *").substr(0, 74),
            "in the rule 'kernal udp *' 'kernal' is no action (did you mean 'kernel'?);");
  EXPECT_NE(problem_of("kernel icmp").find("'icmp' does not fit there"), std::string::npos);
  EXPECT_NE(problem_of("kernel tcp connect 10.9.0.0/40").find("'10.9.0.0/40'"), std::string::npos);
  EXPECT_NE(problem_of("kernel tcp * program=").find("'program=' names no program"), std::string::npos);
  EXPECT_NE(problem_of("kernel tcp *:99999").find("accepted is ACTION"), std::string::npos);
  EXPECT_NE(problem_of("kernel tcp *:90-80").find("'*:90-80'"), std::string::npos);
}

}  // namespace
}  // namespace bypass::runtime
