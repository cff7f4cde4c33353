// bypass ss: columns, states and filters, as in ss(8).
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "observe/scratch.h"

namespace bypass::tool {
namespace {

using nlohmann::json;
using observe::SocketPath;
using observe::SocketState;

constexpr std::uint32_t kOurs = 0x0a090001, kPeer = 0x0a090002, kOther = 0x0a090103;

// This test program as a process with one socket of each kind.
class Ss : public testing::Test {
 protected:
  void SetUp() override {
    observe::start(region_, dir_);
    add(4, IPPROTO_TCP, SocketState::kListen, {kOurs, 80}, {}, 1, 128);
    add(5, IPPROTO_TCP, SocketState::kEstablished, {kOurs, 80}, {kPeer, 40000}, 0, 12);
    add(6, IPPROTO_TCP, SocketState::kCloseWait, {kOurs, 34567}, {kOther, 443}, 0, 0);
    add(7, IPPROTO_UDP, SocketState::kOpen, {0, 5353}, {}, 3, 0);
    add(8, IPPROTO_UDP, SocketState::kOpen, {kOurs, 5000}, {kPeer, 53}, 0, 0);
    add(9, IPPROTO_TCP, SocketState::kOpen, {}, {}, 0, 0);  // undecided: the kernel's so far
  }
  struct Name {
    std::uint32_t address = 0;
    std::uint16_t port = 0;
  };
  /// Reasons that belong to no socket. They are not in SetUp(), so that most tests show the program's own.
  void add_closed() {
    add(-1, IPPROTO_TCP, SocketState::kTimeWait, {kOurs, 80}, {kPeer, 40001}, 0, 0);
    add(-1, IPPROTO_TCP, SocketState::kSynReceived, {kOurs, 80}, {kPeer, 40002}, 0, 0);
    add(-1, IPPROTO_TCP, SocketState::kFinWait2, {kOurs, 80}, {kPeer, 40003}, 0, 0);
  }
  void add(int fd, std::uint8_t protocol, SocketState state, Name local, Name remote, std::uint32_t rx,
           std::uint32_t tx, SocketPath path = SocketPath::kWire) {
    observe::SocketRecord s{};
    s.fd = fd;
    s.of_stack = fd < 0 ? 1 : 0;
    s.protocol = protocol;
    s.state = static_cast<std::uint8_t>(state);
    s.path = static_cast<std::uint8_t>(path);
    if (local.address != 0) s.local_address = IpAddress::from_v4(local.address);
    s.local_port = local.port;
    if (remote.address != 0) s.remote_address = IpAddress::from_v4(remote.address);
    s.remote_port = remote.port;
    s.rx_queue = rx;
    s.tx_queue = tx;
    if (state == SocketState::kEstablished) {
      s.mss = 1448;
      s.cwnd = 14480;
      s.ssthresh = 0x7fffffff;
      s.srtt_us = 250;
      s.rttvar_us = 30;
      s.rto_us = 200250;
      s.rx_bytes = 5;
      s.tx_bytes = 7;
      s.retransmits = 3;
    }
    last_ = region_.claim_socket();
    region_.update_socket(last_, s);
  }
  Ran ss(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ss");
    return run_command(std::move(arguments), {"BYPASS_RUN_DIR=" + dir_.path()});
  }
  /// The local ports of the sockets shown, in order.
  std::vector<int> ports(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const Ran ran = ss(std::move(arguments));
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<int> found;
    const json shown = json::parse(ran.out);
    for (const json& socket : shown.at("sockets")) found.push_back(socket.at("local_port"));
    return found;
  }
  using Ports = std::vector<int>;

  observe::RunDir dir_;
  observe::Region region_;
  int last_ = 0;
  const std::string pid_ = std::to_string(getpid());
};

TEST_F(Ss, Table_IsSetAsSsDoes) {
  EXPECT_EQ(ss({"-tuan"}).out,
            "Netid State      Recv-Q Send-Q Local Address:Port  Peer Address:Port\n"
            "udp   UNCONN     3      0            0.0.0.0:5353       0.0.0.0:*\n"
            "udp   ESTAB      0      0           10.9.0.1:5000      10.9.0.2:53\n"
            "tcp   LISTEN     1      128         10.9.0.1:80         0.0.0.0:*\n"
            "tcp   ESTAB      0      12          10.9.0.1:80        10.9.0.2:40000\n"
            "tcp   CLOSE-WAIT 0      0           10.9.0.1:34567     10.9.1.3:443\n");
}

/// A pair of kernel sockets of this process on loopback.
struct KernelPair {
  int listener = high(socket(AF_INET, SOCK_STREAM, 0));
  int client = high(socket(AF_INET, SOCK_STREAM, 0));
  int accepted = -1;
  int listener_port = 0, client_port = 0;

