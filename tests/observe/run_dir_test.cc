// The run directory is the user's own, or it is not used.
#include "runtime/run_dir.h"

#include <sys/stat.h>

#include "observe/scratch.h"

namespace bypass::observe {
namespace {

using runtime::open_run_dir;

TEST(RunDir, Default_BelongsToTheUser) {
  EXPECT_EQ(runtime::run_dir_path(""), "/dev/shm/bypass-" + std::to_string(geteuid()));
  EXPECT_EQ(runtime::run_dir_path("/tmp/x"), "/tmp/x");
}

TEST(RunDir, Made_ForItsOwnerAlone) {
  const RunDir dir;
  std::string problem;
  const int fd = open_run_dir(dir.path(), true, problem);
  ASSERT_GE(fd, 0) << problem;
  close(fd);
  struct stat status {};
  stat(dir.path().c_str(), &status);
  EXPECT_EQ(status.st_mode & 07777, 0700U);
}

TEST(RunDir, OpenToOthers_IsRefused) {
  const RunDir dir;
  mkdir(dir.path().c_str(), 0700);
  chmod(dir.path().c_str(), 0770);
  std::string problem;
  EXPECT_EQ(open_run_dir(dir.path(), true, problem), -1);
  EXPECT_NE(problem.find("mode 0700"), std::string::npos) << problem;
}

TEST(RunDir, Link_IsRefused) {
  const RunDir dir;
  mkdir((dir.root() + "/real").c_str(), 0700);
  ASSERT_EQ(symlink("real", dir.path().c_str()), 0);
  std::string problem;
  EXPECT_EQ(open_run_dir(dir.path(), true, problem), -1);
  EXPECT_NE(problem.find("is no directory"), std::string::npos) << problem;
}

TEST(RunDir, AnotherUsers_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make one";
  const RunDir dir;
  mkdir(dir.path().c_str(), 0700);
  ASSERT_EQ(chown(dir.path().c_str(), 12345, 12345), 0);
  std::string problem;
  EXPECT_EQ(open_run_dir(dir.path(), true, problem), -1);
  EXPECT_NE(problem.find("belongs to the user 12345"), std::string::npos) << problem;
}

TEST(RunDir, Missing_IsAnEmptyListing) {
  const Listing listing = read_run_dir("/nonexistent/bypass", 0);
  EXPECT_TRUE(listing.processes.empty());
  EXPECT_TRUE(listing.problems.empty());
}

}  // namespace
}  // namespace bypass::observe
