// Streams: the same calls on the kernel's sockets and on the stack's must give the same results.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "socket/at_once.h"
#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamTest = BothSides;
ON_BOTH_SIDES(StreamTest);

// A call that finds its connection as it usually is takes the short way. (Not where nobody has looked at the wire for
// some microseconds: how many of them do is the machine's affair.)
TEST_P(StreamTest, ShortTransfers_OfAQuietConnection_AreMadeAtOnce) {
  const auto [client, server] = calls.connected();
  const std::uint64_t before = socket::at_once_counts.stream;
  std::string got;
  bool made = false;
  for (int i = 0; i < 100 || (i < 100'000 && !made); i++) {
    ASSERT_EQ(calls.send(client, "question"), 8);
    await(calls, server, POLLIN);  // polls the wire: no call that follows has to
    ASSERT_EQ(calls.receive(server, got), 8);
    ASSERT_EQ(got, "question");
    ASSERT_EQ(calls.send(server, "answer"), 6);
    await(calls, client, POLLIN);
    ASSERT_EQ(calls.receive(client, got), 6);
    ASSERT_EQ(got, "answer");
    made = !calls.bypass() || socket::at_once_counts.stream - before >= 10;
  }
  EXPECT_TRUE(made) << socket::at_once_counts.stream - before;
}

// With bytes that are not all wanted, in several pieces, at both ends of a call's many buffers.
TEST_P(StreamTest, ShortTransfers_InPieces_KeepTheirOrder) {
  const auto [client, server] = calls.connected();
  std::string sent(3000, '\0'), got(3000, '\0');
  for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<char>(i * 7 + i / 256);
  iovec out[3] = {{sent.data(), 1}, {sent.data() + 1, 0}, {sent.data() + 1, 1999}};
  msghdr header{};
  header.msg_iov = out;
  header.msg_iovlen = 3;
  ASSERT_EQ(calls.send_message(client, header, MSG_NOSIGNAL), 2000);
  ASSERT_EQ(calls.send(client, std::string_view(sent).substr(2000)), 1000);
  std::size_t at = 0;
  for (const std::size_t room : {1U, 700U, 5U, 3000U}) {
    iovec in[2] = {{got.data() + at, room / 2}, {got.data() + at + room / 2, std::min(room, 3000 - at) - room / 2}};
    header.msg_iov = in;
    header.msg_iovlen = 2;
    if (room == 3000U) in[0].iov_len = 1, in[1] = {got.data() + at + 1, 3000 - at - 1};
    await(calls, server, POLLIN);
    const long r = calls.receive_message(server, header);
    ASSERT_GT(r, 0);
    ASSERT_LE(static_cast<std::size_t>(r), room);
    at += static_cast<std::size_t>(r);
  }
  while (at < 3000) {
    iovec rest{got.data() + at, 3000 - at};
    header.msg_iov = &rest;
    header.msg_iovlen = 1;
    const long r = calls.receive_message(server, header);
    ASSERT_GT(r, 0);
    at += static_cast<std::size_t>(r);
  }
  EXPECT_EQ(got, sent);
}

TEST_P(StreamTest, Receive_OnEmptyNonBlocking_WouldBlock) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 100, MSG_DONTWAIT), -EAGAIN);
  calls.set_non_blocking(server, true);
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
  EXPECT_EQ(calls.send(client, "x"), 1);
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got), 1);
}

TEST_P(StreamTest, Receive_Peek_LeavesTheBytes) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abcdef");
  std::string got;
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got, 3, MSG_PEEK), 3);
  EXPECT_EQ(got, "abc");
  int waiting = 0;
  EXPECT_EQ(calls.ioctl_int(server, FIONREAD, waiting), 0);
  EXPECT_EQ(waiting, 6);
  EXPECT_EQ(calls.receive(server, got), 6);
  EXPECT_EQ(got, "abcdef");
}

TEST_P(StreamTest, Receive_Truncate_DiscardsBytes) {
  const auto [client, server] = calls.connected();
  calls.send(client, "abcdef");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 4, MSG_TRUNC), 4);
  EXPECT_EQ(calls.receive(server, got), 2);
  EXPECT_EQ(got, "ef");
}

