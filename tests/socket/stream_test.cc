// Streams: the same calls on the kernel's sockets and on the stack's must give the same results.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>
#include <thread>

#include "socket/calls.h"

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
  const long first = calls.connect(fd, calls.address(port));
  EXPECT_TRUE(first == -EINPROGRESS || first == 0) << first;  // the kernel's loopback may finish at once
  await(calls, fd, POLLOUT);
  int error = -1;
  EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, 0);
  if (first == -EINPROGRESS) {
    EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
  }
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EISCONN);
  EXPECT_GE(calls.accept(server), 0);
}

TEST_P(StreamTest, Connect_NonBlockingRefused_ShowsInPollAndSoErrorOnce) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  const long first = calls.connect(fd, calls.address(port));
  ASSERT_TRUE(first == -EINPROGRESS || first == -ECONNREFUSED) << first;
  if (first == -ECONNREFUSED) return;
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

}  // namespace
}  // namespace bypass::test
