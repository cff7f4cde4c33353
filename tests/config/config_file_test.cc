// The TOML form: the same settings, lists, [[rule]] tables, and the messages for mistakes.
#include <gtest/gtest.h>

#include "config/environment.h"

namespace bypass::runtime {
namespace {

TEST(ConfigFileToml, Values_OfEachType) {
  const Config config = from_file(R"(
port = ["vhost:/tmp/a", "tap:bp0"]
addr = ["10.9.0.1/24,fd09::1/64", "10.8.0.1/24"]
mtu = 1500
strict = true
tso = "off"
memory = "64M"
port_memory = 8388608
[tcp]
congestion = "newreno"
rto_min_us = 5000
)");
  ASSERT_EQ(messages(config), "");
  EXPECT_EQ(config.ports.at(1).target, "bp0");
  EXPECT_EQ(config.ports.at(0).addresses.size(), 2U);
  EXPECT_EQ(config.ports.at(0).mtu, 1500U);
  EXPECT_TRUE(config.strict);
  EXPECT_FALSE(config.tso);
  EXPECT_EQ(config.memory, 64U << 20);
  EXPECT_EQ(config.port_memory, 8U << 20);
  EXPECT_EQ(config.tcp.congestion, Congestion::kNewReno);
  EXPECT_EQ(config.tcp.rto_min, std::chrono::milliseconds(5));
}

TEST(ConfigFileToml, RuleTables_KeepTheirOrder) {
  const Config config = from_file(R"(
[[rule]]
action = "bypass"
proto = "tcp"
role = "connect"
address = "10.9.0.0/16"
port = 6379
[[rule]]
action = "fail"
address = "fd09::/64"
port = "80-90"
program = "curl"
[[rule]]
action = "kernel"
proto = "udp"
)");
  ASSERT_EQ(messages(config), "");
  const auto& rules = config.rules.rules();
  ASSERT_EQ(rules.size(), 3U);
  EXPECT_EQ(rules[0].text, "bypass tcp connect 10.9.0.0/16:6379");
  EXPECT_EQ(rules[1].text, "fail * * [fd09::/64]:80-90 program=curl");
  EXPECT_EQ(rules[1].port_high, 90);
  EXPECT_EQ(rules[2].text, "kernel udp * *");
}

TEST(ConfigFileToml, EnvironmentsRules_ReplaceTheFiles) {
  const Config config = from_file("[[rule]]\naction = \"fail\"\n", {"BYPASS_RULES=kernel udp"});
  ASSERT_EQ(config.rules.rules().size(), 1U);
  EXPECT_EQ(config.rules.rules()[0].text, "kernel udp");
}

TEST(ConfigFileToml, UnknownKey_NamesLineAndNearest) {
  EXPECT_EQ(messages(from_file("\nspin_su = 5\n")),
            "spin_su=5 (test.toml:2): is no setting; did you mean spin_us?; `bypass config` lists them\n");
  EXPECT_EQ(
      messages(from_file("[tcp]\ncongestoin = \"cubic\"\n")),
      "tcp.congestoin=cubic (test.toml:2): is no setting; did you mean tcp.congestion?; `bypass config` lists them\n");
  EXPECT_EQ(from_file("config = \"/etc/x\"\n").problems.size(), 1U);  // a file cannot name the file
}

TEST(ConfigFileToml, BadValue_IsNamedByItsKey) {
  EXPECT_EQ(messages(from_file("tick_ms = 0\n")),
            "tick_ms=0 (test.toml:1): is out of range; accepted is a whole number from 1 to 1000 (ms)\n");
  EXPECT_EQ(messages(from_file("tick_ms = 0.5\n")),
            "tick_ms=0.5 (test.toml:1): is no whole number; accepted is a whole number from 1 to 1000 (ms)\n");
  EXPECT_EQ(messages(from_file("tick_ms = 25.0\n")),
            "tick_ms=25.0 (test.toml:1): is no whole number; accepted is a whole number from 1 to 1000 (ms)\n");
  EXPECT_EQ(messages(from_file("tick_ms = 1979-05-27\n")),
            "tick_ms (test.toml:1): must be a string, a whole number, true, false or a list of these\n");
}

TEST(ConfigFileToml, BadRule_IsExplained) {
  EXPECT_EQ(
      messages(from_file("[[rule]]\naction = \"fail\"\nprogramm = \"x\"\n")),
      "rule.programm (test.toml:3): is no part of a rule; did you mean program?; accepted are action, proto, role, "
      "address, port and program\n");
  EXPECT_EQ(messages(from_file("[[rule]]\nproto = \"udp\"\n")),
            "rule (test.toml:1): has no action; accepted is bypass, kernel, fail or rdma\n");
  EXPECT_EQ(messages(from_file("[[rule]]\naction = \"fail\"\nprogram = \"\"\n")),
            "rule.program (test.toml:3): is empty; accepted is to leave the key out, which means any\n");
  EXPECT_EQ(from_file("rule = 1\n").problems.size(), 1U);
  EXPECT_EQ(from_file("rules = \"kernel udp\"\n[[rule]]\naction = \"fail\"\n").problems.size(), 1U);
  EXPECT_NE(messages(from_file("[[rule]]\naction = \"pass\"\n")).find("'pass' is no action"), std::string::npos);
}

TEST(ConfigFileToml, SyntaxError_NamesTheLine) {
  const Config config = from_file("spin_us = 5\ntick_ms = = 4\n");
  ASSERT_EQ(config.problems.size(), 1U);
  EXPECT_EQ(config.problems[0].where, "test.toml:2");
}

TEST(ConfigFileToml, FileThatCannotBeRead_IsAProblemWhenNamed) {
  const char* const missing[] = {"BYPASS_CONFIG=/nonexistent/bypass.toml", nullptr};
  EXPECT_EQ(
      messages(load_config(missing, read_toml)),
      "BYPASS_CONFIG=/nonexistent/bypass.toml (environment): cannot be read: No such file or directory; accepted is "
      "the path of a TOML file\n");
  for (const std::string path : {"/dev/zero", "/tmp"}) {
    const std::string variable = "BYPASS_CONFIG=" + path;
    const char* const other[] = {variable.c_str(), nullptr};
    EXPECT_EQ(messages(load_config(other, read_toml)),
              variable + " (environment): is no regular file; accepted is the path of a TOML file\n");
  }
}

TEST(ConfigFileToml, NullDevice_IsAnEmptyFile) {
  const char* const null[] = {"BYPASS_CONFIG=/dev/null", "BYPASS_TICK_MS=25", nullptr};
  const Config config = load_config(null, read_toml);
  EXPECT_EQ(messages(config), "");
  EXPECT_EQ(config.tick, std::chrono::milliseconds(25));
}

}  // namespace
}  // namespace bypass::runtime
