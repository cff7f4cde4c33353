// Streams that connect, are named and are disconnected. The same calls run on the kernel's sockets and on the stack's.
#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamConnectTest = BothSides;
ON_BOTH_SIDES(StreamConnectTest);

TEST_P(StreamConnectTest, Connect_ToListener_ExchangesBytesBothWays) {
  const auto [client, server] = calls.connected();
  std::string got;
  EXPECT_EQ(calls.send(client, "request"), 7);
  EXPECT_EQ(calls.receive(server, got), 7);
  EXPECT_EQ(got, "request");
  EXPECT_EQ(calls.send(server, "answer"), 6);
  EXPECT_EQ(calls.receive(client, got), 6);
  EXPECT_EQ(got, "answer");
}

TEST_P(StreamConnectTest, Connect_NobodyListens_IsRefusedAndSocketCanTryAgain) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -ECONNREFUSED);
  EXPECT_EQ(calls.poll_one(fd, POLLIN | POLLOUT | POLLRDHUP), POLLOUT | POLLHUP);
  const int server = calls.server(port);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
  EXPECT_GE(calls.accept(server), 0);
}

TEST_P(StreamConnectTest, Bind_AfterANonBlockingAttemptFailed_Binds) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  ASSERT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
  await(calls, fd, POLLOUT);
  EXPECT_EQ(calls.bind(fd, calls.address(0)), 0);
  int error = 0;
  EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_ERROR, error), 0);
  EXPECT_EQ(error, ECONNREFUSED);
  EXPECT_EQ(calls.bind(fd, calls.address(0)), -EINVAL) << "it is bound";
  const int server = calls.server(port);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -ECONNABORTED) << "what has become of the first attempt";
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
  await(calls, fd, POLLOUT);
  EXPECT_GE(calls.accept(server), 0);
}

