// Where a value comes from, the message for a bad one, and what each kind of value accepts.
#include "config/config.h"

#include <gtest/gtest.h>

#include "config/environment.h"
#include "config/settings.h"

namespace bypass::runtime {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const SettingValue& value_of(const Config& config, std::string_view key) {
  return config.values[setting_index(*setting_by_key(key))];
}

TEST(Config, NothingGiven_IsAllDefaultsAndNoPort) {
  const Config config = from_environment({"PATH=/bin", "HOME=/root"});
  EXPECT_EQ(messages(config), "");
  EXPECT_TRUE(config.ports.empty());
  EXPECT_FALSE(config.wants_port());
  EXPECT_TRUE(config.local);
  EXPECT_TRUE(config.asks_for_nothing());
  EXPECT_EQ(config.rdma, RdmaMode::kAuto);
  EXPECT_EQ(config.profile, Profile::kBalanced);
  EXPECT_EQ(config.spin, microseconds(50));
  EXPECT_EQ(config.tcp.rto_min, milliseconds(200));
  EXPECT_EQ(config.tcp.congestion, Congestion::kCubic);
  EXPECT_EQ(config.memory, 1U << 30);
  EXPECT_EQ(config.log_level, LogLevel::kWarn);
  for (const SettingValue& value : config.values) EXPECT_NE(value.origin, Origin::kEnvironment);
}

TEST(Config, SharedMemoryByName_APort_OrAMistake_IsAskedFor) {
  EXPECT_FALSE(from_environment({"BYPASS_LOCAL=on"}).asks_for_nothing());
  EXPECT_FALSE(from_environment({"BYPASS_PORT=vhost:/tmp/wire", "BYPASS_ADDR=10.9.0.1/24"}).asks_for_nothing());
  EXPECT_FALSE(from_environment({"BYPASS_LOCAL=maybe"}).asks_for_nothing());
  EXPECT_TRUE(from_environment({"BYPASS_PROFILE=latency"}).asks_for_nothing());
}

TEST(Config, LinksGoOverCards_OrADeviceByName) {
  const auto wants = [](const char* rdma, const char* kind, const char* target) {
    PortConfig port;
    port.kind = kind, port.target = target;
    const std::string variable = std::string("BYPASS_RDMA=") + rdma;
    const Config config = from_environment({variable.c_str(), "BYPASS_PORT=auto", "BYPASS_SOFT=vhost:/tmp/wire"});
    EXPECT_EQ(messages(config), "");
    return config.wants_links(port);
  };
  EXPECT_TRUE(wants("auto", "verbs", "mlx5_0"));
  EXPECT_TRUE(wants("auto", "verbs", "mlx5_0:2"));
  EXPECT_FALSE(wants("auto", "verbs", "soft0"));
  EXPECT_FALSE(wants("auto", "vhost", "/tmp/wire"));
  EXPECT_TRUE(wants("soft0", "verbs", "soft0"));
  EXPECT_TRUE(wants("mlx5_0", "vhost", "/tmp/wire"));
  EXPECT_FALSE(wants("off", "verbs", "mlx5_0"));
}

TEST(Config, RdmaThatCannotBe_IsAProblem) {
  const auto problem = [](std::initializer_list<const char*> variables) {
    return messages(from_environment(variables));
  };
  const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  for (const char* value : {"BYPASS_RDMA=on", "BYPASS_RDMA=yes", "BYPASS_RDMA=no"})
    EXPECT_TRUE(has(problem({value, "BYPASS_PORT=auto"}), "is no device's name; accepted is auto, off or the name"))
        << problem({value, "BYPASS_PORT=auto"});
  EXPECT_TRUE(has(problem({"BYPASS_RDMA=soft0", "BYPASS_PORT=verbs:mlx5_0"}), "'soft0', which nothing makes"));
  EXPECT_TRUE(has(problem({"BYPASS_RDMA=soft1", "BYPASS_PORT=verbs:soft0", "BYPASS_SOFT=vhost:/tmp/a"}),
                  "'soft1', which nothing makes"));
  for (const char* device : {"BYPASS_RDMA=mlx5_0", "BYPASS_RDMA=soft0"})
    EXPECT_TRUE(has(problem({device, "BYPASS_SOFT=vhost:/tmp/a"}),
                    "has no effect without BYPASS_PORT; accepted is auto, off or the name of an RDMA device"));
  EXPECT_EQ(problem({"BYPASS_RDMA=auto"}), "");
  EXPECT_TRUE(has(problem({"BYPASS_PORT=vhost:/tmp/a", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_SOFT=vhost:/tmp/a"}),
                  "which is BYPASS_PORT's, too; the port above a software device is BYPASS_PORT=verbs:soft0"));
}

TEST(Config, EveryContractName_ParsesFromTheEnvironment) {
  const Config config = from_environment(
      {"BYPASS_PORT=vhost:/tmp/a.sock;verbs:mlx5_0:1", "BYPASS_ADDR=10.9.0.1/24,fd09::1/64;10.8.0.1/24",
       "BYPASS_GATEWAY=10.9.0.254", "BYPASS_MAC=02:00:00:00:00:01", "BYPASS_MTU=9000;1500",
       "BYPASS_SOFT=tap:bp0;vhost:/tmp/s", "BYPASS_SOFT_ADDR=10.7.0.1/24", "BYPASS_LOCAL=on", "BYPASS_RDMA=mlx5_0",
       "BYPASS_RULES=bypass tcp connect 10.9.0.0/16:6379; kernel udp *", "BYPASS_PROFILE=latency", "BYPASS_STRICT=1",
       "BYPASS_CONFIG=/nonexistent", "BYPASS_RUN_DIR=/tmp/run", "BYPASS_LOG=debug", "BYPASS_LOG_FILE=/tmp/log"});
  EXPECT_EQ(messages(config), "");
  ASSERT_EQ(config.ports.size(), 2U);
  ASSERT_EQ(config.soft.size(), 2U);
  EXPECT_TRUE(config.local);
  EXPECT_EQ(config.rdma, RdmaMode::kDevice);
  EXPECT_EQ(config.rdma_device, "mlx5_0");
  EXPECT_EQ(config.rules.rules().size(), 2U);
  EXPECT_EQ(config.profile, Profile::kLatency);
  EXPECT_TRUE(config.strict);
  EXPECT_EQ(config.run_dir, "/tmp/run");
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.log_file, "/tmp/log");
}

TEST(Config, Precedence_EnvironmentFileProfileDefault) {
  const char* const file = "profile = \"throughput\"\nspin_us = 7\ntick_ms = 20\n";
  const Config config = from_file(file, {"BYPASS_TICK_MS=30"});
  EXPECT_EQ(messages(config), "");
  EXPECT_EQ(config.tick, milliseconds(30));
  EXPECT_EQ(value_of(config, "tick_ms").where, "environment");
  EXPECT_EQ(config.spin, microseconds(7));
  EXPECT_EQ(value_of(config, "spin_us").where, "test.toml:2");
  EXPECT_EQ(config.tcp.send_buffer, 16U << 20);
  EXPECT_EQ(value_of(config, "tcp.sndbuf").where, "profile throughput");
  EXPECT_EQ(config.tcp.retries2, 15U);
  EXPECT_EQ(value_of(config, "tcp.retries2").origin, Origin::kDefault);
}

TEST(Config, EnvironmentsProfile_BeatsTheFilesProfile) {
  const Config config = from_file("profile = \"latency\"\n", {"BYPASS_PROFILE=cpu"});
  EXPECT_EQ(config.spin, Duration::zero());
  EXPECT_EQ(config.yield, Duration::zero());
}

TEST(Config, LatencyProfile_NeverSleeps) {
  EXPECT_EQ(from_environment({"BYPASS_PROFILE=latency"}).yield, kForever);
}

TEST(Config, EmptyVariable_IsNotSet) {
  const Config config = from_environment({"BYPASS_PORT=", "BYPASS_TSO="});
  EXPECT_EQ(messages(config), "");
  EXPECT_TRUE(config.tso);
}

TEST(Config, UnknownVariable_NamesTheNearest) {
  EXPECT_EQ(messages(from_environment({"BYPASS_PROT=vhost:/tmp/x"})),
            "BYPASS_PROT=vhost:/tmp/x (environment): is no setting; did you mean BYPASS_PORT?; "
            "`bypass config` lists them\n");
  EXPECT_EQ(messages(from_environment({"BYPASS_XYZZY_FROTZ=1"})),
            "BYPASS_XYZZY_FROTZ=1 (environment): is no setting; `bypass config` lists them\n");
}

TEST(Config, TestSuitesOwnVariables_AreNoSettings) {
  EXPECT_EQ(messages(from_environment({"BYPASS_TEST_LONG=1"})), "");
}

TEST(Config, BadNumber_SaysRangeAndUnit) {
  EXPECT_EQ(messages(from_environment({"BYPASS_TCP_RTO_MIN_US=5"})),
            "BYPASS_TCP_RTO_MIN_US=5 (environment): is out of range; accepted is a whole number from 1000 to 60000000 "
            "(µs)\n");
  EXPECT_EQ(messages(from_environment({"BYPASS_SPIN_US=soon"})),
            "BYPASS_SPIN_US=soon (environment): is no whole number; accepted is a whole number from 0 to 10000000 (µs) "
            "or forever\n");
}

TEST(Config, NumberThatNoRegisterHolds_IsOutOfRange) {
  const std::string huge = "99999999999999999999";
  for (const std::string name : {"BYPASS_TICK_MS", "BYPASS_LOCAL_AFTER", "BYPASS_SPIN_US", "BYPASS_MEMORY"})
    for (const std::string& value : {huge, "-" + huge}) {
      const std::string variable = name + "=" + value;
      const std::string said = messages(from_environment({variable.c_str()}));
      EXPECT_NE(said.find(": is out of range; accepted is a "), std::string::npos) << said;
    }
  for (const char* value : {"BYPASS_MEMORY=9999999999999999G", "BYPASS_MEMORY=-1"})
    EXPECT_NE(messages(from_environment({value})).find("is out of range"), std::string::npos) << value;
  for (const char* value : {"BYPASS_MEMORY=64X", "BYPASS_MEMORY=G", "BYPASS_TICK_MS=-", "BYPASS_TICK_MS=5k"})
    EXPECT_NE(messages(from_environment({value})).find("is no whole number"), std::string::npos) << value;
}

TEST(Config, RelativeRunDirectory_IsRefused) {
  for (const std::string value : {"relative", "3", "./run", "~/run"}) {
    const std::string variable = "BYPASS_RUN_DIR=" + value;
    const Config config = from_environment({variable.c_str()});
    EXPECT_EQ(messages(config), variable +
                                    " (environment): is no absolute path; accepted is an absolute path, of a directory "
                                    "of the user's own, mode 0700\n");
    EXPECT_TRUE(config.run_dir.empty());
    EXPECT_FALSE(config.wants_anything());
  }
}

TEST(Config, BadChoice_SaysTheWordsAndTheNearest) {
  EXPECT_EQ(messages(from_environment({"BYPASS_TCP_CONGESTION=cubik"})),
            "BYPASS_TCP_CONGESTION=cubik (environment): is not one of them (did you mean 'cubic'?); accepted is one of "
            "cubic, newreno\n");
  EXPECT_EQ(from_environment({"BYPASS_PROFILE=fast"}).problems.size(), 1U);
  EXPECT_EQ(from_environment({"BYPASS_STRICT=maybe"}).problems.size(), 1U);
}

TEST(Config, BadValue_LeavesTheDefaultAndEveryProblemIsReported) {
  const Config config = from_environment({"BYPASS_MEMORY=lots", "BYPASS_TICK_MS=0", "BYPASS_NOPE=1"});
  EXPECT_EQ(config.problems.size(), 3U);
  EXPECT_FALSE(config.ok());
  EXPECT_FALSE(config.wants_port());
}

TEST(Config, Sizes_TakeSuffixes) {
  EXPECT_EQ(from_environment({"BYPASS_MEMORY=64M"}).memory, 64U << 20);
  EXPECT_EQ(from_environment({"BYPASS_MEMORY=67108864"}).memory, 64U << 20);
  EXPECT_EQ(from_environment({"BYPASS_MEMORY=2GiB"}).memory, std::uint64_t{2} << 30);
  EXPECT_EQ(from_environment({"BYPASS_MEMORY=65536kB"}).memory, 64U << 20);
  for (const char* bad : {"BYPASS_MEMORY=64X", "BYPASS_MEMORY=64G", "BYPASS_MEMORY=-1",
                          "BYPASS_MEMORY=9999999999999999G", "BYPASS_MEMORY=M"})
    EXPECT_EQ(from_environment({bad}).problems.size(), 1U) << bad;
}

TEST(Config, RtoBounds_MustNotCross) {
  EXPECT_EQ(from_environment({"BYPASS_TCP_RTO_MIN_US=5000000", "BYPASS_TCP_RTO_MAX_MS=1000"}).problems.size(), 1U);
}

}  // namespace
}  // namespace bypass::runtime
