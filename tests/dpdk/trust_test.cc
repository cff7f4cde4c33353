// Which processes may be at the other end of a wire. The wire's memory is shared with them.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "driver.h"

namespace bypass::test {
namespace {

constexpr uid_t kNobody = 65534;

/// What a process of `user` gets that asks the server at `path` for its features (the first question of vhost-user).
std::string answer_to(uid_t user, const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(user) != 0 || setuid(user) != 0) _exit(3);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(4);
    const std::uint32_t question[3] = {1, 1, 0};
    char answer[64];
    _exit(send(fd, question, sizeof question, MSG_NOSIGNAL) < 0 || recv(fd, answer, sizeof answer, 0) <= 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  constexpr const char* kAnswers[] = {"features", "hung up", "?", "cannot be that user", "no connection"};
  return WIFEXITED(status) && WEXITSTATUS(status) < 5 ? kAnswers[WEXITSTATUS(status)] : "?";
}

/// As root, beside a driver process of another user.
class DpdkTrust : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "root alone can be another user";
    if (stranger.ask("process").rfind("gone", 0) == 0) GTEST_SKIP() << "the build folder is closed to others";
  }

  Folder folder;
  const std::string path = folder / "wire.sock";
  Driver us;
  Driver stranger{[] {
    umask(0);  // the one that likes may come to its sockets
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(126);
  }};
};

// In a folder like /tmp, where another user may be first at a path.
TEST_F(DpdkTrust, ServerOfAnotherUser_IsNotConnectedTo) {
  ASSERT_OK(stranger.ask("open vhost " + path));
  ASSERT_OK(us.ask("open virtio " + path));
  EXPECT_EQ(us.ask("link"), "ok down");
  EXPECT_NE(us.ask("said").find("a process of the user 65534"), std::string::npos);
  EXPECT_EQ(stranger.ask("link"), "ok down");
}

TEST_F(DpdkTrust, ServerOfTheUserThatIsNamed_IsConnectedTo) {
  ASSERT_OK(stranger.ask("open vhost " + path));
  ASSERT_OK(us.ask("open virtio " + path + ",peer=nobody"));
  EXPECT_OK(us.ask("wait-link up"));
}

// A client that knows the protocol and is not allowed. Its connection ends before it is answered.
TEST_F(DpdkTrust, ClientOfAnotherUser_IsNotLetIn) {
  ASSERT_OK(us.ask("open vhost " + path));
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  ASSERT_EQ(answer_to(kNobody, path), "hung up");
  EXPECT_NE(us.ask("said").find("a process of the user 65534"), std::string::npos);
  ASSERT_EQ(answer_to(geteuid(), path), "features");
}

// The user that the setting of one path names has no right at another path.
TEST_F(DpdkTrust, UserThatIsNamedForOnePath_IsNotLetInAtAnother) {
  const std::string other = folder / "other.sock";
  ASSERT_OK(us.ask("open vhost " + path + ",peer=65534"));
  ASSERT_OK(us.ask("close"));
  ASSERT_OK(us.ask("open vhost " + other));
  ASSERT_EQ(chmod(other.c_str(), 0777), 0);
  EXPECT_EQ(answer_to(kNobody, other), "hung up");
}

TEST_F(DpdkTrust, ClientOfTheUserThatIsNamed_IsLetIn) {
  ASSERT_OK(us.ask("open vhost " + path + ",peer=65534"));
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  ASSERT_OK(stranger.ask("open virtio " + path));
  EXPECT_OK(stranger.ask("wait-link up"));
}

TEST_F(DpdkTrust, UserThatThereIsNot_IsAnError) {
  EXPECT_NE(us.ask("open vhost " + path + ",peer=nosuchuser").find("peer=nosuchuser: there is no such user"),
            std::string::npos);
}

TEST_F(DpdkTrust, FolderThatOthersMayWriteInto_IsRefused) {
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  for (const char* kind : {"vhost ", "virtio "})
    EXPECT_NE((us.ask("open " + (kind + path))).find("others may write into the folder"), std::string::npos);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  EXPECT_OK(us.ask("open vhost " + path));
}

TEST_F(DpdkTrust, FolderOfAnotherUser_IsRefused) {
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chown(folder.path().c_str(), kNobody, kNobody), 0);
  EXPECT_NE(us.ask("open vhost " + path).find("is that of the user 65534"), std::string::npos);
  EXPECT_OK(us.ask("open vhost " + path + ",peer=65534"));
}

}  // namespace
}  // namespace bypass::test