TEST_P(StreamTest, Receive_WaitAll_WaitsForTheWholeOrTheEnd) {
  const auto [client, server] = calls.connected();
  std::thread writer([&, c = client] {
    for (const char* piece : {"ab", "cd", "ef"}) {
      calls.send(c, piece);
      std::this_thread::yield();
    }
    calls.send(c, "gh");
    calls.shutdown(c, SHUT_WR);
  });
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 6);
  EXPECT_EQ(got, "abcdef");
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 2);
  EXPECT_EQ(got, "gh");
  writer.join();
}

TEST_P(StreamTest, ReceiveAll_TimeoutAfterSomeCame_ReportsThose) {
  const auto [client, server] = calls.connected();
  const timeval limit{1, 0};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::string got;
  long r = 0;
  Sleeping reader([&, fd = server] { r = calls.receive(fd, got, 6, MSG_WAITALL); });
  EXPECT_EQ(calls.send(client, "abc"), 3);
  reader.join();
  EXPECT_EQ(r, 3);
}

TEST_P(StreamTest, Send_TimeoutAfterSomeWent_ReportsThose) {
  const auto [client, server] = calls.connected();
  const timeval limit{0, 200000};
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string block(std::size_t{64} << 20, 'x');
  const long sent = calls.send(client, block);
  ASSERT_GT(sent, 0);
  ASSERT_LT(sent, static_cast<long>(block.size()));
  calls.shutdown(client, SHUT_WR);
  long arrived = 0;
  std::string got;
  for (long n = 1; n > 0; arrived += n) n = calls.receive(server, got);
  EXPECT_EQ(arrived, sent);
}

TEST_P(StreamTest, PeekAll_AfterOnesOwnShutdownOfReceiving_WaitsForNothing) {
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

TEST_P(StreamTest, PeekAll_AfterOnesOwnShutdownOfSending_WaitsForThePeer) {
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

TEST_P(StreamTest, Shutdown_BothWays_PeersDataIsReset) {
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

TEST_P(StreamTest, Shutdown_BothWays_WhatCameBeforeIsReadThenTheReset) {
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

TEST_P(StreamTest, Shutdown_OfReceiving_ResetIsToldOnceAllTheSame) {
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

TEST_P(StreamTest, BothEnded_SocketIsClosedAtEitherEnd) {
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

TEST_P(StreamTest, Receive_OfNothing_WaitsItsTimeAndIsNoFailure) {
  const auto [client, server] = calls.connected();
  const timeval time{0, 20'000};
  ASSERT_EQ(calls.set_option(client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
  iovec nothing{};
  msghdr header{};
  for (const std::size_t count : {0U, 1U}) {
    header.msg_iov = &nothing, header.msg_iovlen = count;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(calls.receive_message(client, header), 0);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(15));
    EXPECT_EQ(calls.receive_message(client, header, MSG_DONTWAIT), -EAGAIN);
  }
}

TEST_P(StreamTest, OutQueue_OfWhatAResetLost_Stays) {
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

TEST_P(StreamTest, Options_NobodySet_ReadAsOnLinux) {
  const auto [client, server] = calls.connected();
  for (const int name : {TCP_SYNCNT, TCP_LINGER2, TCP_NOTSENT_LOWAT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT,
                         TCP_USER_TIMEOUT, TCP_DEFER_ACCEPT, TCP_NODELAY, TCP_CORK}) {
    int value = -1;
    EXPECT_EQ(calls.get_option(client, IPPROTO_TCP, name, value), 0);
    const std::map<int, int> linux_has = {
        {TCP_SYNCNT, 6}, {TCP_LINGER2, 60}, {TCP_KEEPIDLE, 7200}, {TCP_KEEPINTVL, 75}, {TCP_KEEPCNT, 9}};
    const auto known = linux_has.find(name);
    EXPECT_EQ(value, known != linux_has.end() ? known->second : 0) << name;
  }
}

TEST_P(StreamTest, MaxSegment_Zero_IsThePathsAgain) {
  const auto [client, server] = calls.connected();
  for (const int value : {0, 1000, 0}) EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_MAXSEG, value), 0);
  for (const int value : {-1, 1, 87, 32768})
    EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_MAXSEG, value), -EINVAL);
}

TEST_P(StreamTest, NotSentLowWater_Zero_IsNoBound) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0), 0);
  EXPECT_EQ(calls.poll_one(client, POLLOUT, 1000), POLLOUT);
}

// A larger bound of what is kept is room: who sleeps for it is called, and each setting is an edge (sk_write_space).
TEST_P(StreamTest, SendingBounds_Raised_WakeWhoWaitsForRoom) {
  struct Bound {
    int level, name, low, high;
  };
  for (const Bound& bound :
       {Bound{SOL_SOCKET, SO_SNDBUF, 10'000, 100'000}, Bound{IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1000, 10'000'000},
        Bound{IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1000, 0}}) {
    const auto [client, server] = calls.connected();
    ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVBUF, 20'000), 0);
    ASSERT_EQ(calls.set_option(client, bound.level, bound.name, bound.low), 0);
    const std::string block(4000, 'x');
    do
      while (calls.send(client, block, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
      }
    while (calls.poll_one(client, POLLOUT, 50) != 0);
    const int set = calls.epoll_create();
    calls.epoll_control(set, EPOLL_CTL_ADD, client, EPOLLOUT | EPOLLET);
    EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
    const timeval limit{2, 0};
    calls.set_option(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    long sent = 0;
    Sleeping writer([&, c = client] { sent = calls.send(c, "y"); });
    EXPECT_EQ(calls.set_option(client, bound.level, bound.name, bound.high), 0);
    writer.join();
    EXPECT_EQ(sent, 1) << bound.name;
    EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U) << bound.name;
    EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
    EXPECT_EQ(calls.set_option(client, bound.level, bound.name, bound.high), 0);
    EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U) << bound.name;
    calls.close(set);
  }
}

TEST_P(StreamTest, LowWater_AboveTheBuffer_IsBounded) {
  const auto [client, server] = calls.connected();
  int value = 0;
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVBUF, 8192), 0);
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 1 << 20), 0);
  ASSERT_EQ(calls.get_option(server, SOL_SOCKET, SO_RCVLOWAT, value), 0);
  EXPECT_EQ(value, 8192);
}

