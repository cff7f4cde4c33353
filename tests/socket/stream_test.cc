// Streams: the same calls on the kernel's sockets and on the stack's must give the same results.
#include <fcntl.h>
#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "socket/at_once.h"
#include "socket/calls.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamTest = BothSides;
ON_BOTH_SIDES(StreamTest);

// Loopback of either kind delivers soon, not at once: wait for what is expected.
void await(Calls& calls, int fd, short events) {
  ASSERT_NE(calls.poll_one(fd, events, 5000) & events, 0);
}

TEST_P(StreamTest, Connect_ToListener_ExchangesBytesBothWays) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.send(client, "request"), 7);
  EXPECT_EQ(calls.receive(server, got), 7);
  EXPECT_EQ(got, "request");
  EXPECT_EQ(calls.send(server, "answer"), 6);
  EXPECT_EQ(calls.receive(client, got), 6);
  EXPECT_EQ(got, "answer");
}

TEST_P(StreamTest, Connect_NobodyListens_IsRefusedAndSocketCanTryAgain) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -ECONNREFUSED);
  EXPECT_EQ(calls.poll_one(fd, POLLIN | POLLOUT | POLLRDHUP), POLLOUT | POLLHUP);
  const int server = calls.server(port);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
  EXPECT_GE(calls.accept(server), 0);
}

TEST_P(StreamTest, Connect_NonBlocking_TellsProgressThenConnectedThenIsConnected) {
  std::uint16_t port = 0;
  const int server = calls.server(port);
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS) << "also when the peer has answered at once";
  await(calls, fd, POLLOUT);
  int error = -1;
  EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EISCONN);
  EXPECT_GE(calls.accept(server), 0);
}

TEST_P(StreamTest, Connect_AfterShutdownOfOneThatHasConnected_IsConnected) {
  std::uint16_t port = 0;
  calls.server(port);
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  ASSERT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
  await(calls, fd, POLLOUT);
  ASSERT_EQ(calls.shutdown(fd, SHUT_WR), 0);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EISCONN);
}

TEST_P(StreamTest, Connect_NonBlockingRefused_ShowsInPollAndSoErrorOnce) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  ASSERT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
  await(calls, fd, POLLOUT);
  constexpr short kAll = POLLIN | POLLOUT | POLLRDHUP;
  EXPECT_EQ(calls.poll_one(fd, kAll), POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
  int error = 0;
  calls.get_option(fd, SOL_SOCKET, SO_ERROR, error);
  EXPECT_EQ(error, ECONNREFUSED);
  calls.get_option(fd, SOL_SOCKET, SO_ERROR, error);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(calls.poll_one(fd, kAll), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -ECONNABORTED);
}

long disconnect(Calls& calls, int fd) {
  sockaddr_in nobody{};
  nobody.sin_family = AF_UNSPEC;
  return calls.connect(fd, nobody);
}

// connect(AF_UNSPEC) on an end that connect() or accept() has made: as a new one it connects and listens.
TEST_P(StreamTest, Disconnect_OfEitherEnd_SocketIsAsNew) {
  for (const bool accepted : {false, true}) {
    const auto [client, server] = calls.connected();
    const int end = accepted ? server : client, other = accepted ? client : server;
    const int set = calls.epoll_create();
    calls.epoll_control(set, EPOLL_CTL_ADD, end, EPOLLIN | EPOLLOUT | EPOLLET);
    EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
    ASSERT_EQ(calls.set_option(end, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
    const int flags = fcntl(end, F_GETFD);
    ASSERT_EQ(disconnect(calls, end), 0);
    const auto events = calls.epoll_wait(set, 0);
    ASSERT_EQ(events.size(), 1U) << accepted;
    EXPECT_EQ(events[0].events & (EPOLLIN | EPOLLOUT | EPOLLHUP), EPOLLOUT | EPOLLHUP);
    sockaddr_in name{};
    EXPECT_EQ(calls.peer_name(end, name), -ENOTCONN);
    std::string got;
    EXPECT_EQ(calls.receive(other, got), -ECONNRESET);
    EXPECT_EQ(fcntl(end, F_GETFD), flags);

    std::uint16_t port = 0;
    const int listener = calls.server(port);
    ASSERT_EQ(calls.connect(end, calls.address(port)), 0) << accepted;
    const int peer = static_cast<int>(calls.accept(listener));
    ASSERT_GE(peer, 0);
    EXPECT_EQ(calls.send(end, "again"), 5);
    EXPECT_EQ(calls.receive(peer, got), 5);
    int value = 0;
    EXPECT_EQ(calls.get_option(end, IPPROTO_TCP, TCP_KEEPIDLE, value), 0);
    EXPECT_EQ(value, 77) << accepted;

    ASSERT_EQ(disconnect(calls, end), 0);
    ASSERT_EQ(calls.listen(end, 1), 0);
    const sockaddr_in own = calls.local_name(end);
    const int third = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.connect(third, calls.address(ntohs(own.sin_port))), 0);
    EXPECT_GE(calls.accept(end), 0);
    calls.close(set);
  }
}

constexpr short kAllEvents = POLLIN | POLLOUT | POLLRDHUP;

// tcp_disconnect() leaves an error, once.
void expect_left(Calls& calls, int fd, int left) {
  EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP | (left != 0 ? POLLERR : 0));
  for (const int expected : {left, 0}) {
    int error = -1;
    EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_ERROR, error), 0);
    EXPECT_EQ(error, expected);
  }
  EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP);
}

