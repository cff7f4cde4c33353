// A reader sees what a writer stores.
#include "observe/region.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "observe/scratch.h"

namespace bypass::observe {
namespace {

const Endpoint kPeer{IpAddress::from_v4(0x0a090002), 6379};

TEST(Region, Header_SaysWhoWroteIt) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const Snapshot s = snapshot(dir);
  EXPECT_EQ(s.pid, getpid());
  EXPECT_EQ(s.uid, geteuid());
  EXPECT_EQ(s.command, "observe_test");
  EXPECT_EQ(s.library_version, "1.2.3");
  EXPECT_EQ(s.profile, "latency");
  EXPECT_FALSE(s.elsewhere);
  EXPECT_NE(s.start_time, 0U);
}

TEST(Region, ProgramThatWritesOverItsTitle_KeepsItsName) {
  const std::string title = program_invocation_short_name;
  std::fill_n(program_invocation_short_name, title.size(), 'x');
  const RunDir dir;
  Region region;
  start(region, dir);
  std::copy(title.begin(), title.end(), program_invocation_short_name);
  EXPECT_EQ(snapshot(dir).command, "observe_test");
}

TEST(Region, Counters_CarryNamesAndUnits) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const std::uint64_t values[] = {7, 9};
  region.publish_counters(values, 12345);
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.counters.size(), 2U);
  EXPECT_EQ(s.counters[1].name, "tx_frames");
  EXPECT_EQ(s.counters[1].unit, "frames");
  EXPECT_EQ(s.counters[1].value, 9U);
  EXPECT_EQ(s.updated_ns, 12345U);
}

TEST(Region, Port_IsReplacedAsAWhole) {
  const RunDir dir;
  Region region;
  start(region, dir);
  PortRecord port{};
  set_text(port.kind, "vhost");
  set_text(port.target, std::string(500, 'x').c_str());  // cut, never past the field
  port.rx_frames = 1;
  region.set_port(0, port);
  port.rx_frames = 2;
  region.set_port(0, port);
  region.set_port(kMaxPorts, port);  // no such place
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.ports.size(), 1U);
  EXPECT_STREQ(s.ports[0].kind.data(), "vhost");
  EXPECT_EQ(strlen(s.ports[0].target.data()), s.ports[0].target.size() - 1);
  EXPECT_EQ(s.ports[0].rx_frames, 2U);
}

TEST(Region, Socket_AppearsWithItsFirstUpdateAndGoesWithItsRelease) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const int slot = region.claim_socket();
  ASSERT_GE(slot, 0);
  EXPECT_TRUE(snapshot(dir).sockets.empty());
  SocketRecord socket{};
  socket.fd = 5;
  socket.protocol = IPPROTO_TCP;
  socket.state = static_cast<std::uint8_t>(SocketState::kEstablished);
  socket.path = static_cast<std::uint8_t>(SocketPath::kWire);
  socket.remote_address = kPeer.address;
  socket.remote_port = kPeer.port;
  socket.cwnd = 14480;
  region.update_socket(slot, socket);
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.sockets.size(), 1U);
  EXPECT_EQ(s.sockets[0].record.remote_address, kPeer.address);
  EXPECT_EQ(s.sockets[0].record.cwnd, 14480U);
  EXPECT_STREQ(state_name(s.sockets[0].record.state), "ESTABLISHED");
  EXPECT_STREQ(path_name(s.sockets[0].record.path), "wire");
  region.release_socket(slot);
  EXPECT_TRUE(snapshot(dir).sockets.empty());
  EXPECT_EQ(region.claim_socket(), slot) << "the freed slot is the next one taken";
}

TEST(Region, MoreSocketsThanSlots_AreCounted) {
  const RunDir dir;
  Region region;
  start(region, dir);
  for (std::size_t i = 0; i < kMaxSockets; i++) {
    const int slot = region.claim_socket();
    ASSERT_EQ(slot, static_cast<int>(i));
    SocketRecord socket{};
    socket.fd = slot;
    region.update_socket(slot, socket);
  }
  EXPECT_EQ(region.claim_socket(), -1);
  region.update_socket(-1, {});
  region.release_socket(-1);
  const Snapshot s = snapshot(dir);
  EXPECT_EQ(s.sockets.size(), kMaxSockets);
  EXPECT_EQ(s.sockets.back().record.fd, static_cast<int>(kMaxSockets) - 1);
  EXPECT_EQ(s.sockets_missing, 1U);
}

