// A stats file belongs to its owner, who may write anything into it, and may truncate it while it is read.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "observe/printable.h"
#include "observe/scratch.h"

namespace bypass::observe {
namespace {

/// This process's stats file, into which another process may write.
class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    start(region_, dir_);
    path_ = dir_.own_file();
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
    region_.abandon();
  }
  void TearDown() override { close(fd_); }

  template <typename T>
  void put(const T& value, std::size_t offset) const {
    ASSERT_EQ(pwrite(fd_, &value, sizeof value, static_cast<off_t>(offset)), static_cast<ssize_t>(sizeof value));
  }
  [[nodiscard]] std::string only_problem() const {
    const Listing listing = read_run_dir(dir_.path(), 0);
    EXPECT_TRUE(listing.processes.empty());
    return listing.problems.size() == 1 ? listing.problems[0] : "";
  }

  RunDir dir_;
  Region region_;
  std::string path_;
  int fd_ = -1;
};

// Each reading finds the file truncated or whole, or it is truncated during the reading.
TEST_F(Hostile, CutWhileItIsRead_EndsNobody) {
  std::vector<char> whole(64 << 10);
  ASSERT_EQ(pread(fd_, whole.data(), whole.size(), 0), static_cast<ssize_t>(whole.size()));
  const pid_t cutter = fork();
  if (cutter == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a reader that is killed by it leaves nothing behind
    for (;;)
      if (ftruncate(fd_, 0) != 0 || pwrite(fd_, whole.data(), whole.size(), 0) < 0) _exit(1);
  }
  for (int i = 0; i < 5'000; i++) read_run_dir(dir_.path(), 0);
  kill(cutter, SIGKILL);
  int status = 0;
  waitpid(cutter, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

// 256 MiB that take no memory of the writer: four million records of zeros.
TEST_F(Hostile, SparseFile_FillsNoMemory) {
  constexpr std::uint32_t kMany = 4 << 20;
  ASSERT_EQ(ftruncate(fd_, static_cast<off_t>(sizeof(Header) + std::size_t{kMany} * sizeof(CounterRecord))), 0);
  Section counters{};
  counters.offset = sizeof(Header);
  counters.record_bytes = sizeof(CounterRecord);
  counters.capacity = counters.used = kMany;
  put(counters, offsetof(Header, counters));
  EXPECT_LE(snapshot(dir_).counters.size(), kMaxCounters);
}

TEST_F(Hostile, TextForATerminal_IsEscaped) {
  Header header{};
  set_text(header.command, "\x1b]0;root\a\nroot# ");
  put(header.command, offsetof(Header, command));
  set_text(header.profile, "\xff\xc2\x9b");
  put(header.profile, offsetof(Header, profile));
  const Snapshot s = snapshot(dir_);
  EXPECT_EQ(s.command, "\\x1b]0;root\\x07\\x0aroot# ");
  EXPECT_EQ(s.profile, "\\xff\\xc2\\x9b");
}

TEST_F(Hostile, SecondName_IsRefused) {
  ASSERT_EQ(link(path_.c_str(), (dir_.root() + "/elsewhere").c_str()), 0);
  EXPECT_TRUE(only_problem().ends_with("has more than one name"));
}

TEST_F(Hostile, AnotherProcessInside_IsRefused) {
  put(std::int32_t{1}, offsetof(Header, pid));
  EXPECT_TRUE(only_problem().ends_with("names another process inside"));
}

// Root reads another user's directory. It would show that user's text beside this process's sockets.
TEST_F(Hostile, OwnerThatDoesNotRunTheProcess_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to read another user's directory";
  ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(only_problem().ends_with("the user 12345, does not run that process"));
}

TEST_F(Hostile, StateThatThereIsNot_IsShownAsClosed) {
  Region region;
  start(region, dir_);
  SocketRecord socket{};
  socket.state = 200;
  region.update_socket(region.claim_socket(), socket);
  const Snapshot s = snapshot(dir_);
  ASSERT_EQ(s.sockets.size(), 1U);
  EXPECT_EQ(s.sockets[0].record.state, static_cast<std::uint8_t>(SocketState::kClosed));
}

// Asking for a drill writes to the file. Through a link it would write where the file's owner may not.
TEST_F(Hostile, DrillThroughALink_IsNotAskedFor) {
  const std::string moved = dir_.root() + "/moved";
  std::filesystem::rename(path_, moved);
  std::filesystem::create_symlink(moved, path_);
  std::string problem;
  EXPECT_EQ(ask_drill(path_, Drill::kQpError, 0, problem), -1);
  EXPECT_NE(problem, "");
  std::filesystem::remove(path_);
  std::filesystem::rename(moved, path_);
  std::filesystem::rename(dir_.path(), moved);
  std::filesystem::create_directory_symlink(moved, dir_.path());
  problem.clear();
  EXPECT_EQ(ask_drill(path_, Drill::kQpError, 0, problem), -1);
  EXPECT_NE(problem.find("is no directory"), std::string::npos) << problem;
}

TEST(Printable, Text_IsItself) {
  for (const char* text : {"redis-server", "µs …", "日本", "a\\b", ""}) EXPECT_EQ(printable(text), text);
}

TEST(Printable, WhatCommandsATerminal_IsEscaped) {
  EXPECT_EQ(printable("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(printable("a\r\nb\x7f"), "a\\x0d\\x0ab\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // CSI of C1
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right to left
}

TEST(Printable, WhatIsNoUtf8_IsEscaped) {
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80");                    // cut
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond Unicode
}

}  // namespace
}  // namespace bypass::observe