TEST_P(StreamTest, Disconnect_OfAConnection_LeavesAnError) {
  std::string got;
  for (int i = 0; i < 8; i++) {
    const auto [client, server] = calls.connected();
    const int end = i % 2 == 0 ? client : server;
    ASSERT_EQ(disconnect(calls, end), 0);
    if (i < 2) {
      expect_left(calls, end, ECONNRESET);
    } else if (i < 4) {
      EXPECT_EQ(calls.receive(end, got), -ECONNRESET);
      EXPECT_EQ(calls.receive(end, got), -ENOTCONN);
    } else if (i < 6) {
      EXPECT_EQ(calls.send(end, "x"), -ECONNRESET);
      EXPECT_EQ(calls.send(end, "x"), -EPIPE);
    } else {
      std::uint16_t port = 0;
      const int listener = calls.server(port);
      EXPECT_EQ(calls.connect(end, calls.address(port)), 0);
      EXPECT_EQ(calls.poll_one(end, kAllEvents), POLLOUT) << "a new one has none";
      calls.close(listener);
    }
  }
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.shutdown(client, SHUT_WR), 0);
  ASSERT_EQ(calls.receive(server, got), 0);
  ASSERT_EQ(calls.shutdown(server, SHUT_WR), 0);
  await(calls, server, POLLHUP);
  await(calls, client, POLLHUP);
  for (const int end : {client, server}) {
    for (int i = 0; i < 1000 && calls.shutdown(end, SHUT_WR) == 0; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(disconnect(calls, end), 0);
    expect_left(calls, end, 0);
  }
}