TEST_P(StreamTest, Receive_OutOfBand_IsInvalidWithoutUrgentData) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 1, MSG_OOB), -EINVAL);
}

TEST_P(StreamTest, Receive_WithTimeout_EndsWithWouldBlock) {
  const auto [client, server] = calls.connected();
  const timeval limit{0, 20'000};
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
}

TEST_P(StreamTest, ReceiveLowWater_HoldsBackPollAndReceive) {
  const auto [client, server] = calls.connected();
  const int set = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLOUT | EPOLLET);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 4), 0);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 0U) << "nothing has become enough";
  calls.close(set);
  calls.send(client, "ab");
  EXPECT_EQ(calls.poll_one(server, POLLIN, 10), 0);
  calls.send(client, "cd");
  await(calls, server, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 4);
}

TEST_P(StreamTest, Shutdown_OfSending_IsEndOfStreamForThePeerOnly) {
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

TEST_P(StreamTest, Shutdown_OfReceiving_EndsTheStreamHere) {
  const auto [client, server] = calls.connected();
  EXPECT_EQ(calls.shutdown(server, SHUT_RD), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 0);
  EXPECT_EQ(calls.poll_one(server, POLLIN | POLLOUT | POLLRDHUP), POLLIN | POLLOUT | POLLRDHUP);
}

TEST_P(StreamTest, Shutdown_OfFreshSocket_IsNotConnected) {
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.shutdown(fd, SHUT_RDWR), -ENOTCONN);
  EXPECT_EQ(calls.shutdown(fd, 7), -EINVAL);
}

TEST_P(StreamTest, FreshSocket_EveryCall_FailsAsTheKernelsDoes) {
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  std::string got;
  EXPECT_EQ(calls.poll_one(fd, POLLIN | POLLOUT | POLLRDHUP), POLLOUT | POLLHUP);
  EXPECT_EQ(calls.receive(fd, got), -ENOTCONN);
  EXPECT_EQ(calls.send(fd, "x"), -EPIPE);
  EXPECT_EQ(calls.accept(fd), -EINVAL);
  sockaddr_in name{};
  EXPECT_EQ(calls.peer_name(fd, name), -ENOTCONN);
}

TEST_P(StreamTest, Close_WithUnreadBytes_ResetsThePeer) {
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

TEST_P(StreamTest, Linger_Zero_ResetsThePeer) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  await(calls, client, POLLIN);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
}