TEST_P(StreamConnectTest, Connect_NonBlocking_TellsProgressThenConnectedThenIsConnected) {
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

TEST_P(StreamConnectTest, Connect_AfterShutdownOfOneThatHasConnected_IsConnected) {
  std::uint16_t port = 0;
  calls.server(port);
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  ASSERT_EQ(calls.connect(fd, calls.address(port)), -EINPROGRESS);
  await(calls, fd, POLLOUT);
  ASSERT_EQ(calls.shutdown(fd, SHUT_WR), 0);
  EXPECT_EQ(calls.connect(fd, calls.address(port)), -EISCONN);
}

TEST_P(StreamConnectTest, Connect_NonBlockingRefused_ShowsInPollAndSoErrorOnce) {
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

// connect(AF_UNSPEC) on an end that connect() or accept() has made. Afterwards it connects and listens like a new
// socket.
TEST_P(StreamConnectTest, Disconnect_OfEitherEnd_SocketIsAsNew) {
  for (const bool accepted : {false, true}) {
    const auto [client, server] = calls.connected();
    const int end = accepted ? server : client, other = accepted ? client : server;
    const int set = calls.epoll_create();
    calls.epoll_control(set, EPOLL_CTL_ADD, end, EPOLLIN | EPOLLOUT | EPOLLET);
    EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
    ASSERT_EQ(calls.set_option(end, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
    ASSERT_EQ(calls.set_option(end, IPPROTO_TCP, TCP_NODELAY, 1), 0);
    ASSERT_EQ(calls.set_option(end, SOL_SOCKET, SO_RCVBUF, 50'000), 0);
    const int flags = fcntl(end, F_GETFD);
    ASSERT_EQ(calls.disconnect(end), 0);
    struct Set {
      int level, name, expected;
    };
    for (const auto& [level, name, expected] :
         {Set{IPPROTO_TCP, TCP_KEEPIDLE, 77}, Set{IPPROTO_TCP, TCP_NODELAY, 1}, Set{SOL_SOCKET, SO_RCVBUF, 100'000}}) {
      int value = 0;
      EXPECT_EQ(calls.get_option(end, level, name, value), 0);
      EXPECT_EQ(value, expected) << accepted << ' ' << name;
    }
    const auto events = calls.epoll_wait(set, 0);
    ASSERT_EQ(events.size(), 1U) << accepted;
    EXPECT_EQ(events[0].events & (EPOLLIN | EPOLLOUT | EPOLLHUP), EPOLLOUT | EPOLLHUP);
    ASSERT_EQ(calls.disconnect(end), 0);
    EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U) << "again, an edge";
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

    ASSERT_EQ(calls.disconnect(end), 0);
    ASSERT_EQ(calls.listen(end, 1), 0);
    const sockaddr_in own = calls.local_name(end);
    const int third = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.connect(third, calls.address(ntohs(own.sin_port))), 0);
    EXPECT_GE(calls.accept(end), 0);
    calls.close(set);
  }
}

constexpr short kAllEvents = POLLIN | POLLOUT | POLLRDHUP;

// tcp_disconnect() of Linux leaves an error, which is reported once.
void expect_left(Calls& calls, int fd, int left) {
  EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP | (left != 0 ? POLLERR : 0));
  for (const int expected : {left, 0}) {
    int error = -1;
    EXPECT_EQ(calls.get_option(fd, SOL_SOCKET, SO_ERROR, error), 0);
    EXPECT_EQ(error, expected);
  }
  EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP);
}

TEST_P(StreamConnectTest, Disconnect_OfAConnection_LeavesAnError) {
  std::string got;
  for (int i = 0; i < 8; i++) {
    const auto [client, server] = calls.connected();
    const int end = i % 2 == 0 ? client : server;
    ASSERT_EQ(calls.disconnect(end), 0);
    EXPECT_EQ(calls.receive(end, got, 10, MSG_OOB), -EINVAL) << "and leaves the error";
    EXPECT_EQ(calls.receive(end, got, 10, MSG_ERRQUEUE), -EAGAIN) << "and leaves the error";
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
    ASSERT_EQ(calls.disconnect(end), 0);
    expect_left(calls, end, 0);
  }
}

TEST_P(StreamConnectTest, Disconnect_WakesWhoSleeps) {
  for (const bool accepted : {false, true}) {
    std::pair<int, int> ends = calls.connected();
    int end = accepted ? ends.second : ends.first;
    const timeval limit{2, 0};
    ASSERT_EQ(calls.set_option(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    long r = 0;
    Sleeping reader([&] {
      std::string got;
      r = calls.receive(end, got);
    });
    ASSERT_EQ(calls.disconnect(end), 0);
    reader.join();
    EXPECT_EQ(r, -EPIPE) << accepted;
    expect_left(calls, end, ECONNRESET);

    ends = calls.connected();
    end = accepted ? ends.second : ends.first;
    Sleeping poller([&] { r = calls.poll_one(end, POLLIN, 2000); });
    ASSERT_EQ(calls.disconnect(end), 0);
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
    Sleeping writer([&] { r = calls.send(end, block); });
    ASSERT_EQ(calls.disconnect(end), 0);
    writer.join();
    EXPECT_EQ(r, -ECONNRESET) << accepted;
    expect_left(calls, end, 0);
  }
}

TEST_P(StreamConnectTest, Shutdown_OfWhatIsNotConnected_MarksItAndIsAnEdge) {
  constexpr std::uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
  for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    const int set = calls.epoll_create();
    calls.epoll_control(set, EPOLL_CTL_ADD, fd, kEvents | EPOLLET);
    EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
    EXPECT_EQ(calls.shutdown(fd, how), -ENOTCONN);
    const auto events = calls.epoll_wait(set, 0);
    ASSERT_EQ(events.size(), 1U) << how;
    EXPECT_EQ(events[0].events, EPOLLOUT | EPOLLHUP | (how == SHUT_WR ? 0U : EPOLLIN | EPOLLRDHUP)) << how;
    EXPECT_EQ(calls.disconnect(fd), 0);
    EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP) << how;
    calls.close(set);
  }
}

TEST_P(StreamConnectTest, Connect_AfterShutdown_IsShutFromItsBeginning) {
  std::uint16_t port = 0;
  const int server = calls.server(port);
  for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.shutdown(fd, how), -ENOTCONN);
    ASSERT_EQ(calls.connect(fd, calls.address(port)), 0) << how;
    const int peer = static_cast<int>(calls.accept(server));
    ASSERT_GE(peer, 0);
    EXPECT_EQ(calls.send(fd, "x"), how == SHUT_RD ? 1 : -EPIPE) << how;
    std::string got;
    if (how != SHUT_WR) {
      EXPECT_EQ(calls.receive(fd, got), 0) << how;
    }
    EXPECT_EQ(calls.send(peer, "y"), 1);
  }
}

TEST_P(StreamConnectTest, Disconnect_OfAListener_EndsIt) {
  std::uint16_t port = 0;
  const int fd = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  await(calls, fd, POLLIN);
  ASSERT_EQ(calls.disconnect(fd), 0);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  EXPECT_EQ(calls.accept(fd), -EINVAL);
  EXPECT_EQ(calls.poll_one(fd, kAllEvents), POLLOUT | POLLHUP);
  ASSERT_EQ(calls.listen(fd, 1), 0);
  const int second = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(second, calls.address(ntohs(calls.local_name(fd).sin_port))), 0);
}

// The object behind a number changes while a thread sleeps on it.
TEST_P(StreamConnectTest, ListenerThatConnects_EndsWhoAccepts) {
  std::uint16_t port = 0, other_port = 0;
  const int fd = calls.server(port), other = calls.server(other_port);
  long r = 0;
  Sleeping acceptor([&] { r = calls.accept(fd); });
  ASSERT_EQ(calls.disconnect(fd), 0);
  ASSERT_EQ(calls.connect(fd, calls.address(other_port)), 0);
  EXPECT_GE(calls.accept(other), 0);
  acceptor.join();
  EXPECT_EQ(r, -EINVAL);
}

// A listener's queue is full. An attempt to connect goes on until its time is over.
TEST_P(StreamConnectTest, Attempt_GivenUpByAnotherThread_EndsAsOnLinux) {
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
  EXPECT_EQ(calls.disconnect(undone), 0);
  expect_left(calls, undone, ECONNRESET);
  for (const bool shut : {true, false}) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    long r = 0;
    Sleeping connector([&] { r = calls.connect(fd, calls.address(port)); });
    EXPECT_EQ(shut ? calls.shutdown(fd, SHUT_RDWR) : calls.disconnect(fd), 0);
    connector.join();
    EXPECT_EQ(r, shut ? -ECONNRESET : -EPIPE);
    expect_left(calls, fd, shut ? 0 : ECONNRESET);
  }
}