TEST(Region, Why_CountsRepetitionsOfOneReason) {
  const RunDir dir;
  Region region;
  start(region, dir);
  for (int fd = 5; fd < 8; fd++) region.why(Reason::kRuleKernel, fd, IPPROTO_TCP, kPeer, "kernel tcp *");
  region.why(Reason::kNoRoute, 9, IPPROTO_TCP, kPeer, nullptr);
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.whys.size(), 2U);
  EXPECT_EQ(s.whys[0].count, 3U);
  EXPECT_EQ(s.whys[0].fd, 7);
  EXPECT_EQ(s.whys[0].port, 6379);
  EXPECT_STREQ(s.whys[0].detail.data(), "kernel tcp *");
  EXPECT_EQ(s.whys[1].reason, static_cast<std::uint16_t>(Reason::kNoRoute));
}

TEST(Region, SentenceThatIsTooLong_IsCutBehindAWordAndSaysSo) {
  std::array<char, 208> field;
  std::string text;
  while (text.size() < 300) text += "words ";
  set_sentence(field, text.c_str());
  const std::string cut = field.data();
  EXPECT_LT(cut.size(), field.size());
  EXPECT_TRUE(cut.ends_with("words …")) << cut;
  EXPECT_GT(cut.size(), 190U);
  text.resize(207);
  set_sentence(field, text.c_str());
  EXPECT_EQ(field.data(), text) << "it fits";
  set_sentence(field, ("one " + std::string(500, 'x')).c_str());
  EXPECT_TRUE(std::string(field.data()).ends_with("x …"));
}

TEST(Region, WhyRing_OverwritesTheOldestAndCounts) {
  const RunDir dir;
  Region region;
  start(region, dir);
  for (std::size_t i = 0; i < kMaxWhys + 3; i++)
    region.why(Reason::kNoRoute, 5, IPPROTO_TCP, {kPeer.address, static_cast<std::uint16_t>(i)}, "");
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.whys.size(), kMaxWhys);
  EXPECT_EQ(s.whys[0].port, kMaxWhys);
  EXPECT_EQ(s.whys[3].port, 3U);
  EXPECT_EQ(s.whys_lost, 3U);
}

// A forked child makes its region when its progress thread runs. It may have something to record before that.
TEST(Region, WhyBeforeCreate_FindsItsPlaceThen) {
  const RunDir dir;
  Region region;
  for (int fd = 5; fd < 8; fd++) region.why(Reason::kRuleKernel, fd, IPPROTO_TCP, kPeer, "kernel tcp *");
  region.why(Reason::kUnguarded, -1, 0, {}, "eth0");
  start(region, dir);
  region.why(Reason::kRuleKernel, 9, IPPROTO_TCP, kPeer, "kernel tcp *");
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.whys.size(), 2U);
  EXPECT_EQ(s.whys[0].count, 4U);
  EXPECT_EQ(s.whys[0].fd, 9);
  EXPECT_STREQ(s.whys[1].detail.data(), "eth0");
  EXPECT_EQ(s.whys_lost, 0U);
}

TEST(Region, WhyBeforeCreate_WithoutRoomIsCounted_AndAbandonedIsForgotten) {
  const RunDir dir;
  Region region;
  const auto tell = [&](std::uint16_t port) {
    region.why(Reason::kNoRoute, 5, IPPROTO_TCP, {kPeer.address, port}, "");
  };
  tell(4000);
  region.abandon();
  for (std::uint16_t i = 0; i < 20; i++) tell(i);
  start(region, dir);
  const Snapshot s = snapshot(dir);
  ASSERT_FALSE(s.whys.empty());
  EXPECT_EQ(s.whys[0].port, 0U);
  EXPECT_EQ(s.whys.size() + s.whys_lost, 20U);
}

