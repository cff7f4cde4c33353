// Ends of streams, compared with the kernel's: shutdown, close, SO_LINGER, resets, and what is read after them.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamEndTest = BothSides;
ON_BOTH_SIDES(StreamEndTest);

TEST_P(StreamEndTest, PeekAll_AfterOnesOwnShutdownOfReceiving_WaitsForNothing) {
  const auto [client, server] = calls.connected();
  const timeval limit{1, 0};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  ASSERT_EQ(calls.send(client, "abc"), 3);
  await(calls, server, POLLIN);
  ASSERT_EQ(calls.shutdown(server, SHUT_RD), 0);
  std::string got;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(calls.receive(server, got, 6, MSG_PEEK | MSG_WAITALL), 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900));
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 3);
}

TEST_P(StreamEndTest, PeekAll_AfterOnesOwnShutdownOfSending_WaitsForThePeer) {
  for (const bool low_water : {false, true}) {
    const auto [client, server] = calls.connected();
    ASSERT_EQ(calls.send(client, "abc"), 3);
    await(calls, server, POLLIN);
    ASSERT_EQ(calls.shutdown(server, SHUT_WR), 0);
    if (low_water) {
      ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 6), 0);
    }
    std::string got;
    long r = 0;
    Sleeping reader([&, fd = server] { r = calls.receive(fd, got, 6, low_water ? MSG_PEEK : MSG_PEEK | MSG_WAITALL); });
    EXPECT_EQ(calls.send(client, "def"), 3);
    reader.join();
    EXPECT_EQ(r, 6);
    ASSERT_EQ(calls.send(client, "g"), 1);
    ASSERT_EQ(calls.shutdown(client, SHUT_WR), 0);
    EXPECT_EQ(calls.receive(server, got, 20, MSG_PEEK | MSG_WAITALL), 7) << "up to the peer's end";
  }
}

TEST_P(StreamEndTest, Shutdown_BothWays_PeersDataIsReset) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.shutdown(server, SHUT_RDWR), 0);
  std::string got;
  ASSERT_EQ(calls.receive(client, got), 0);
  ASSERT_EQ(calls.send(client, "for nobody"), 10);
  await(calls, client, POLLHUP);
  EXPECT_EQ(calls.send(client, "more"), -EPIPE);
  int error = 0;
  await(calls, server, POLLERR);
  EXPECT_EQ(calls.get_option(server, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, ECONNRESET);
}

TEST_P(StreamEndTest, Shutdown_BothWays_WhatCameBeforeIsReadThenTheReset) {
  const auto [client, server] = calls.connected();
  std::string got;
  ASSERT_EQ(calls.send(client, "early"), 5);
  await(calls, server, POLLIN);
  ASSERT_EQ(calls.shutdown(server, SHUT_RDWR), 0);
  ASSERT_EQ(calls.receive(client, got), 0);
  ASSERT_EQ(calls.send(client, "late"), 4);
  await(calls, server, POLLERR);
  EXPECT_EQ(calls.receive(server, got), 5);
  EXPECT_EQ(got, "early");
  EXPECT_EQ(calls.receive(server, got), -ECONNRESET);
  EXPECT_EQ(calls.receive(server, got), 0);
  await(calls, client, POLLHUP);
  EXPECT_EQ(calls.receive(client, got), 0) << "the end had come, and stays";
}

