#include "os/poll_by_parts.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>

namespace bypass::socket {
namespace {

constexpr timespec kAtOnce{};

/// Three pipes: the ends to read from, as a set, and the ends to write to.
struct Pipes {
  Pipes() {
    for (std::size_t i = 0; i < set.size(); i++) {
      int ends[2];
      EXPECT_EQ(pipe(ends), 0);
      set[i] = {ends[0], POLLIN, 0};
      writers[i] = ends[1];
    }
  }
  void fill(std::size_t which) const { EXPECT_EQ(write(writers[which], "x", 1), 1); }

  std::array<pollfd, 3> set;
  std::array<int, 3> writers;
};

/// Runs in a process of its own, which may have that many descriptors from now on. 0: `holds` is true.
int under_limit(rlim_t most, const std::function<bool(Pipes&)>& holds) {
  const pid_t child = fork();
  if (child == 0) {
    Pipes pipes;
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(2);
    _exit(holds(pipes) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(PollByParts, LongerThanTheLimit_EachItemIsAsked) {
  for (std::size_t which = 0; which < 3; which++)
    EXPECT_EQ(under_limit(1,
                          [which](Pipes& pipes) {
                            pipes.fill(which);
                            if (ppoll(pipes.set.data(), 3, &kAtOnce, nullptr) >= 0 || errno != EINVAL) return false;
                            if (poll_by_parts(pipes.set, nullptr) != 1) return false;
                            for (std::size_t i = 0; i < 3; i++)
                              if ((pipes.set[i].revents == POLLIN) != (i == which)) return false;
                            return true;
                          }),
              0)
        << which;
}

TEST(PollByParts, AllReady_AllAreCounted) {
  EXPECT_EQ(under_limit(2,
                        [](Pipes& pipes) {
                          for (std::size_t i = 0; i < 3; i++) pipes.fill(i);
                          return poll_by_parts(pipes.set, &kAtOnce) == 3;
                        }),
            0);
}

TEST(PollByParts, NoneReady_IsATimeout) {
  EXPECT_EQ(under_limit(1, [](Pipes& pipes) { return poll_by_parts(pipes.set, &kAtOnce) == 0; }), 0);
}

TEST(PollByParts, NobodyMayBeAsked_SaysSo) {
  EXPECT_EQ(under_limit(0,
                        [](Pipes& pipes) {
                          pipes.fill(0);
                          return poll_by_parts(pipes.set, &kAtOnce) == -1 && errno == EINVAL;
                        }),
            0);
}

}  // namespace
}  // namespace bypass::socket