// What the image before exec recorded about sockets that this one inherits, and nothing else of it.
TEST(Region, EscapesByExec_AreFoundByTheNextImage) {
  const RunDir dir;
  {
    Region before;
    start(before, dir);
    before.why(Reason::kNoRoute, 4, IPPROTO_TCP, kPeer, "");
    before.why(Reason::kEscapedExec, 5, IPPROTO_TCP, kPeer, "/usr/bin/server");
    before.keep_for_exec();
    before.remove();
    EXPECT_EQ(dir.own_file(), "");
    start(before, dir);
    EXPECT_EQ(snapshot(dir).whys.size(), 1U);
    before.abandon();  // exec: the file stays
  }
  Region after;
  after.why(Reason::kUnguarded, -1, 0, {}, "eth0");
  start(after, dir);
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.whys.size(), 2U);
  EXPECT_EQ(s.whys[1].reason, static_cast<std::uint16_t>(Reason::kEscapedExec));
  EXPECT_EQ(s.whys[1].fd, 5);
  EXPECT_EQ(s.whys[1].port, kPeer.port);
  EXPECT_STREQ(s.whys[1].detail.data(), "/usr/bin/server");
}

TEST(Region, FileOfTheNameThatIsNoRegion_IsReplaced) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const std::string file = dir.own_file();
  ASSERT_EQ(truncate(file.c_str(), 4096), 0);
  region.abandon();
  Region second;
  start(second, dir);
  EXPECT_TRUE(snapshot(dir).whys.empty());
}

TEST(Region, WithoutCreate_EveryCallDoesNothing) {
  Region region;
  EXPECT_FALSE(region.active());
  EXPECT_EQ(region.claim_socket(), -1);
  region.update_socket(0, {});
  region.release_socket(0);
  region.why(Reason::kNoRoute, 1, 0, {}, "");
  region.set_port(0, {});
  region.publish_counters({}, 0);
}

TEST(Region, Remove_LeavesNoFile) {
  const RunDir dir;
  Region region;
  start(region, dir);
  EXPECT_NE(dir.own_file(), "");
  region.remove();
  EXPECT_EQ(dir.own_file(), "");
}

TEST(Region, ForkedChild_LeavesItsParentsFileAlone) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const pid_t child = fork();
  if (child == 0) {
    region.abandon();
    region.why(Reason::kForkedChild, 1, 0, {}, "");
    std::string problem;
    const bool own = region.create({dir.path(), "1.2.3", "cpu", kTestCounters}, problem);
    region.remove();
    _exit(own ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(snapshot(dir).whys.empty());
}

TEST(Region, ForkedChildThatWasNotTold_LeavesItsParentsFileAlone) {
  const RunDir dir;
  Region region;
  start(region, dir);
  if (const pid_t child = fork(); child == 0) {
    region.remove();
    _exit(0);
  } else {
    waitpid(child, nullptr, 0);
  }
  EXPECT_NE(dir.own_file(), "");
}

// A problem of a whole process has no address. Each text is an entry of its own.
TEST(Region, WhyWithoutDescriptor_IsKeptByItsText) {
  const RunDir dir;
  Region region;
  start(region, dir);
  for (const char* text : {"BYPASS_MTU=1: …", "BYPASS_LOG=x: …", "BYPASS_MTU=1: …"})
    region.why(Reason::kConfigProblem, -1, 0, {}, text);
  const Snapshot s = snapshot(dir);
  ASSERT_EQ(s.whys.size(), 2U);
  EXPECT_EQ(s.whys[0].count, 2U);
  EXPECT_STREQ(s.whys[1].detail.data(), "BYPASS_LOG=x: …");
}

TEST(Region, FileSizeLimit_IsAProblemAndNoSignal) {
  const RunDir dir;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    Region region;
    std::string problem;
    const bool made = region.create({dir.path(), "", "", {}}, problem);
    _exit(!made && problem.find("RLIMIT_FSIZE") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace bypass::observe