TEST_P(StreamTest, Disconnect_WakesWhoSleeps) {
  constexpr auto kWhile = std::chrono::milliseconds(20);
  for (const bool accepted : {false, true}) {
    std::pair<int, int> ends = calls.connected();
    int end = accepted ? ends.second : ends.first;
    const timeval limit{2, 0};
    ASSERT_EQ(calls.set_option(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    long r = 0;
    std::thread reader([&] {
      std::string got;
      r = calls.receive(end, got);
    });
    std::this_thread::sleep_for(kWhile);
    ASSERT_EQ(disconnect(calls, end), 0);
    reader.join();
    EXPECT_EQ(r, -EPIPE) << accepted;
    expect_left(calls, end, ECONNRESET);

    ends = calls.connected();
    end = accepted ? ends.second : ends.first;
    std::thread poller([&] { r = calls.poll_one(end, POLLIN, 2000); });
    std::this_thread::sleep_for(kWhile);
    ASSERT_EQ(disconnect(calls, end), 0);
    poller.join();
    EXPECT_EQ(r, POLLERR | POLLHUP) << accepted;
    expect_left(calls, end, ECONNRESET);

    ends = calls.connected();
    end = accepted ? ends.second : ends.first;
    ASSERT_EQ(calls.set_option(end, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    const std::string block(65536, 'x');
    do
      while (calls.send(end, block, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
      }
    while (calls.poll_one(end, POLLOUT, 50) != 0 || calls.send(end, block, MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
    std::thread writer([&] { r = calls.send(end, block); });
    std::this_thread::sleep_for(kWhile);
    ASSERT_EQ(disconnect(calls, end), 0);
    writer.join();
    EXPECT_EQ(r, -ECONNRESET) << accepted;
    expect_left(calls, end, 0);
  }
}

// Of a listener whose queue is full: an attempt goes on until its time is over.
TEST_P(StreamTest, Attempt_GivenUpByAnotherThread_EndsAsOnLinux) {
  std::uint16_t port = 0;
  calls.server(port, 0);
  const auto begin = [&] {
    const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    EXPECT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
    return fd;
  };
  await(calls, begin(), POLLOUT);
  for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
    const int fd = begin();
    EXPECT_EQ(calls.poll_one(fd, kAllEvents), 0);
    EXPECT_EQ(calls.shutdown(fd, how), 0);
    expect_left(calls, fd, ECONNRESET);
    std::string got;
    EXPECT_EQ(calls.receive(fd, got), -ENOTCONN);
  }
  const int undone = begin();
  EXPECT_EQ(disconnect(calls, undone), 0);
  expect_left(calls, undone, ECONNRESET);
  for (const bool shut : {true, false}) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    long r = 0;
    std::thread connector([&] { r = calls.connect(fd, calls.address(port)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(shut ? calls.shutdown(fd, SHUT_RDWR) : disconnect(calls, fd), 0);
    connector.join();
    EXPECT_EQ(r, shut ? -ECONNRESET : -EPIPE);
    expect_left(calls, fd, shut ? 0 : ECONNRESET);
  }
}

// The others' open file is the placeholder for good.
TEST_P(StreamTest, Disconnect_OfAnAcceptedOnesTwoNumbers_IsAnEndAtLeast) {
  const auto [client, server] = calls.connected();
  const int other = calls.dup(server);
  ASSERT_EQ(disconnect(calls, server), 0);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  for (const int number : {server, other})
    EXPECT_EQ(calls.poll_one(number, POLLIN | POLLOUT), POLLOUT | POLLHUP | POLLERR);
  const int third = calls.connected().first;  // the placeholder is no worse for it
  EXPECT_EQ(calls.send(third, "x"), 1);
}

TEST_P(StreamTest, Names_OfBothEnds_AgreeAndAreKnownAtOnce) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  sockaddr_in name{};
  EXPECT_EQ(calls.peer_name(client, name), -ENOTCONN);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  sockaddr_in accepted_peer{};
  const int server = static_cast<int>(calls.accept(listener, 0, &accepted_peer));
  const sockaddr_in local = calls.local_name(client);
  EXPECT_EQ(local.sin_addr.s_addr, calls.address(0).sin_addr.s_addr);
  EXPECT_EQ(local.sin_port, accepted_peer.sin_port);
  ASSERT_EQ(calls.peer_name(client, name), 0);
  EXPECT_EQ(name.sin_port, htons(port));
  EXPECT_EQ(calls.local_name(server).sin_port, htons(port));
  ASSERT_EQ(calls.peer_name(server, name), 0);
  EXPECT_EQ(name.sin_port, local.sin_port);
}

TEST_P(StreamTest, Bind_BeforeConnect_KeepsThePort) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.bind(client, calls.address(0)), 0);
  const sockaddr_in bound = calls.local_name(client);
  EXPECT_NE(bound.sin_port, 0);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(calls.local_name(client).sin_port, bound.sin_port);
  EXPECT_EQ(calls.bind(client, calls.address(0)), -EINVAL);
  sockaddr_in peer{};
  EXPECT_GE(calls.accept(listener, 0, &peer), 0);
  EXPECT_EQ(peer.sin_port, bound.sin_port);
}

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
  std::thread writer([&calls = calls, fd = client] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // while the reader waits
    EXPECT_EQ(calls.send(fd, "abc"), 3);
  });
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 6, MSG_WAITALL), 3);
  writer.join();
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
    std::thread writer([&calls = calls, fd = client] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // while the reader waits
      EXPECT_EQ(calls.send(fd, "def"), 3);
    });
    std::string got;
    EXPECT_EQ(calls.receive(server, got, 6, low_water ? MSG_PEEK : MSG_PEEK | MSG_WAITALL), 6);
    writer.join();
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
    std::thread writer([&, c = client] { sent = calls.send(c, "y"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // while the writer waits
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
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 4), 0);
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

TEST_P(StreamTest, Splice_IntoAPipe_MovesWhatHasComeAndHasRoom) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(calls.send(client, "0123456789"), 10);
  await(calls, server, POLLIN);
  char got[100] = {};
  EXPECT_EQ(calls.splice_out(server, ends[1], 4, 0), 4);
  EXPECT_EQ(read(ends[0], got, sizeof got), 4);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, SPLICE_F_NONBLOCK), 6);
  EXPECT_EQ(read(ends[0], got + 4, sizeof got - 4), 6);
  EXPECT_STREQ(got, "0123456789");
  EXPECT_EQ(calls.splice_out(server, ends[1], 0, 0), 0);

  // Nothing has come: the socket's flag says whether that is waited for, and not SPLICE_F_NONBLOCK.
  calls.set_non_blocking(server, true);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, 0), -EAGAIN);
  calls.set_non_blocking(server, false);
  const timeval soon{0, 20'000};
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, SPLICE_F_NONBLOCK), -EAGAIN);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(15));

  calls.close(client);
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.splice_out(server, ends[1], 100, 0), 0) << "the end";
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(StreamTest, Splice_IntoAFullPipe_LeavesTheRestInTheConnection) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  std::string sent(200'000, ' ');
  for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<char>(i * 31 + i / 251);
  std::thread writer([&, c = client] {
    for (std::size_t at = 0; at < sent.size();) at += static_cast<std::size_t>(calls.send(c, sent.substr(at, 30'000)));
  });
  calls.set_non_blocking(server, true);
  std::string got(sent.size(), ' ');
  std::size_t at = 0, fills = 0;
  while (at < sent.size()) {
    const long r = calls.splice_out(server, ends[1], 1 << 20, SPLICE_F_NONBLOCK);
    ASSERT_TRUE(r > 0 || r == -EAGAIN) << r;
    if (r > 0) continue;
    int there = 0;
    ASSERT_EQ(ioctl(ends[0], FIONREAD, &there), 0);
    if (there == 0) {
      await(calls, server, POLLIN);
      continue;
    }
    fills++;
    ASSERT_EQ(read(ends[0], got.data() + at, static_cast<std::size_t>(there)), there);
    at += static_cast<std::size_t>(there);
  }
  writer.join();
  EXPECT_GE(fills, 2U);
  EXPECT_TRUE(got == sent);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(StreamTest, Splice_IntoWhatIsNoPipeOrIsNotRead_Fails) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.send(client, "x"), 1);
  await(calls, server, POLLIN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(calls.splice_out(server, ends[0], 1, 0), -EBADF);
  EXPECT_EQ(calls.splice_out(server, ends[1], 1, 0x100), -EINVAL);
  const int file = memfd_create("none", 0);
  EXPECT_EQ(calls.splice_out(server, file, 1, 0), -EINVAL);
  ::close(file);
  ::close(ends[0]);
  const auto before = signal(SIGPIPE, SIG_IGN);
  bool sigpipe = false;
  EXPECT_EQ(calls.splice_out(server, ends[1], 1, 0, &sigpipe), -EPIPE);
  EXPECT_EQ(sigpipe, calls.bypass());
  signal(SIGPIPE, before);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 1) << "still there";
  ::close(ends[1]);
}

// A FIFO, whose other end is slow: nothing is lost where somebody else fills it.
TEST_P(StreamTest, Splice_IntoAFifo_WaitsForItsReader) {
  const auto [client, server] = calls.connected();
  const std::string path = ::testing::TempDir() + "/fifo." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int out = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(out, 0);
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(fcntl(out, F_SETPIPE_SZ, 4096), 4096);
  const std::string sent(50'000, 'f');
  std::thread writer([&, c = client] {
    for (std::size_t at = 0; at < sent.size();) at += static_cast<std::size_t>(calls.send(c, sent.substr(at, 9'000)));
  });
  std::size_t read_bytes = 0;
  std::thread reader([&] {
    std::string piece(3000, ' ');
    while (read_bytes < sent.size()) {
      const ssize_t r = read(out, piece.data(), piece.size());
      if (r <= 0) break;
      read_bytes += static_cast<std::size_t>(r);
    }
  });
  std::size_t spliced = 0;
  while (spliced < sent.size()) {
    const long r = calls.splice_out(server, out, sent.size(), 0);
    ASSERT_GT(r, 0);
    spliced += static_cast<std::size_t>(r);
  }
  writer.join();
  reader.join();
  EXPECT_EQ(read_bytes, sent.size());
  ::close(out);
}

TEST_P(StreamTest, Splice_OutOfAPipe_MovesWhatLiesThereAndHasRoom) {
  const auto [client, server] = calls.connected();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(calls.splice(ends[0], client, 100, SPLICE_F_NONBLOCK), -EAGAIN);
  ASSERT_EQ(write(ends[1], "0123456789", 10), 10);
  EXPECT_EQ(calls.splice(ends[0], client, 4, 0), 4);
  EXPECT_EQ(calls.splice(ends[0], client, 100, 0), 6);
  std::string all, got;
  while (all.size() < 10 && calls.poll_one(server, POLLIN, 5000) > 0 && calls.receive(server, got) > 0) all += got;
  EXPECT_EQ(all, "0123456789");

  // What a full connection does not take stays in the pipe.
  calls.set_non_blocking(client, true);
  const std::string page(4096, 'x');
  std::size_t written = 0, spliced = 0;
  for (long r = 0; r >= 0;) {
    ASSERT_EQ(write(ends[1], page.data(), page.size()), 4096);
    written += page.size();
    r = calls.splice(ends[0], client, 65536, 0);
    if (r > 0) spliced += static_cast<std::size_t>(r);
    if (r < 0) {
      EXPECT_EQ(r, -EAGAIN);
    }
    ASSERT_LT(written, std::size_t{64} << 20);
    int left = 0;
    ASSERT_EQ(ioctl(ends[0], FIONREAD, &left), 0);
    EXPECT_EQ(spliced + static_cast<std::size_t>(left), written);
  }
  int left = 0;
  ASSERT_EQ(ioctl(ends[0], FIONREAD, &left), 0);
  std::string rest(static_cast<std::size_t>(left), ' ');
  ASSERT_EQ(read(ends[0], rest.data(), rest.size()), left);
  ::close(ends[1]);
  EXPECT_EQ(calls.splice(ends[0], client, 100, 0), 0);
  calls.shutdown(client, SHUT_WR);
  std::size_t came = 0;
  while (calls.poll_one(server, POLLIN, 5000) > 0 && calls.receive(server, got, 65536) > 0) came += got.size();
  EXPECT_EQ(came, spliced);
  EXPECT_EQ(calls.splice(memfd_create("none", 0), client, 1, 0), -EINVAL);
  ::close(ends[0]);
}

TEST_P(StreamTest, SendFile_BeyondItsEnd_SendsWhatThereIs) {
  const auto [client, server] = calls.connected();
  char name[] = "/tmp/socket_test_XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  ASSERT_EQ(write(file, "0123456789", 10), 10);
  off_t offset = 4;
  EXPECT_EQ(calls.send_file(client, file, &offset, 100), 6);
  EXPECT_EQ(offset, 10);
  std::string got;
  await(calls, server, POLLIN);
  EXPECT_EQ(calls.receive(server, got), 6);
  EXPECT_EQ(got, "456789");
  EXPECT_EQ(calls.send_file(client, file, &offset, 100), 0);
  ::close(file);
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

TEST_P(StreamTest, FastOpen_ConnectsAndSends) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.send_to(client, "hello", calls.address(port), MSG_FASTOPEN), 5);
  sockaddr_in peer{};
  const int server = static_cast<int>(calls.accept(listener, 0, &peer));
  ASSERT_GE(server, 0);
  EXPECT_EQ(peer.sin_addr.s_addr, calls.address(0).sin_addr.s_addr);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 5);
  EXPECT_EQ(calls.send_to(client, "again", calls.address(port), MSG_FASTOPEN), -EISCONN);
}

TEST_P(StreamTest, FastOpen_NobodyListens_IsRefused) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.send_to(client, "hello", calls.address(port), MSG_FASTOPEN), -ECONNREFUSED);
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

TEST(IgnoredOptionTest, SetWithoutEffect_IsToldOnceASocket) {
  World::get();
  Calls calls(true);
  static int told;
  told = 0;
  socket::environment.record_why = [](int, unsigned, const char*) { told++; };
  std::uint16_t port = 0;
  calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_TIMESTAMP, 1), 0);
  EXPECT_EQ(told, 0);  // the kernel may yet get it
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_PRIORITY, 3), 0);
  EXPECT_EQ(told, 1);
  const auto [other, server] = calls.connected();
  int on = 1;
  EXPECT_EQ(calls.ioctl_int(server, FIOASYNC, on), 0);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace bypass::test
