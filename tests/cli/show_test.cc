// bypass stat, why and config: what they print of a live process, and how they end.
#include <netinet/in.h>
#include <sys/prctl.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "observe/scratch.h"

namespace bypass::tool {
namespace {

using nlohmann::json;
using observe::Reason;
using observe::Region;
using observe::RunDir;

// This test program as a process that uses the bypass: one port, one connection, one datagram socket.
class Show : public testing::Test {
 protected:
  void SetUp() override {
    observe::start(region_, dir_);
    const std::uint64_t counters[] = {7, 0};
    region_.publish_counters(counters, 1);
    observe::PortRecord port{};
    observe::set_text(port.kind, "vhost");
    observe::set_text(port.target, "/tmp/x");
    port.open = port.link_up = 1;
    port.v4 = IpAddress::from_v4(0x0a090001);
    port.v4_length = 24;
    port.tx_dropped = 77;
    region_.set_port(0, port);
    observe::SocketRecord socket{};
    socket.fd = 5;
    socket.protocol = IPPROTO_TCP;
    socket.state = static_cast<std::uint8_t>(observe::SocketState::kEstablished);
    socket.path = static_cast<std::uint8_t>(observe::SocketPath::kWire);
    socket.local_address = port.v4;
    socket.local_port = 6379;
    socket.remote_address = IpAddress::from_v4(0x0a090002);
    socket.remote_port = 40000;
    socket.rx_bytes = 12345;
    region_.update_socket(region_.claim_socket(), socket);
    observe::SocketRecord datagrams{};
    datagrams.fd = 6;
    datagrams.protocol = IPPROTO_UDP;
    datagrams.state = static_cast<std::uint8_t>(observe::SocketState::kOpen);
    datagrams.path = static_cast<std::uint8_t>(observe::SocketPath::kDual);
    datagrams.rx_queue = 3;
    region_.update_socket(region_.claim_socket(), datagrams);
    observe::SocketRecord closed = socket;
    closed.fd = -1;
    closed.of_stack = 1;
    closed.state = static_cast<std::uint8_t>(observe::SocketState::kTimeWait);
    closed.remote_port = 40001;
    region_.update_socket(region_.claim_socket(), closed);
    region_.why(Reason::kNoRoute, 9, IPPROTO_TCP, {IpAddress::from_v4(0x08080808), 443}, "8.8.8.8 is in no prefix");
  }

  Ran show(std::vector<std::string> arguments) {
    return run_command(std::move(arguments), {"BYPASS_RUN_DIR=" + dir_.path()});
  }

