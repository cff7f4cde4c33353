#include "os/net/rights_message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace bypass::os {
namespace {

class RightsMessageTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair_), 0); }
  void TearDown() override { ::close(pair_[0]), ::close(pair_[1]); }

  // One byte with so many descriptors of this socket.
  void send(std::size_t count) {
    const std::array<int, 3> descriptors{pair_[0], pair_[0], pair_[0]};
    const char byte = 'b';
    RightsMessage<3> message(&byte, 1);
    message.pass(std::span(descriptors).first(count));
    ASSERT_EQ(::sendmsg(pair_[0], &message.header(), MSG_NOSIGNAL), 1);
  }

  template <std::size_t Room>
  std::size_t close_all(const RightsMessage<Room>& message) {
    std::size_t open = 0;
    for (const int fd : message.received()) open += fd >= 0 && ::close(fd) == 0 ? 1 : 0;
    return open;
  }

  int pair_[2]{-1, -1};
};

TEST_F(RightsMessageTest, DescriptorsThatFit_AreReceived) {
  send(2);
  char byte = 0;
  RightsMessage<2> message(&byte, 1);
  message.expect();
  ASSERT_EQ(::recvmsg(pair_[1], &message.header(), MSG_CMSG_CLOEXEC), 1);
  EXPECT_EQ(byte, 'b');
  EXPECT_FALSE(message.lacks_descriptors());
  EXPECT_EQ(close_all(message), 2U);
}

TEST_F(RightsMessageTest, FewerThanExpected_LeavePlacesEmpty) {
  send(1);
  char byte = 0;
  RightsMessage<2> message(&byte, 1);
  message.expect();
  ASSERT_EQ(::recvmsg(pair_[1], &message.header(), MSG_CMSG_CLOEXEC), 1);
  EXPECT_EQ(message.received()[1], -1);
  EXPECT_EQ(close_all(message), 1U);
}

TEST_F(RightsMessageTest, MoreThanExpected_AreNotInstalled) {
  // A second descriptor would fit into the padding of room for one.
  send(3);
  char byte = 0;
  RightsMessage<1> message(&byte, 1);
  message.expect();
  ASSERT_EQ(::recvmsg(pair_[1], &message.header(), MSG_CMSG_CLOEXEC), 1);
  EXPECT_TRUE(message.lacks_descriptors());
  EXPECT_EQ(close_all(message), 1U);
  const int lowest = ::dup(pair_[0]);
  EXPECT_EQ(lowest, pair_[1] + 1) << "a descriptor is left open";
  ::close(lowest);
}

TEST_F(RightsMessageTest, OrdinaryMessage_HasNone) {
  send(0);
  char bytes[2]{};
  RightsMessage<1> message(bytes, 1);
  message.expect();
  ASSERT_EQ(::recvmsg(pair_[1], &message.header(), 0), 1);
  EXPECT_EQ(message.received()[0], -1);
  EXPECT_FALSE(message.lacks_descriptors() || message.lacks_bytes());
}

}  // namespace
}  // namespace bypass::os