  KernelPair() {
    sockaddr_in name{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    auto* const address = reinterpret_cast<sockaddr*>(&name);
    socklen_t length = sizeof name;
    EXPECT_EQ(bind(listener, address, length) | listen(listener, 4) | getsockname(listener, address, &length), 0);
    listener_port = ntohs(name.sin_port);
    EXPECT_EQ(connect(client, address, length), 0);
    accepted = high(accept(listener, nullptr, nullptr));
    EXPECT_EQ(getsockname(client, address, &length), 0);
    client_port = ntohs(name.sin_port);
  }
  /// Numbers that no socket of the fixture has.
  static int high(int fd) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    close(fd);
    return copy;
  }
  ~KernelPair() {
    for (const int fd : {listener, client, accepted}) close(fd);
  }
};

TEST_F(Ss, SocketsOfTheKernel_HaveRowsOfTheirOwn) {
  const KernelPair pair;
  const std::string listens = "127.0.0.1:" + std::to_string(pair.listener_port);
  const std::string connects = "127.0.0.1:" + std::to_string(pair.client_port);
  const auto row = [&](int fd) {
    return " users:((\"cli_test\",pid=" + pid_ + ",fd=" + std::to_string(fd) + ")) path:kernel\n";
  };
  const auto rows = [&](const std::string& filter) { return ss({"-Htnpea", filter}).out; };
  EXPECT_EQ(rows("sport = :" + std::to_string(pair.client_port)),
            "ESTAB 0 0 " + connects + " " + listens + row(pair.client));
  const std::string both = rows("sport = :" + std::to_string(pair.listener_port));
  EXPECT_NE(both.find("LISTEN 0 0 " + listens), std::string::npos) << both;
  EXPECT_NE(both.find(row(pair.accepted)), std::string::npos) << both;
}

TEST_F(Ss, SocketsOfIpv6_AreShownAsSsShowsThem) {
  const auto opened = [](int type, const in6_addr& address) {
    const int fd = KernelPair::high(socket(AF_INET6, type, 0));
    sockaddr_in6 name{AF_INET6, 0, 0, address, 0};
    auto* const generic = reinterpret_cast<sockaddr*>(&name);
    socklen_t length = sizeof name;
    EXPECT_EQ(bind(fd, generic, length) | getsockname(fd, generic, &length), 0);
    EXPECT_EQ(type == SOCK_STREAM ? listen(fd, 4) : 0, 0);
    return std::pair(fd, std::to_string(ntohs(name.sin6_port)));
  };
  const auto everywhere = opened(SOCK_STREAM, in6addr_any), here = opened(SOCK_STREAM, in6addr_loopback),
             datagrams = opened(SOCK_DGRAM, in6addr_any);
  const auto row = [&](const std::string& port) { return ss({"-Htuna", "sport = :" + port}).out; };
  EXPECT_EQ(row(everywhere.second), "tcp LISTEN 0 0 *:" + everywhere.second + " *:*\n");
  EXPECT_EQ(row(here.second), "tcp LISTEN 0 0 [::1]:" + here.second + " [::]:*\n");
  EXPECT_EQ(row(datagrams.second), "udp UNCONN 0 0 *:" + datagrams.second + " *:*\n");
  const json shown = json::parse(ss({"-ta", "--json", "sport = :" + everywhere.second}).out).at("sockets");
  EXPECT_EQ(shown.at(0).at("local_address"), "::");
  for (const int fd : {everywhere.first, here.first, datagrams.first}) close(fd);
}

TEST_F(Ss, ConnectionOfTheKernelWhoseOtherEndIsNotOurs_HasAReason) {
  KernelPair pair;
  std::array<int, 2> gate{};
  ASSERT_EQ(pipe(gate.data()), 0);
  const pid_t other = fork();  // has the other end, and does not use libbypass
  if (other == 0) {
    char end = 0;
    close(gate[1]);
    (void)!read(gate[0], &end, 1);
    _exit(0);
  }
  close(pair.accepted);
  pair.accepted = -1;
  const Ran why = run_command({"why", pid_}, {"BYPASS_RUN_DIR=" + dir_.path()});
  EXPECT_NE(why.out.find("127.0.0.1:" + std::to_string(pair.listener_port) + "  peer_plain"), std::string::npos)
      << why.out;
  EXPECT_NE(why.out.find("127.0.0.1:" + std::to_string(pair.listener_port) + "  no_port_configured"), std::string::npos)
      << "the listener: " << why.out;
  close(gate[0]), close(gate[1]);
  waitpid(other, nullptr, 0);
}

/// A process with a stats file in `folder`, which says that the process is that user's.
class OtherProcess {
 public:
  OtherProcess(const std::string& folder, std::uint32_t user) {
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    child_ = fork();
    if (child_ == 0) _exit(live(folder, user, ready[1]));
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~OtherProcess() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

 private:
  static int live(const std::string& folder, std::uint32_t user, int ready) {
    observe::Region region;
    std::string problem;
    if (!region.create({folder, "1.2.3", "latency", observe::kTestCounters}, problem)) return 1;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.path().filename().string().starts_with(std::to_string(getpid()) + "-")) continue;
      const int file = open(entry.path().c_str(), O_WRONLY);
      if (pwrite(file, &user, sizeof user, offsetof(observe::Header, uid)) != sizeof user) return 1;
    }
    if (write(ready, "r", 1) != 1) return 1;
    return pause();
  }
  pid_t child_ = 0;
};

TEST_F(Ss, ConnectionBetweenTwoUsers_DoesNotWaitForSharedMemory) {
  for (const std::uint32_t user : {geteuid(), geteuid() + 1}) {
    KernelPair pair;
    const OtherProcess other(dir_.path(), user);
    close(std::exchange(pair.accepted, -1));  // the other process has it
    const Ran why = run_command({"why", pid_}, {"BYPASS_RUN_DIR=" + dir_.path()});
    const std::string reason = user == geteuid() ? "local_after" : "peer_plain";
    EXPECT_NE(why.out.find("127.0.0.1:" + std::to_string(pair.listener_port) + "  " + reason), std::string::npos)
        << user << ": " << why.out;
  }
}

// One entry stands for all sockets of a listener. It has the number of the last one, which may be another socket's by
// now.
TEST_F(Ss, ConnectionsWhoseEndsCouldNotAgree_HaveThatReasonAlone) {
  const KernelPair pair, other;
  const auto record = [&](IpAddress address, int port) {
    region_.why(observe::Reason::kNoSharedMemory, 7, IPPROTO_TCP, {address, static_cast<std::uint16_t>(port)},
                "nobody");
  };
  record(IpAddress::from_v4(INADDR_LOOPBACK), pair.listener_port);
  const auto told = [&](int port, const char* reason) {
    const Ran why = run_command({"why", pid_}, {"BYPASS_RUN_DIR=" + dir_.path()});
    return why.out.find("127.0.0.1:" + std::to_string(port) + "  " + reason) != std::string::npos;
  };
  EXPECT_TRUE(told(pair.listener_port, "no_shared_memory"));
  EXPECT_FALSE(told(pair.client_port, "local_after")) << "the accepted one";
  EXPECT_FALSE(told(pair.listener_port, "local_after")) << "the client's";
  EXPECT_TRUE(told(other.client_port, "local_after")) << "of another listener nothing is recorded";
  record({}, other.listener_port);
  EXPECT_FALSE(told(other.client_port, "local_after")) << "a wildcard listener's";
}

TEST_F(Ss, ManyOfOneReason_AreOneLine) {
  std::vector<std::unique_ptr<KernelPair>> pairs;
  for (int i = 0; i < 9; i++) pairs.push_back(std::make_unique<KernelPair>());
  const json whys = json::parse(run_command({"why", pid_, "--json"}, {"BYPASS_RUN_DIR=" + dir_.path()}).out);
  int lines = 0;
  for (const json& why : whys.at("processes").at(0).at("whys")) {
    if (why.at("reason") != "local_after") continue;
    lines++;
    EXPECT_EQ(why.at("count"), 18) << why;
  }
  EXPECT_EQ(lines, 1) << whys;
}

// Both ends belong to this process.
TEST_F(Ss, ConnectionThatTheKernelCarries_HasTheKernelsNamesAndOneRowAndAReason) {
  const KernelPair pair;
  ASSERT_EQ(write(pair.accepted, "abc", 3), 3);
  observe::SocketRecord s{};
  s.fd = pair.client;
  s.protocol = IPPROTO_TCP;
  s.path = static_cast<std::uint8_t>(SocketPath::kKernel);
  s.state = static_cast<std::uint8_t>(SocketState::kEstablished);
  region_.update_socket(region_.claim_socket(), s);
  const std::string filter = "sport = :" + std::to_string(pair.client_port);
  EXPECT_EQ(ss({"-Htne", filter}).out.substr(0, 10), "ESTAB 3 0 ");
  EXPECT_EQ(ports({filter}), (Ports{pair.client_port}));
  const Ran why = run_command({"why", pid_}, {"BYPASS_RUN_DIR=" + dir_.path()});
  for (const int port : {pair.listener_port, pair.client_port})
    EXPECT_NE(why.out.find("127.0.0.1:" + std::to_string(port) + "  local_after"), std::string::npos) << why.out;
}

TEST_F(Ss, OneProtocolAndOneState_LeaveTheirColumnsOut) {
  EXPECT_EQ(ss({"-Htnp", "state", "established"}).out,
            "0 12 10.9.0.1:80 10.9.0.2:40000 users:((\"cli_test\",pid=" + pid_ + ",fd=5))\n");
}

TEST_F(Ss, WithoutNumeric_ServicesHaveNames) {
  EXPECT_NE(ss({"-tl"}).out.find("10.9.0.1:http "), std::string::npos) << ss({"-tl"}).out;
}

TEST_F(Ss, Info_FollowsOnALineOfItsOwn) {
  const std::string info =
      "rto:200.25 rtt:0.25/0.03 mss:1448 cwnd:10 bytes_acked:7 bytes_received:5 send 463360000bps retrans:0/3";
  EXPECT_EQ(ss({"-Htni", "sport = :80"}).out, "ESTAB 0 12 10.9.0.1:80 10.9.0.2:40000\n\t " + info + "\n");
  EXPECT_EQ(ss({"-HtniO", "sport = :80"}).out, "ESTAB 0 12 10.9.0.1:80 10.9.0.2:40000 " + info + "\n");
}

TEST_F(Ss, InfoOfRcAndSharedMemory_SaysNothingOfTheTcpBeneath) {
  for (const SocketPath path : {SocketPath::kRc, SocketPath::kShm}) {
    add(10, IPPROTO_TCP, SocketState::kEstablished, {kOurs, 81}, {kPeer, 40009}, 0, 0, path);
    EXPECT_EQ(ss({"-Htni", "sport = :81"}).out,
              "ESTAB 0 0 10.9.0.1:81 10.9.0.2:40009\n\t bytes_acked:7 bytes_received:5 retrans:0/3\n");
    region_.release_socket(last_);
  }
}

TEST_F(Ss, Options_SayWhichSockets) {
  EXPECT_EQ(ports({}), (Ports{5000, 80, 34567})) << "connected ones";
  EXPECT_EQ(ports({"-t"}), (Ports{80, 34567}));
  EXPECT_EQ(ports({"-u"}), (Ports{5000}));
  EXPECT_EQ(ports({"-l"}), (Ports{5353, 80}));
  EXPECT_EQ(ports({"-ta"}), (Ports{80, 80, 34567}));
  EXPECT_EQ(ports({"--pid", pid_, "-ua"}), (Ports{5353, 5000}));
}

TEST_F(Ss, Filters) {
  EXPECT_EQ(ports({"state", "close-wait"}), (Ports{34567}));
  EXPECT_EQ(ports({"state", "listening", "state", "close-wait"}), (Ports{5353, 80, 34567}));
  EXPECT_EQ(ports({"-t", "exclude", "listening"}), (Ports{80, 34567}));
  EXPECT_EQ(ports({"-a", "sport = :80"}), (Ports{80, 80}));
  EXPECT_EQ(ports({"-a", "sport", "!=", "80"}), (Ports{5353, 5000, 34567}));
  EXPECT_EQ(ports({"-a", "dport ge :443"}), (Ports{80, 34567}));
  EXPECT_EQ(ports({"-a", "dport = :https"}), (Ports{34567}));
  EXPECT_EQ(ports({"dst", "10.9.0.0/24"}), (Ports{5000, 80}));
  EXPECT_EQ(ports({"dst 10.9.0.2:53"}), (Ports{5000}));
  EXPECT_EQ(ports({"-a", "src", "*:5353"}), (Ports{5353}));
  EXPECT_EQ(ports({"state all (sport = :80 or dport = :443) and not dst 10.9.0.2"}), (Ports{80, 34567}));
  EXPECT_EQ(ports({"! dport = :53", "dst 10.9.0.2"}), (Ports{80})) << "and may be left out";
}

TEST_F(Ss, FilterOfAPath) {
  add(10, IPPROTO_TCP, SocketState::kEstablished, {kOurs, 81}, {kPeer, 40009}, 0, 0, SocketPath::kShm);
  EXPECT_EQ(ports({"path", "shm"}), (Ports{81}));
  EXPECT_EQ(ports({"path = shm or sport = :80"}), (Ports{80, 81}));
  EXPECT_EQ(ports({"-t", "path", "!=", "shm"}), (Ports{80, 34567}));
  EXPECT_EQ(ports({"state established not path wire"}), (Ports{81}));
}

TEST_F(Ss, ConnectionsWithoutASocket_AreShownAsSsShowsThem) {
  add_closed();
  EXPECT_EQ(ports({"-t"}), (Ports{80, 34567, 80})) << "TIME-WAIT and SYN-RECV are hidden without -a";
  EXPECT_EQ(ports({"-ta"}), (Ports{80, 80, 34567, 80, 80, 80}));
  EXPECT_EQ(ports({"state", "time-wait"}), (Ports{80}));
  EXPECT_EQ(ports({"state", "bucket"}), (Ports{80, 80}));
  EXPECT_EQ(ports({"-t", "state", "connected", "dport = :40001"}), (Ports{80}));
  EXPECT_EQ(ss({"-Htanpi", "dport = :40001"}).out, "TIME-WAIT 0 0 10.9.0.1:80 10.9.0.2:40001\n")
      << "no process has it, and nothing is known of it";
  EXPECT_EQ(json::parse(ss({"--json", "dport = :40003"}).out).at("sockets").at(0).at("process").at("fd"), nullptr);
}

TEST_F(Ss, Pid_MayBeTheFirstWord) {
  EXPECT_EQ(ports({"-ua", pid_}), (Ports{5353, 5000}));
  EXPECT_EQ(ports({"-a", pid_, "sport = :80"}), (Ports{80, 80}));
  EXPECT_EQ(ss({"4194304"}).code, 1);
  EXPECT_EQ(ss({"0"}).code, 2);
  EXPECT_EQ(ss({"--pid", pid_, pid_}).code, 2);
}

TEST_F(Ss, WrongFilter_IsSaidAndEndsWith2) {
  const std::pair<const char*, const char*> wrong[] = {
      {"state frotz", "'frotz' is no state"},
      {"sport = :frotz", "'frotz' is no port"},
      {"( sport = :80", "a ) is missing"},
      {"sport = :80 )", "')' was not expected there"},
      {"dst 10.9.0", "'10.9.0' is no address"},
      {"sport = :80 or", "the expression ends too early"},
      {"pid = 3", "'pid' is not understood; accepted are sport"},
      {"sport", "a port is missing: accepted behind sport is :80, 80 or a service's name"},
      {"dport =", "a port is missing: accepted behind dport is"},
      {"path lane", "'lane' is no path; accepted are undecided, kernel, wire, dual, shm, rc, framed"},
      {"path > rc", "paths are compared by = and != alone"}};
  for (const auto& [filter, said] : wrong) {
    const Ran ran = ss({filter});
    EXPECT_EQ(ran.code, 2) << filter;
    EXPECT_NE(ran.err.find(said), std::string::npos) << ran.err;
  }
}

TEST_F(Ss, Json_HasTheSame) {
  const json sockets = json::parse(ss({"-tn", "-i", "--json", "sport = :80"}).out).at("sockets");
  ASSERT_EQ(sockets.size(), 1U);
  const json& socket = sockets[0];
  EXPECT_EQ(socket.at("netid"), "tcp");
  EXPECT_EQ(socket.at("state"), "ESTAB");
  EXPECT_EQ(socket.at("peer_address"), "10.9.0.2");
  EXPECT_EQ(socket.at("peer_port"), 40000);
  EXPECT_EQ(socket.at("process").at("pid"), getpid());
  EXPECT_EQ(socket.at("process").at("fd"), 5);
  EXPECT_EQ(socket.at("info").at("retransmits"), 3);
}

}  // namespace
}  // namespace bypass::tool
