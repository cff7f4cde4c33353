// Files of dead processes are removed. Files of living processes, of other namespaces and of other versions stay.
#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "observe/process_identity.h"
#include "observe/scratch.h"

namespace bypass::observe {
namespace {

// A process that makes its region and dies without a chance to remove it.
void die_with_region(const RunDir& dir) {
  const pid_t child = fork();
  if (child == 0) {
    Region region;
    std::string problem;
    region.create({dir.path(), "", "", {}}, problem);
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
}

TEST(Sweep, KilledProcess_IsSweptByTheReader) {
  const RunDir dir;
  die_with_region(dir);
  EXPECT_NE(dir.own_file(), "");
  EXPECT_TRUE(read_run_dir(dir.path(), 0).processes.empty());
  EXPECT_EQ(dir.own_file(), "");
}

TEST(Sweep, KilledProcess_IsSweptByTheNextWriter) {
  const RunDir dir;
  die_with_region(dir);
  Region region;
  start(region, dir);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  EXPECT_EQ(snapshot(dir).pid, getpid());
}

TEST(Sweep, PidGivenToAnother_IsSwept) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const std::string renamed = dir.path() + "/" + file_name(getpid(), 1);
  std::filesystem::rename(dir.own_file(), renamed);
  EXPECT_TRUE(read_run_dir(dir.path(), 0).processes.empty());
}

TEST(Sweep, ForeignFiles_AreLeftAlone) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const std::string notes = dir.path() + "/notes.txt";
  const std::string young = dir.path() + "/999999999-5.stats";  // it may be in the middle of being written
  std::ofstream(notes) << "mine";
  std::ofstream(young) << "x";
  EXPECT_EQ(read_run_dir(dir.path(), 0).processes.size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(notes));
  EXPECT_TRUE(std::filesystem::exists(young));
}

TEST(Sweep, Garbage_IsReportedAndHarmless) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const std::string own = dir.own_file();
  const int fd = open(own.c_str(), O_RDWR);
  Section wild{};
  wild.offset = 0xfffffff0;
  wild.record_bytes = sizeof(CounterRecord);
  wild.capacity = wild.used = 0xffffffff;
  EXPECT_GT(pwrite(fd, &wild, sizeof wild, offsetof(Header, counters)), 0);
  EXPECT_TRUE(snapshot(dir).counters.empty());
  const std::uint32_t version = 99;
  EXPECT_GT(pwrite(fd, &version, sizeof version, offsetof(Header, version)), 0);
  close(fd);
  EXPECT_EQ(read_run_dir(dir.path(), 0).problems.size(), 1U);
}

TEST(Sweep, FileNames_RoundTrip) {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
  EXPECT_TRUE(parse_file_name(file_name(42, 777), pid, start_time));
  EXPECT_EQ(pid, 42);
  EXPECT_EQ(start_time, 777U);
  for (const char* bad : {"42.stats", "-1-5.stats", "42-5", "42-5.stats.tmp", "x-5.stats", "42-.stats", ".stats"})
    EXPECT_FALSE(parse_file_name(bad, pid, start_time)) << bad;
}

TEST(ProcessIdentity, SelfIsAliveAZombieIsNot) {
  EXPECT_EQ(liveness(self_identity()), Liveness::kAlive);
  ProcessIdentity other = self_identity();
  other.start_time++;
  EXPECT_EQ(liveness(other), Liveness::kDead);
  other.pid_namespace++;
  EXPECT_EQ(liveness(other), Liveness::kElsewhere);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // dead, and still a zombie
  EXPECT_EQ(start_time_of(child), 0U);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace bypass::observe