TEST_P(StreamEndTest, Shutdown_OfReceiving_ResetIsToldOnceAllTheSame) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.shutdown(client, SHUT_RD), 0);
  ASSERT_EQ(calls.send(client, "never read"), 10);
  await(calls, server, POLLIN);
  calls.close(server);
  await(calls, client, POLLERR);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  EXPECT_EQ(calls.receive(client, got), 0);
  int error = -1;
  EXPECT_EQ(calls.get_option(client, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(calls.poll_one(client, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}

int state_of(Calls& calls, int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(calls.get_option(fd, IPPROTO_TCP, TCP_INFO, &info, length), 0);
  return info.tcpi_state;
}

// An ACK may be delayed.
void await_state(Calls& calls, int fd, int state) {
  for (int i = 0; i < 1000 && state_of(calls, fd) != state; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(state_of(calls, fd), state);
}

TEST_P(StreamEndTest, BothEnded_SocketIsClosedAtEitherEnd) {
  const auto [client, server] = calls.connected();
  const sockaddr_in own = calls.local_name(client);
  std::string got;
  ASSERT_EQ(calls.send(server, "last words"), 10);
  ASSERT_EQ(calls.shutdown(client, SHUT_WR), 0);
  ASSERT_EQ(calls.receive(server, got), 0);
  EXPECT_EQ(state_of(calls, server), TCP_CLOSE_WAIT);
  await_state(calls, client, TCP_FIN_WAIT2);
  ASSERT_EQ(calls.shutdown(server, SHUT_WR), 0);
  await(calls, client, POLLHUP);
  for (const int end : {client, server}) {
    sockaddr_in name{};
    await_state(calls, end, TCP_CLOSE);
    EXPECT_EQ(calls.peer_name(end, name), -ENOTCONN);
    EXPECT_EQ(calls.shutdown(end, SHUT_WR), -ENOTCONN);
    EXPECT_EQ(calls.send(end, "x"), -EPIPE);
    EXPECT_EQ(calls.poll_one(end, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    int value = -1;
    EXPECT_EQ(calls.get_option(end, SOL_SOCKET, SO_ERROR, value), 0);
    EXPECT_EQ(value, 0);
    EXPECT_EQ(calls.ioctl_int(end, SIOCOUTQ, value), 0);
    EXPECT_EQ(value, 0);
  }
  EXPECT_EQ(calls.local_name(client).sin_port, own.sin_port);
  EXPECT_EQ(calls.receive(client, got), 10);
  for (const int end : {client, client, server}) EXPECT_EQ(calls.receive(end, got), 0);
  EXPECT_EQ(calls.connect(client, own), -EISCONN);
}

TEST_P(StreamEndTest, OutQueue_OfWhatAResetLost_Stays) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  const std::string block(1U << 20, 'x');
  while (calls.send(client, block) > 0) {
  }
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  await(calls, client, POLLERR);
  int left = 0;
  EXPECT_EQ(calls.ioctl_int(client, SIOCOUTQ, left), 0);
  EXPECT_GT(left, 0);
}

TEST_P(StreamEndTest, Shutdown_OfSending_IsEndOfStreamForThePeerOnly) {
  const auto [client, server] = calls.connected();
  calls.send(client, "last");
  EXPECT_EQ(calls.shutdown(client, SHUT_WR), 0);
  EXPECT_EQ(calls.send(client, "more"), -EPIPE);
  std::string got;
  await(calls, server, POLLRDHUP);
  EXPECT_EQ(calls.poll_one(server, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(calls.receive(server, got), 4);
  EXPECT_EQ(calls.receive(server, got), 0);
  EXPECT_EQ(calls.send(server, "answer"), 6);
  EXPECT_EQ(calls.receive(client, got), 6);
  calls.close(server);
  EXPECT_EQ(calls.receive(client, got), 0);
  EXPECT_EQ(calls.poll_one(client, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}

TEST_P(StreamEndTest, Shutdown_OfReceiving_EndsTheStreamHere) {
  const auto [client, server] = calls.connected();
  EXPECT_EQ(calls.shutdown(server, SHUT_RD), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 0);
  EXPECT_EQ(calls.poll_one(server, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
}

TEST_P(StreamEndTest, Shutdown_OfFreshSocket_IsNotConnected) {
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.shutdown(fd, SHUT_RDWR), -ENOTCONN);
  EXPECT_EQ(calls.shutdown(fd, 7), -EINVAL);
}

TEST_P(StreamEndTest, FreshSocket_EveryCall_FailsAsTheKernelsDoes) {
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  std::string got;
  EXPECT_EQ(calls.poll_one(fd, POLLIN | POLLOUT | POLLRDHUP), POLLOUT | POLLHUP);
  EXPECT_EQ(calls.receive(fd, got), -ENOTCONN);
  EXPECT_EQ(calls.send(fd, "x"), -EPIPE);
  EXPECT_EQ(calls.accept(fd), -EINVAL);
  sockaddr_in name{};
  EXPECT_EQ(calls.peer_name(fd, name), -ENOTCONN);
}

TEST_P(StreamEndTest, Close_WithUnreadBytes_ResetsThePeer) {
  const auto [client, server] = calls.connected();
  calls.send(client, "never read");
  await(calls, server, POLLIN);
  calls.close(server);
  await(calls, client, POLLIN);
  EXPECT_EQ(calls.poll_one(client, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  EXPECT_EQ(calls.receive(client, got), 0);
  EXPECT_EQ(calls.send(client, "x"), -EPIPE);
}

TEST_P(StreamEndTest, Linger_Zero_ResetsThePeer) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  await(calls, client, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
}

TEST_P(StreamEndTest, Linger_Positive_ReturnsOnceThePeerHasAll) {
  const auto [client, server] = calls.connected();
  const linger on{1, 5};
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &on, sizeof on);
  calls.send(client, "all of it");
  EXPECT_EQ(calls.close(client), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 9);
  EXPECT_EQ(calls.receive(server, got), 0);
}

// inet_release() of Linux waits on a non-blocking socket, too. Bytes that are there after that time still arrive.
TEST_P(StreamEndTest, Linger_PeerReadsNothing_WaitsForItsTime) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  const std::string block(65536, 'x');
  std::size_t sent = 0;
  for (long r = 0; (r = calls.send(client, block)) > 0;) sent += static_cast<std::size_t>(r);
  const linger on{1, 1};
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &on, sizeof on);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(calls.close(client), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(990));
  std::string got;
  std::size_t received = 0;
  for (long n = 0; (n = calls.receive(server, got)) > 0;) received += static_cast<std::size_t>(n);
  EXPECT_EQ(received, sent);
}

TEST_P(StreamEndTest, Linger_UnreadData_ResetsAllTheSame) {
  const auto [client, server] = calls.connected();
  calls.send(server, "never read");
  await(calls, client, POLLIN);
  const linger on{1, 60};
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &on, sizeof on);
  EXPECT_EQ(calls.close(client), 0);
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), -ECONNRESET);
}

TEST_P(StreamEndTest, Send_AfterReset_GivesTheErrorThenBrokenPipe) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  await(calls, client, POLLIN);
  EXPECT_EQ(calls.send(client, "x"), -ECONNRESET);
  EXPECT_EQ(calls.send(client, "x"), -EPIPE);
}

TEST_P(StreamEndTest, Dup_BothNumbersNameOneSocket_LastCloseEndsIt) {
  const auto [client, server] = calls.connected();
  const int other = calls.dup(client);
  calls.close(client);
  EXPECT_EQ(calls.send(other, "still here"), 10);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 10);
  calls.close(other);
  EXPECT_EQ(calls.receive(server, got), 0);
}

TEST_P(StreamEndTest, Receive_InAnotherThread_IsWokenByShutdown) {
  const auto [client, server] = calls.connected();
  std::thread reader([&, s = server] {
    std::string got;
    EXPECT_EQ(calls.receive(s, got), 0);
  });
  std::this_thread::yield();
  calls.shutdown(server, SHUT_RDWR);
  reader.join();
}

TEST_P(StreamEndTest, ReceiveMany_EndedByAReset_TellsItAtTheNextCall) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  ASSERT_EQ(calls.send(server, "abcd"), 4);
  await(calls, client, POLLIN);
  char room[2][4];
  iovec data[2] = {{room[0], 4}, {room[1], 4}};
  std::vector<mmsghdr> messages(2);
  for (std::size_t i = 0; i < 2; i++) messages[i].msg_hdr.msg_iov = &data[i], messages[i].msg_hdr.msg_iovlen = 1;
  std::thread closer([&, c = client, s = server] {
    int waiting = 4;
    while (waiting != 0) ASSERT_EQ(calls.ioctl_int(c, FIONREAD, waiting), 0);
    calls.close(s);  // while the second message is waited for
  });
  EXPECT_EQ(calls.receive_many(client, messages), 1);
  closer.join();
  EXPECT_EQ(calls.poll_one(client, POLLPRI) & POLLERR, POLLERR);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  EXPECT_EQ(calls.receive(client, got), 0);
}

TEST_P(StreamEndTest, ReceiveMany_AfterAReset_TellsItBeforeTheBytes) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  ASSERT_EQ(calls.send(server, "abcd"), 4);
  await(calls, client, POLLIN);
  calls.close(server);
  await(calls, client, POLLHUP);
  char room[4];
  iovec data{room, 4};
  std::vector<mmsghdr> messages(1);
  messages[0].msg_hdr.msg_iov = &data, messages[0].msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(calls.receive_many(client, messages), -ECONNRESET);
  EXPECT_EQ(calls.receive_many(client, messages), 1);
}

// The peer goes on. The wait is for the peer to have all bytes, not for the peer's FIN.
TEST_P(StreamEndTest, Linger_EverythingAcknowledged_DoesNotWait) {
  const auto [client, server] = calls.connected();
  const ::linger half_a_minute{1, 30};
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_LINGER, &half_a_minute, sizeof half_a_minute), 0);
  ASSERT_EQ(calls.send(client, "abc"), 3);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(calls.close(client), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15));
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 3);
  EXPECT_EQ(calls.receive(server, got), 0);
}

TEST_P(StreamEndTest, PeerName_OfAResetConnection_IsNone) {
  const auto [client, server] = calls.connected();
  const ::linger at_once{1, 0};
  ASSERT_EQ(calls.send(client, "abc"), 3);
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  ASSERT_EQ(calls.close(client), 0);
  sockaddr_in name{};
  EXPECT_EQ(calls.peer_name(server, name), -ENOTCONN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 3);
  EXPECT_EQ(calls.receive(server, got), -ECONNRESET);
}

}  // namespace
}  // namespace bypass::test
