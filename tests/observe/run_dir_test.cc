// The run directory belongs to the user, or it is not used.
#include "os/log/run_dir.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

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

// --- The default name is another user's

constexpr uid_t kUser = 23456, kSquatter = 12345;

/// Runs `body` as kUser in a process with a /dev/shm and a /run of its own, which root has `prepared`. Its exit status:
/// 0, or the line of the first check that failed.
int as_user(const std::function<void()>& prepare, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    umask(0022);
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("test", "/dev/shm", "tmpfs", 0, "mode=1777") != 0 || mount("test", "/run", "tmpfs", 0, "mode=755") != 0)
      _exit(255);
    prepare();
    if (setgid(kUser) != 0 || setuid(kUser) != 0) _exit(254);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
#define SAY_UNLESS(condition)                 \
  do {                                        \
    if (!(condition)) {                       \
      dprintf(2, "not so: %s\n", #condition); \
      return 1;                               \
    }                                         \
  } while (false)

void squat() {
  const std::string path = runtime::run_dir_path_of(kUser);
  if (mkdir(path.c_str(), 0700) != 0 || chown(path.c_str(), kSquatter, kSquatter) != 0) _exit(253);
}

void make_session() {
  const std::string path = "/run/user/" + std::to_string(kUser);
  if (mkdir("/run/user", 0755) != 0 || mkdir(path.c_str(), 0700) != 0 || chown(path.c_str(), kUser, kUser) != 0)
    _exit(253);
}

int uses(const std::string& path) {
  std::string problem;
  const int fd = open_run_dir(path, true, problem);
  SAY_UNLESS(fd >= 0);
  SAY_UNLESS(runtime::may_write(fd));
  close(fd);
  const auto all = runtime::run_dirs_of(kUser);
  SAY_UNLESS(std::find(all.begin(), all.end(), path) != all.end());
  return 0;
}

TEST(RunDir, DefaultOfAnotherUser_IsInTheSessionsDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  EXPECT_EQ(as_user([] { squat(), make_session(); },
                    [] {
                      const std::string path = runtime::run_dir_path("");
                      SAY_UNLESS(path == "/run/user/23456/bypass");
                      SAY_UNLESS(runtime::run_dir_problem() == "/dev/shm/bypass-23456 belongs to the user 12345");
                      return uses(path);
                    }),
            0);
}

TEST(RunDir, DefaultOfAnotherUser_WithoutASession_HasDigitsThatNobodyForesees) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  EXPECT_EQ(as_user(
                [] {
                  squat();
                  // A name like ours that another user has: the owner decides.
                  const std::string foreign = runtime::run_dir_path_of(kUser) + "-0000000000000000";
                  if (mkdir(foreign.c_str(), 0700) != 0 || chown(foreign.c_str(), kSquatter, kSquatter) != 0)
                    _exit(253);
                },
                [] {
                  const std::string path = runtime::run_dir_path("");
                  SAY_UNLESS(path.starts_with("/dev/shm/bypass-23456-"));
                  SAY_UNLESS(path != "/dev/shm/bypass-23456-0000000000000000");
                  SAY_UNLESS(runtime::run_dir_path("") == path);  // every process of the user finds the same
                  return uses(path);
                }),
            0);
}

TEST(RunDir, DefaultOfOnesOwn_IsUsedBesideASession) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  EXPECT_EQ(as_user(make_session,
                    [] {
                      SAY_UNLESS(runtime::run_dir_problem().empty());
                      SAY_UNLESS(runtime::run_dir_path("") == "/dev/shm/bypass-23456");
                      return uses("/dev/shm/bypass-23456");
                    }),
            0);
}

TEST(RunDir, Missing_IsAnEmptyListing) {
  const Listing listing = read_run_dir("/nonexistent/bypass", 0);
  EXPECT_TRUE(listing.processes.empty());
  EXPECT_TRUE(listing.problems.empty());
}

}  // namespace
}  // namespace bypass::observe