// For other processes, the open file stays the placeholder for good.
TEST_P(StreamConnectTest, Disconnect_OfAnAcceptedOnesTwoNumbers_IsAnEndAtLeast) {
  const auto [client, server] = calls.connected();
  const int other = calls.dup(server);
  ASSERT_EQ(calls.disconnect(server), 0);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
  for (const int number : {server, other})
    EXPECT_EQ(calls.poll_one(number, POLLIN | POLLOUT), POLLOUT | POLLHUP | POLLERR);
  if (calls.bypass()) {  // has no kernel socket to listen with, or to keep an option
    EXPECT_EQ(calls.listen(server, 1), -EINVAL);
    EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_KEEPALIVE, 1), -ENOPROTOOPT);
  }
  const int third = calls.connected().first;  // the placeholder still works
  EXPECT_EQ(calls.send(third, "x"), 1);
}

TEST_P(StreamConnectTest, Names_OfBothEnds_AgreeAndAreKnownAtOnce) {
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

TEST_P(StreamConnectTest, Bind_BeforeConnect_KeepsThePort) {
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

TEST_P(StreamConnectTest, FastOpen_ConnectsAndSends) {
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

TEST_P(StreamConnectTest, FastOpen_NobodyListens_IsRefused) {
  std::uint16_t port = 0;
  calls.close(calls.server(port));
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.send_to(client, "hello", calls.address(port), MSG_FASTOPEN), -ECONNREFUSED);
}

}  // namespace
}  // namespace bypass::test