  RunDir dir_;
  Region region_;
  const std::string pid_ = std::to_string(getpid());
};

// Whatever name a process, its ports and its reasons have, a terminal gets plain text, and JSON stays valid.
TEST_F(Show, TextsOfAnotherProcess_CommandNoTerminal) {
  prctl(PR_SET_NAME, "\x1b[2J\xff\nroot#");
  RunDir dir;
  Region region;
  observe::start(region, dir);
  prctl(PR_SET_NAME, "cli_test");
  observe::PortRecord port{};
  observe::set_text(port.kind, "vhost");
  observe::set_text(port.target, "/tmp/\x1b]0;x\a");
  region.set_port(0, port);
  region.why(Reason::kNoRoute, 9, IPPROTO_TCP, {}, "a\nb\xc2\x9b");
  for (const char* command : {"stat", "why", "ss"}) {
    for (const bool as_json : {false, true}) {
      const std::vector<std::string> words = {command, as_json ? "--json" : pid_};
      const Ran ran = run_command(words, {"BYPASS_RUN_DIR=" + dir.path()});
      EXPECT_EQ(ran.code, 0) << command << ran.err;
      EXPECT_EQ(ran.out.find_first_of("\x1b\a\xff\x9b"), std::string::npos) << ran.out;
      EXPECT_EQ(ran.out.find("\nroot#"), std::string::npos) << ran.out;
      EXPECT_TRUE(!as_json || json::accept(ran.out)) << ran.out;
    }
  }
}

TEST_F(Show, SettingThatIsNoUtf8_IsJsonAllTheSame) {
  const Ran ran = run_command({"config", "--json"}, {"BYPASS_RUN_DIR=/tmp/\xff"});
  EXPECT_TRUE(json::accept(ran.out)) << ran.err;
}

TEST_F(Show, Stat_PrintsPortsSocketsAndCounters) {
  const Ran ran = show({"stat"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  for (const char* part :
       {"cli_test", "vhost:/tmp/x", "10.9.0.1/24", "ESTABLISHED", "10.9.0.2:40000", "12345", "rx_frames"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
  EXPECT_EQ(ran.out.find("tx_frames"), std::string::npos) << "zero, and not asked for";
  EXPECT_NE(show({"stat", "--all"}).out.find("tx_frames"), std::string::npos);
}

// Beneath RC and shared memory TCP is idle. So its times and window say nothing about them.
TEST_F(Show, Stat_LeavesOutWhatIsNotTheConnectionsPath) {
  using Path = observe::SocketPath;
  for (const auto& [path, by_tcp] : {std::pair(Path::kFramed, true), {Path::kRc, false}, {Path::kShm, false}}) {
    observe::SocketRecord socket{};
    socket.fd = 7;
    socket.protocol = IPPROTO_TCP;
    socket.state = static_cast<std::uint8_t>(observe::SocketState::kEstablished);
    socket.path = static_cast<std::uint8_t>(path);
    socket.local_port = 1, socket.remote_port = 2;
    socket.srtt_us = 98761, socket.cwnd = 98762;
    const int slot = region_.claim_socket();
    region_.update_socket(slot, socket);
    const std::string out = show({"stat"}).out;
    EXPECT_EQ(out.find("98761") != std::string::npos, by_tcp) << out;
    EXPECT_EQ(out.find("98762") != std::string::npos, by_tcp) << out;
    EXPECT_NE(show({"stat", "--json"}).out.find("\"srtt_us\": 98761"), std::string::npos) << "as it is recorded";
    region_.release_socket(slot);
  }
}

TEST_F(Show, StatJson_HasTheSame) {
  const Ran ran = show({"stat", pid_, "--json"});
  const json parsed = json::parse(ran.out);
  const json& process = parsed.at("processes").at(0);
  EXPECT_EQ(process.at("pid"), getpid());
  EXPECT_EQ(process.at("ports").at(0).at("link"), "up");
  EXPECT_EQ(process.at("sockets").at(0).at("rx_bytes"), 12345);
  EXPECT_EQ(process.at("ports").at(0).at("tx_dropped"), 77);
  EXPECT_EQ(process.at("sockets").at(1).at("rx_queue"), 3);
  EXPECT_FALSE(process.at("sockets").at(1).contains("rx_bytes")) << "nobody counts them for datagrams";
  EXPECT_EQ(process.at("counters").at("rx_frames"), 7);
  EXPECT_EQ(process.at("sockets").size(), 2U) << "what no socket stands for is ss's to show";
}

TEST_F(Show, PidAsAnOption_IsTheSame) {
  // The text after the first line, which has the process's age. A second may pass between the two.
  const auto told = [&](const std::vector<std::string>& words) {
    const std::string out = show(words).out;
    return out.substr(std::min(out.find('\n'), out.size()));
  };
  for (const char* command : {"stat", "why", "config"})
    EXPECT_EQ(told({command, pid_}), told({command, "--pid", pid_})) << command;
  EXPECT_EQ(show({"stat", pid_, "--pid", pid_}).code, 2);
}

TEST_F(Show, ProcessWithoutTheFamilysPorts_NamesWhoHasThem) {
  region_.set_port_owner(4711);
  region_.publish_counters({}, 1);
  const std::string out = show({"stat"}).out;
  for (const char* part : {"port of pid 4711", " of pid 4711 ", "the counters are the family's: see pid 4711"})
    EXPECT_NE(out.find(part), std::string::npos) << part << "\n" << out;
  EXPECT_NE(show({"why"}).out.find("port of pid 4711"), std::string::npos);
  const json process = json::parse(show({"stat", "--json"}).out).at("processes").at(0);
  EXPECT_EQ(process.at("port_owner"), 4711);
  EXPECT_TRUE(process.at("counters").empty()) << "they count once, at the owner";
  region_.set_port_owner(getpid());
  EXPECT_EQ(show({"stat"}).out.find("port of pid"), std::string::npos);
}

TEST_F(Show, Why_PrintsReasonSentenceAndDetail) {
  const Ran ran = show({"why", pid_});
  EXPECT_EQ(ran.code, 0);
  for (const char* part :
       {"no_route", "8.8.8.8:443",
        "no port of the bypass routes to the address (BYPASS_ADDR, BYPASS_GATEWAY): 8.8.8.8 is in no prefix"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
}

TEST_F(Show, WhyOfAPortThatLeadsNowhere_NamesIt) {
  observe::PortRecord port{};
  observe::set_text(port.kind, "virtio");
  observe::set_text(port.target, "/tmp/typo");
  port.open = 1;
  region_.set_port(1, port);
  const Ran ran = show({"why", pid_});
  EXPECT_NE(ran.out.find("link_down"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("virtio:/tmp/typo"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("vhost:/tmp/x"), std::string::npos) << "its link is up: " << ran.out;
}

// --- set

TEST_F(Show, Set_AsksTheProcessAndSaysToHowManyItWasDone) {
  std::atomic<bool> over{false};
  std::thread process([&] {
    while (!over) {
      if (region_.wanted_drill() == observe::Drill::kQpError) region_.finish_drill(3);
      std::this_thread::yield();
    }
  });
  const Ran first = show({"set", pid_, "inject=qp-error"});
  const Ran second = show({"set", pid_, "inject=qp-error"});
  over = true;
  process.join();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, "process " + pid_ + ": 3 links to accelerated peers failed\n");
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(region_.wanted_drill(), observe::Drill::kNone);
}

TEST_F(Show, SetOfWhatThereIsNot_NamesWhatIsAccepted) {
  const Ran ran = show({"set", pid_, "inject=thunder"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "bypass: set 'inject=thunder': there is no such thing; accepted is inject=qp-error\n");
  const Ran bare = show({"set", pid_});
  EXPECT_EQ(bare.code, 2);
  EXPECT_EQ(bare.err, "bypass: set: WHAT is missing: bypass set PID WHAT; accepted for WHAT is inject=qp-error\n");
  EXPECT_EQ(show({"set"}).err.substr(0, 28), "bypass: set: PID is missing:");
  EXPECT_EQ(show({"set", "999999", "inject=qp-error"}).code, 1);
}

TEST_F(Show, SetOfAProcessWithoutTheFamilysPorts_NamesWhoHasThem) {
  region_.set_port_owner(4711);
  const Ran ran = show({"set", pid_, "inject=qp-error"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("process 4711"), std::string::npos) << ran.err;
}

TEST(ShowWhy, ProcessesWithNothingToTell_ShareALine) {
  const RunDir dir;
  Region region;
  observe::start(region, dir);
  const Ran ran = run_command({"why"}, {"BYPASS_RUN_DIR=" + dir.path()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "nothing was left to the kernel: cli_test (pid " + std::to_string(getpid()) + ")\n");
}

TEST_F(Show, WhyJson_HasTheSame) {
  const json parsed = json::parse(show({"why", "--json"}).out);
  const json& process = parsed.at("processes").at(0);
  EXPECT_EQ(process.at("whys").at(0).at("reason"), "no_route");
  EXPECT_EQ(process.at("whys").at(0).at("count"), 1);
}

TEST_F(Show, UnknownPid_SaysSoAndEndsWith1) {
  const Ran ran = show({"stat", "4194304"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("there is no process 4194304"), std::string::npos) << ran.err;
  const Ran other = show({"why", std::to_string(getppid()), "--json"});
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(json::parse(other.out).at("processes").empty()) << "JSON all the same";
}

TEST(ShowNothing, HelpOfTheWholeAndOfEachPart) {
  const Ran whole = run_command({"help"});
  EXPECT_EQ(whole.code, 0);
  for (const char* part : {"stat", "why", "ss", "run", "set", "config"}) {
    EXPECT_NE(whole.out.find(part), std::string::npos) << part;
    const Ran of_it = run_command({"help", part});
    EXPECT_EQ(of_it.code, 0) << part;
    EXPECT_NE(of_it.out.find(std::string("bypass ") + part), std::string::npos) << of_it.out;
  }
  const Ran bare = run_command({});
  EXPECT_EQ(bare.code, 2);
  EXPECT_EQ(bare.err, whole.out) << "nothing was asked";
  EXPECT_NE(run_command({"help", "frotz"}).err.find("there is no subcommand 'frotz'"), std::string::npos);
}

TEST(ShowNothing, RelativeRunDirectory_IsSaidNotToBeLookedIn) {
  const Ran ran = run_command({"stat"}, {"BYPASS_RUN_DIR=relative"});
  EXPECT_NE(ran.err.find("bypass: BYPASS_RUN_DIR=relative (environment): is no absolute path; "), std::string::npos)
      << ran.err;
}

TEST(ShowNothing, NoProcess_SaysWhereItLooked) {
  const Ran ran = run_command({"stat"}, {"BYPASS_RUN_DIR=/nonexistent/run"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("/nonexistent/run"), std::string::npos) << ran.err;
}

TEST(ShowConfig, ValuesAndOrigins) {
  const Ran ran = run_command({"config"}, {"BYPASS_TICK_MS=25", "BYPASS_PROFILE=latency"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("25 ms"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("BYPASS_TICK_MS"), std::string::npos);
  EXPECT_NE(ran.out.find("profile latency"), std::string::npos);
  EXPECT_EQ(ran.out.find("not built yet"), std::string::npos);
}

TEST(ShowConfig, Json_ListsEverySettingAndProblem) {
  const Ran ran = run_command({"config", "--json"}, {"BYPASS_MTU=1", "BYPASS_PORT=tap:a", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(ran.code, 1);
  const json parsed = json::parse(ran.out);
  EXPECT_GT(parsed.at("settings").size(), 30U);
  EXPECT_EQ(parsed.at("settings").at(0).at("value"), "tap:a");
  EXPECT_EQ(parsed.at("settings").at(0).at("origin"), "environment");
  EXPECT_EQ(parsed.at("problems").at(0).at("name"), "BYPASS_MTU");
}

TEST(ShowConfig, WhatIsNotThere_IsNamed) {
  const Ran ran = run_command({"config"}, {"BYPASS_PORT=af_packet:bp-nosuch", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("BYPASS_PORT=af_packet:bp-nosuch (environment): no network interface"), std::string::npos)
      << ran.err;
  EXPECT_NE(ran.err.find("go without what is named"), std::string::npos) << ran.err;
}

TEST(ShowConfig, APortOnACard_ShowsWhatWouldBe) {
  const std::vector<std::string> variables = {"BYPASS_PORT=pci:7F:1f.7", "BYPASS_ADDR=10.9.0.1/24"};
  const std::string problem = "no such device (see: lspci -D)";
  const Ran ran = run_command({"config"}, variables);
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("\npci:7F:1f.7\n  opens  no: " + problem + "\n"), std::string::npos) << ran.out;
  const json plans = json::parse(run_command({"config", "--json"}, variables).out).at("plans");
  EXPECT_EQ(plans, (json::array({{{"port", "pci:7F:1f.7"}, {"opens", "no: " + problem}}})));
}

TEST(ShowConfig, EveryKindOfPort_IsBuilt) {
  for (const char* port : {"BYPASS_PORT=tap:a;auto", "BYPASS_PORT=verbs:mlx5_0", "BYPASS_PORT=af_packet:lo"}) {
    const std::string out = run_command({"config"}, {port, "BYPASS_ADDR=10.9.0.1/24"}).out;
    EXPECT_NE(out.find("port"), std::string::npos);
    EXPECT_EQ(out.find("not built yet:"), std::string::npos) << out;
  }
}

TEST(ShowConfig, Pid_ShowsTheProcesssSettings) {
  const RunDir dir;
  Region region;
  observe::RegionStart start;
  start.run_dir = dir.path();
  for (const char* text : {"port", "verbs:mlx5_0", "environment", "tick_ms", "25", "/etc/x.toml:3", "yield_us",
                           "forever", "profile latency"})
    start.settings.append(text).push_back('\0');
  std::string problem;
  ASSERT_TRUE(region.create(start, problem)) << problem;
  const auto config = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"config", std::to_string(getpid())});
    return run_command(more, {"BYPASS_RUN_DIR=" + dir.path(), "BYPASS_MTU=1400"});
  };
  const json settings = json::parse(config({"--json"}).out).at("settings");
  const auto setting = [&](const char* key) {
    return *std::find_if(settings.begin(), settings.end(), [&](const json& s) { return s.at("key") == key; });
  };
  EXPECT_EQ(setting("port").at("value"), "verbs:mlx5_0");
  EXPECT_EQ(setting("port").at("origin"), "environment");
  EXPECT_EQ(setting("tick_ms").at("value"), "25");
  EXPECT_EQ(setting("tick_ms").at("where"), "/etc/x.toml:3");
  EXPECT_EQ(setting("tick_ms").at("origin"), "file");
  EXPECT_EQ(setting("yield_us").at("origin"), "profile");
  EXPECT_EQ(setting("mtu").at("value"), "") << "the shell's is not the process's";
  EXPECT_NE(config({}).out.find("25 ms"), std::string::npos);
  EXPECT_EQ(config({"--toml"}).code, 2);
  EXPECT_EQ(run_command({"config", "4194304"}, {"BYPASS_RUN_DIR=" + dir.path()}).code, 1);
}

TEST(ShowConfig, Problem_IsToldOnStandardErrorAndEndsWith1) {
  const Ran ran = run_command({"config"}, {"BYPASS_PROT=x"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("did you mean BYPASS_PORT?"), std::string::npos) << ran.err;
}

TEST(Usage, Mistakes_SayWhoSpeaksAndWhatIsAccepted) {
  const std::string no_pid = "'x' is no pid; accepted is a whole number from 1 to 4194304\n";
  for (const std::string command : {"stat", "why", "config", "set"})
    EXPECT_EQ(run_command({command, "x"}).err, "bypass: " + command + ": " + no_pid);
  EXPECT_EQ(run_command({"ss", "--pid", "x"}).err, "bypass: ss: " + no_pid);
  EXPECT_EQ(run_command({"why", "0"}).err.substr(0, 29), "bypass: why: '0' is no pid; a");
  const std::vector<std::vector<std::string>> wrong = {
      {"stat", "--frotz"}, {"stat", "1", "2"}, {"why", "1", "--pid", "1"}};
  for (const auto& words : wrong) {
    const std::string said = run_command(words).err;
    EXPECT_TRUE(said.starts_with("bypass: " + words[0] + ": ")) << said;
    EXPECT_NE(said.find("; `bypass help " + words[0] + "` says what is accepted\n"), std::string::npos) << said;
  }
  EXPECT_EQ(run_command({"--frotz"}).err,
            "bypass: A subcommand is required; accepted are stat, why, ss, run, verbs-trace, set, config\n");
}

TEST_F(Show, OutputThatCannotBeWritten_EndsWith1) {
  for (const char* words : {"stat", "why", "ss -a", "config", "config --markdown", "help"}) {
    const std::string line = "exec " + std::string(BYPASS_COMMAND) + " " + words + " 2>&1 >/dev/full";
    FILE* const pipe = popen(("BYPASS_RUN_DIR=" + dir_.path() + " " + line).c_str(), "r");
    std::array<char, 256> said{};
    EXPECT_NE(std::fgets(said.data(), said.size(), pipe), nullptr) << words;
    const int status = pclose(pipe);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1) << words;
    EXPECT_NE(std::string_view(said.data()).find("No space left on device"), std::string_view::npos) << said.data();
  }
}

TEST(Usage, Mistakes_EndWith2AndHelpWith0) {
  EXPECT_EQ(run_command({}).code, 2);
  EXPECT_EQ(run_command({"stat", "abc"}).code, 2);
  EXPECT_EQ(run_command({"frotz"}).code, 2);
  EXPECT_EQ(run_command({"config", "--json", "--toml"}).code, 2);
  EXPECT_EQ(run_command({"config", "--profile", "fast"}).code, 2);
  EXPECT_EQ(run_command({"--help"}).code, 0);
  EXPECT_EQ(run_command({"stat", "--help"}).code, 0);
}

}  // namespace
}  // namespace bypass::tool
