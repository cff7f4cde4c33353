#include "os/own/own_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bypass::runtime {
namespace {

TEST(OwnDescriptors, AsManyAsAProcessCanHave) {
  for (int fd = 4000; fd < 6000; fd++) own_descriptor(fd, true);
  own_descriptor((1 << 20) - 1, true);
  for (int fd = 4000; fd < 6000; fd++) EXPECT_TRUE(owns_descriptor(fd)) << fd;
  EXPECT_TRUE(owns_descriptor((1 << 20) - 1));
  for (const int other : {-1, 0, 3999, 6000, (1 << 20) - 2, 1 << 20, 0x7fff'ffff}) EXPECT_FALSE(owns_descriptor(other));
  for (int fd = 4000; fd < 6000; fd++) own_descriptor(fd, false);
  own_descriptor((1 << 20) - 1, false);
  for (int fd = 4000; fd < 6000; fd++) EXPECT_FALSE(owns_descriptor(fd)) << fd;
}

TEST(OwnDescriptors, RegisteredTwice_IsForgottenAtOnce) {
  own_descriptor(4000, true);
  own_descriptor(4000, true);
  own_descriptor(4000, false);
  EXPECT_FALSE(owns_descriptor(4000));
}

TEST(OwnDescriptors, CloseAll_ClosesThemAndKeepsOne) {
  const int gone = fcntl(0, F_DUPFD_CLOEXEC, 300), kept = fcntl(0, F_DUPFD_CLOEXEC, 700), programs = dup(0);
  ASSERT_GE(gone, 0);
  ASSERT_GE(kept, 0);
  own_descriptor(gone, true);
  own_descriptor(kept, true);
  close_own_descriptors(kept);
  EXPECT_EQ(fcntl(gone, F_GETFD), -1);
  EXPECT_EQ(fcntl(kept, F_GETFD), FD_CLOEXEC);
  EXPECT_GE(fcntl(programs, F_GETFD), 0);
  EXPECT_FALSE(owns_descriptor(gone));
  EXPECT_FALSE(owns_descriptor(kept));
  close(kept);
  close(programs);
}

// Runs in a forked child: the test's own descriptors are among the others.
TEST(OwnDescriptors, CloseOthers_LeavesOursAlone) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int one = fcntl(0, F_DUPFD_CLOEXEC, 300), next = fcntl(0, F_DUPFD_CLOEXEC, 301), far = fcntl(0, F_DUPFD, 700);
    const int programs = fcntl(0, F_DUPFD, 500), beside = fcntl(0, F_DUPFD, 302);
    own_descriptor(one, true);
    own_descriptor(next, true);
    own_descriptor(far, true);
    close_others_descriptors();
    const auto is_open = [](int fd) { return fcntl(fd, F_GETFD) >= 0; };
    const bool kept = is_open(one) && is_open(next) && is_open(far);
    _exit(kept && !is_open(programs) && !is_open(beside) && !is_open(0) && owns_descriptor(far) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace bypass::runtime
