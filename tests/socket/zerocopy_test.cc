// SO_ZEROCOPY and MSG_ZEROCOPY: what the error queue says of the sends (Documentation/networking/msg_zerocopy.rst).
#include <linux/errqueue.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "socket/calls.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

struct Told {
  long result = 0;
  int flags = 0;
  socklen_t name_length = 0;
  std::size_t control_length = 0;
  std::optional<sock_extended_err> error;
};

Told ask_queue(Calls& calls, int fd, int level = IPPROTO_IP, int type = IP_RECVERR) {
  Told told;
  alignas(cmsghdr) char control[256];
  sockaddr_in name{};
  msghdr header{};
  header.msg_name = &name;
  header.msg_namelen = sizeof name;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  told.result = calls.receive_message(fd, header, MSG_ERRQUEUE);
  if (told.result < 0) return told;
  told.flags = header.msg_flags;
  told.name_length = header.msg_namelen;
  told.control_length = header.msg_controllen;
  const cmsghdr* const c = CMSG_FIRSTHDR(&header);
  if (c == nullptr || c->cmsg_level != level || c->cmsg_type != type) return told;
  told.error.emplace();
  std::memcpy(&*told.error, CMSG_DATA(c), sizeof *told.error);
  return told;
}

class ZerocopyTest : public BothSides {
 protected:
  ZerocopyTest() { std::tie(client, server) = calls.connected(); }
  void receive_all(int fd, std::size_t bytes) {
    std::string got;
    for (std::size_t done = 0; done < bytes && !HasFailure(); done += got.size()) {
      await(calls, fd, POLLIN);
      ASSERT_GT(calls.receive(fd, got), 0);
    }
  }
  /// The kernel tells once the peer has the bytes, of each send or of several together.
  void expect_told(int fd, std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t next = first; next <= last && !HasFailure();) {
      await(calls, fd, POLLERR);
      const Told told = ask_queue(calls, fd);
      ASSERT_EQ(told.result, 0);
      ASSERT_TRUE(told.error.has_value());
      EXPECT_EQ(told.error->ee_info, next);
      EXPECT_LE(told.error->ee_data, last);
      next = told.error->ee_data + 1;
    }
  }
  int client = -1, server = -1;
};
ON_BOTH_SIDES(ZerocopyTest);

TEST_P(ZerocopyTest, ASend_IsReportedAsCopied) {
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
  EXPECT_EQ(ask_queue(calls, client).result, -EAGAIN);
  ASSERT_EQ(calls.send(client, std::string(20'000, 'x'), MSG_ZEROCOPY), 20'000);
  receive_all(server, 20'000);
  await(calls, client, POLLERR);
  const Told told = ask_queue(calls, client);
  EXPECT_EQ(told.result, 0);
  EXPECT_EQ(told.flags, MSG_ERRQUEUE);
  EXPECT_EQ(told.name_length, 0U);
  EXPECT_EQ(told.control_length, CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in)));
  ASSERT_TRUE(told.error.has_value());
  EXPECT_EQ(told.error->ee_errno, 0U);
  EXPECT_EQ(told.error->ee_origin, SO_EE_ORIGIN_ZEROCOPY);
  EXPECT_EQ(told.error->ee_code, SO_EE_CODE_ZEROCOPY_COPIED);
  EXPECT_EQ(told.error->ee_info, 0U);
  EXPECT_EQ(told.error->ee_data, 0U);
  EXPECT_EQ(ask_queue(calls, client).result, -EAGAIN);
  EXPECT_EQ(calls.poll_one(client, POLLOUT), POLLOUT) << "it is no error of the socket";
}

TEST_P(ZerocopyTest, Sends_AreNumbered) {
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
  for (int i = 0; i < 3; i++) ASSERT_EQ(calls.send(client, std::string(5000, 'x'), MSG_ZEROCOPY), 5000);
  ASSERT_EQ(calls.send(client, "not asked for", 0), 13);
  ASSERT_EQ(calls.send(client, "", MSG_ZEROCOPY), 0) << "and nothing to tell of";
  receive_all(server, 15'013);
  expect_told(client, 0, 2);
  ASSERT_EQ(calls.send(client, "more", MSG_ZEROCOPY), 4);
  receive_all(server, 4);
  expect_told(client, 3, 3);
}

TEST_P(ZerocopyTest, WithoutTheOption_TheFlagMeansNothing) {
  ASSERT_EQ(calls.send(client, "abc", MSG_ZEROCOPY), 3);
  receive_all(server, 3);
  EXPECT_EQ(ask_queue(calls, client).result, -EAGAIN);
  EXPECT_EQ(calls.poll_one(client, POLLOUT), POLLOUT);
}

TEST_P(ZerocopyTest, Option_TakesTwoValues) {
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, 2), -EINVAL);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, -1), -EINVAL);
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
  int value = 0;
  EXPECT_EQ(calls.get_option(client, SOL_SOCKET, SO_ZEROCOPY, value), 0);
  EXPECT_EQ(value, 1);
}

// gRPC asks its listeners for it.
TEST_P(ZerocopyTest, Listener_HandsItDown) {
  std::uint16_t port = 0;
  const int listener = calls.socket(AF_INET, SOCK_STREAM), asks = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.set_option(listener, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
  ASSERT_EQ(calls.bind(listener, calls.address(0)), 0);
  ASSERT_EQ(calls.listen(listener, 5), 0);
  port = ntohs(calls.local_name(listener).sin_port);
  ASSERT_EQ(calls.connect(asks, calls.address(port)), 0);
  const int accepted = static_cast<int>(calls.accept(listener));
  int value = 0;
  EXPECT_EQ(calls.get_option(accepted, SOL_SOCKET, SO_ZEROCOPY, value), 0);
  EXPECT_EQ(value, 1);
  ASSERT_EQ(calls.send(accepted, "answer", MSG_ZEROCOPY), 6);
  receive_all(asks, 6);
  expect_told(accepted, 0, 0);
  if (calls.bypass()) {
    EXPECT_NE(calls.find(accepted), nullptr) << "the option has left the port to the kernel";
  }
}

TEST_P(ZerocopyTest, AReport_IsAnEvent) {
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
  const int set = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, client, EPOLLIN | EPOLLET);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  ASSERT_EQ(calls.send(client, "abc", MSG_ZEROCOPY), 3);
  receive_all(server, 3);
  const auto events = calls.epoll_wait(set, 5000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLERR);
}

}  // namespace
}  // namespace bypass::test