TEST_P(StreamTest, Linger_Positive_ReturnsOnceThePeerHasAll) {
  const auto [client, server] = calls.connected();
  const linger on{1, 5};
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &on, sizeof on);
  calls.send(client, "all of it");
  EXPECT_EQ(calls.close(client), 0);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 9);
  EXPECT_EQ(calls.receive(server, got), 0);
}

TEST_P(StreamTest, Linger_IsReportedAsItWasSet) {
  const auto [client, server] = calls.connected();
  const auto expect = [&, fd = client](int on, int seconds) {
    linger value{};
    socklen_t length = sizeof value;
    EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_LINGER, &value, length), 0);
    EXPECT_EQ(value.l_onoff, on);
    EXPECT_EQ(value.l_linger, seconds);
  };
  expect(0, 0);
  const linger on{1, 5}, off{0, 9};
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &on, sizeof on);
  expect(1, 5);
  calls.set_option(client, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  expect(0, 5);
}

// inet_release() of Linux waits on a non-blocking socket, too. What is there after the time still arrives.
TEST_P(StreamTest, Linger_PeerReadsNothing_WaitsForItsTime) {
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

TEST_P(StreamTest, Linger_UnreadData_ResetsAllTheSame) {
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

TEST_P(StreamTest, Send_AfterReset_GivesTheErrorThenBrokenPipe) {
  const auto [client, server] = calls.connected();
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  await(calls, client, POLLIN);
  EXPECT_EQ(calls.send(client, "x"), -ECONNRESET);
  EXPECT_EQ(calls.send(client, "x"), -EPIPE);
}

TEST_P(StreamTest, Send_IntoFullBuffer_WouldBlockThenIsWritableAgain) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  const std::string block(65536, 'x');
  std::size_t sent = 0;
  long r = 0;
  while ((r = calls.send(client, block)) > 0) sent += static_cast<std::size_t>(r);
  EXPECT_EQ(r, -EAGAIN);
  std::string got;
  std::size_t received = 0;
  while (received < sent) {
    const long n = calls.receive(server, got);
    ASSERT_GT(n, 0);
    received += static_cast<std::size_t>(n);
  }
  await(calls, client, POLLOUT);
  EXPECT_GT(calls.send(client, block), 0);
}

TEST_P(StreamTest, Transfer_OfMegabytes_ArrivesWhole) {
  const auto [client, server] = calls.connected();
  std::string all(8U << 20, '\0');
  for (std::size_t i = 0; i < all.size(); i++) all[i] = static_cast<char>(i * 2654435761U >> 24);
  std::thread writer([&, c = client] {
    EXPECT_EQ(calls.send(c, all), static_cast<long>(all.size()));
    calls.shutdown(c, SHUT_WR);
  });
  std::string got, piece;
  while (calls.receive(server, piece, 300'000) > 0) got += piece;
  writer.join();
  EXPECT_EQ(got.size(), all.size());
  EXPECT_TRUE(got == all);
}

TEST_P(StreamTest, Dup_BothNumbersNameOneSocket_LastCloseEndsIt) {
  const auto [client, server] = calls.connected();
  const int other = calls.dup(client);
  calls.close(client);
  EXPECT_EQ(calls.send(other, "still here"), 10);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 10);
  calls.close(other);
  EXPECT_EQ(calls.receive(server, got), 0);
}

TEST_P(StreamTest, Receive_InAnotherThread_IsWokenByShutdown) {
  const auto [client, server] = calls.connected();
  std::thread reader([&, s = server] {
    std::string got;
    EXPECT_EQ(calls.receive(s, got), 0);
  });
  std::this_thread::yield();
  calls.shutdown(server, SHUT_RDWR);
  reader.join();
}

TEST_P(StreamTest, OutQueue_EmptiesWhenAcknowledged) {
  const auto [client, server] = calls.connected();
  calls.send(client, "bytes");
  std::string got;
  calls.receive(server, got);
  int left = -1;
  for (int i = 0; i < 1000 && left != 0; i++) {
    EXPECT_EQ(calls.ioctl_int(client, SIOCOUTQ, left), 0);
    calls.poll_one(client, POLLIN, 1);
  }
  EXPECT_EQ(left, 0);
}

TEST_P(StreamTest, SendMany_PartialMessage_IsTheLast) {
  const auto [client, server] = calls.connected();
  calls.set_non_blocking(client, true);
  std::string large(64U << 20, 'x');
  iovec data{large.data(), large.size()};
  std::vector<mmsghdr> messages(3);
  for (mmsghdr& m : messages) m.msg_hdr.msg_iov = &data, m.msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(calls.send_many(client, messages), 1);
  EXPECT_LT(messages[0].msg_len, large.size());
}

TEST_P(StreamTest, ReceiveMany_EndedByAReset_TellsItAtTheNextCall) {
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

TEST_P(StreamTest, ReceiveMany_AfterAReset_TellsItBeforeTheBytes) {
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

TEST_P(StreamTest, Buffers_AboveTheSystemsBound_AreClampedToIt) {
  const auto [client, server] = calls.connected();
  const int plain = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
    const int most = 0x7fffffff;
    int linux = 0, ours = 0;
    socklen_t length = sizeof linux;
    ASSERT_EQ(::setsockopt(plain, SOL_SOCKET, name, &most, sizeof most), 0);
    ASSERT_EQ(::getsockopt(plain, SOL_SOCKET, name, &linux, &length), 0);
    EXPECT_EQ(calls.set_option(client, SOL_SOCKET, name, most), 0);
    EXPECT_EQ(calls.get_option(client, SOL_SOCKET, name, ours), 0);
    EXPECT_EQ(ours, linux);
  }
  ::close(plain);
}

// Of a peer that goes on: what is waited for is that it has everything, its FIN is not.
TEST_P(StreamTest, Linger_EverythingAcknowledged_DoesNotWait) {
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

TEST_P(StreamTest, PeerName_OfAResetConnection_IsNone) {
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

TEST_P(StreamTest, Bind_OverAListener_IsInUse_WithReuseToo) {
  const auto listener = [&](bool reuse) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.set_option(fd, SOL_SOCKET, SO_REUSEADDR, reuse ? 1 : 0), 0);
    return fd;
  };
  const int first = listener(true), second = listener(true), third = listener(true), bound = listener(true);
  ASSERT_EQ(calls.bind(first, calls.address(0)), 0);
  const sockaddr_in name = calls.local_name(first);
  EXPECT_EQ(calls.bind(bound, name), 0) << "nobody listens yet";
  ASSERT_EQ(calls.listen(first, 3), 0);
  EXPECT_EQ(calls.bind(second, name), -EADDRINUSE);
  sockaddr_in any = name;
  any.sin_addr.s_addr = INADDR_ANY;
  EXPECT_EQ(calls.bind(third, any), -EADDRINUSE);
  EXPECT_EQ(calls.listen(bound, 3), -EADDRINUSE);
}

TEST_P(StreamTest, Bind_OverAConnection_NeedsReuseOfBoth) {
  for (const bool both : {false, true}) {
    const int server = calls.socket(AF_INET, SOCK_STREAM), client = calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_REUSEADDR, both ? 1 : 0), 0);
    ASSERT_EQ(calls.bind(server, calls.address(0)), 0);
    ASSERT_EQ(calls.listen(server, 3), 0);
    const sockaddr_in name = calls.local_name(server);
    ASSERT_EQ(calls.connect(client, name), 0);
    const int accepted = static_cast<int>(calls.accept(server));
    ASSERT_GE(accepted, 0);
    ASSERT_EQ(calls.close(server), 0);
    const int without = calls.socket(AF_INET, SOCK_STREAM), with = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.bind(without, name), -EADDRINUSE);
    ASSERT_EQ(calls.set_option(with, SOL_SOCKET, SO_REUSEADDR, 1), 0);
    EXPECT_EQ(calls.bind(with, name), both ? 0 : -EADDRINUSE);
  }
}

TEST(KernelsOptionTest, SetOnAConnection_IsToldByItsName) {
  World::get();
  Calls calls(true);
  static std::vector<std::string> told;
  told.clear();
  socket::environment.record_why = [](int, unsigned, const char* detail) { told.emplace_back(detail); };
  const auto [client, server] = calls.connected();
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_PRIORITY, 3), 0);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_MARK, 7), 0);
  EXPECT_EQ(told, std::vector<std::string>{"setsockopt SO_MARK"});
}

}  // namespace
}  // namespace bypass::test
