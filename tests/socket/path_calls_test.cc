// PathCalls: which row a socket has, and what the rows say of a path.
#include "socket/path_calls.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

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

/// sendfile() of no bytes on a socket that was never connected, and whether it raises SIGPIPE.
TEST(PathCalls, SendFile_OfOneThatIsNotConnected_IsABrokenPipe) {
  test::World::get();
  for (const Path path : {Path::kUndecided, Path::kDual}) {
    Socket socket;
    socket.path = path;
    bool sigpipe = false;
    EXPECT_EQ(calls_of(socket).send_file(socket, -1, -1, nullptr, 1, sigpipe), -EPIPE);
    EXPECT_TRUE(sigpipe);
  }
}

}  // namespace
}  // namespace bypass::socket
