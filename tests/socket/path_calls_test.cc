// PathCalls: which row a socket has, and what the rows say of a path.
#include "socket/path_calls.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/world.h"

namespace bypass::socket {
namespace {

constexpr std::array kAll{Path::kUndecided, Path::kBypass, Path::kDual, Path::kLocal, Path::kKernel, Path::kPumped};
static_assert(kAll.size() == kPaths);

TEST(PathCalls, RowIsThePaths) {
  for (const Path path : kAll) {
    Socket socket;
    socket.path = path;
    const File& file = socket;
    EXPECT_EQ(&calls_of(file), &path_calls[static_cast<std::size_t>(path)]);
    EXPECT_EQ(calls_of(socket).in_kernel, path == Path::kLocal);
    EXPECT_EQ(is_on_wire(socket), path != Path::kUndecided && path != Path::kLocal && path != Path::kPumped);
    socket.alive = false;
    EXPECT_FALSE(is_on_wire(socket));
  }
}

TEST(PathCalls, EpollSet_IsAsUndecided) {
  Epoll set;
  set.kind = FileKind::kEpoll;
  const File& file = set;
  EXPECT_EQ(&calls_of(file), &path_calls[static_cast<std::size_t>(Path::kUndecided)]);
}

TEST(PathCalls, LookedAt_OnlyWhatTheKernelDoesNotKnow) {
  for (const Path path : {Path::kUndecided, Path::kBypass, Path::kDual, Path::kKernel}) {
    Socket socket;
    socket.path = path;
    EXPECT_EQ(calls_of(socket).is_looked_at(socket), path != Path::kUndecided);
  }
  Details details;
  LocalEnd end;
  details.local = &end;
  Socket socket;
  socket.path = Path::kLocal;
  socket.details = &details;
  end.stage = LocalEnd::Stage::kPairing;
  EXPECT_FALSE(calls_of(socket).is_looked_at(socket)) << "the kernel has all of it";
  end.stage = LocalEnd::Stage::kPaired;
  EXPECT_TRUE(calls_of(socket).is_looked_at(socket));
}

/// sendfile() on a socket that was never connected: the kernel's own socket under the number answers, and raises
/// SIGPIPE.
TEST(PathCalls, SendFile_OfOneThatIsNotConnected_IsTheKernelsAnswer) {
  test::World::get();
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const int file = memfd_create("file", MFD_CLOEXEC), fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(write(file, "x", 1), 1);
  for (const Path path : {Path::kUndecided, Path::kDual}) {
    Socket socket;
    socket.path = path;
    bool sigpipe = false;
    off_t at = 0, end = 1;
    EXPECT_EQ(calls_of(socket).send_file(socket, fd, file, &at, 1, sigpipe), -EPIPE);
    EXPECT_EQ(calls_of(socket).send_file(socket, fd, file, &end, 1, sigpipe), 0) << "nothing is to be sent";
    EXPECT_FALSE(sigpipe) << "the kernel has raised it";
  }
  close(file), close(fd);
  (void)std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace bypass::socket
