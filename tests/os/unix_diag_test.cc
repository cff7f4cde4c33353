#include "os/net/unix_diag.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "os/net/rights_message.h"
#include "os/os.h"

namespace bypass::os {
namespace {

class UnixDiagTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_.data()), 0);
    if (!unix_socket_id(pair_[0]).has_value() || !diag_.peer_of(inode(0)).has_value())
      GTEST_SKIP() << "the kernel has no UNIX_DIAG, or no cookies of networks";
  }
  void TearDown() override {
    for (const int fd : pair_) ::close(fd);
  }
  [[nodiscard]] std::uint32_t inode(std::size_t end) const { return static_cast<std::uint32_t>(inode_of(pair_[end])); }

  std::array<int, 2> pair_{};
  UnixDiag diag_;
};

TEST_F(UnixDiagTest, ADescriptor_TellsWhatTheSocketIsKnownBy) {
  const auto id = unix_socket_id(pair_[0]);
  EXPECT_EQ(id->inode, inode(0));
  EXPECT_EQ(id->network, diag_.network());
  EXPECT_NE(id, unix_socket_id(pair_[1]));
  EXPECT_FALSE(unix_socket_id(-1).has_value());
}

TEST_F(UnixDiagTest, ThePeer_IsTheOtherEnd) {
  EXPECT_EQ(diag_.peer_of(inode(0)), inode(1));
}

TEST_F(UnixDiagTest, ASocketInAMessage_IsGoneWithTheMessage) {
  std::array<int, 2> passed{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, passed.data()), 0);
  const auto id = unix_socket_id(passed[0]);
  RightsMessage<1> message("x", 1);
  message.pass({passed.data(), 1});
  ASSERT_EQ(::sendmsg(pair_[0], &message.header(), 0), 1);
  for (const int fd : passed) ::close(fd);
  EXPECT_FALSE(diag_.is_gone(*id));
  char byte = 0;
  ASSERT_EQ(::read(pair_[1], &byte, 1), 1);  // which drops what has come with it
  EXPECT_TRUE(diag_.is_gone(*id));
}

TEST_F(UnixDiagTest, AnotherSocketWithItsInode_IsNotIt) {
  UnixSocketId id = *unix_socket_id(pair_[0]);
  id.cookie ^= 1;
  EXPECT_TRUE(diag_.is_gone(id));
}

}  // namespace
}  // namespace bypass::os
