// Listeners: accept queues, readiness, both halves of a wildcard listener.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <thread>

#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using ListenerTest = BothSides;
ON_BOTH_SIDES(ListenerTest);

TEST_P(ListenerTest, Accept_NobodyCame_WouldBlock) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  calls.set_non_blocking(listener, true);
  EXPECT_EQ(calls.accept(listener), -EAGAIN);
  EXPECT_EQ(calls.poll_one(listener, POLLIN | POLLOUT | POLLRDHUP), 0);
}

TEST_P(ListenerTest, Accept_Blocking_IsWokenByAConnection) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  std::thread server([&] { EXPECT_GE(calls.accept(listener), 0); });
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(client, calls.address(port)), 0);
  server.join();
}

TEST_P(ListenerTest, Poll_ConnectionWaits_IsReadable) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(calls.poll_one(listener, POLLIN | POLLOUT, 5000), POLLIN);
  EXPECT_GE(calls.accept(listener), 0);
  EXPECT_EQ(calls.poll_one(listener, POLLIN | POLLOUT), 0);
}

TEST_P(ListenerTest, Shutdown_OfSending_ShutsNothingAndIsAnEdge) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.poll_one(listener, POLLIN, 5000), POLLIN);
  const int set = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  EXPECT_EQ(calls.shutdown(listener, SHUT_WR), 0);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_GE(calls.accept(listener), 0);
}

TEST_P(ListenerTest, Accepted_FlagsAndOptions_AreInheritedAsOnLinux) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  calls.set_option(listener, IPPROTO_TCP, TCP_NODELAY, 1);
  calls.set_option(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
  calls.set_option(listener, IPPROTO_TCP, TCP_KEEPIDLE, 77);
  calls.set_non_blocking(listener, true);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  calls.connect(client, calls.address(port));
  ASSERT_NE(calls.poll_one(listener, POLLIN, 5000), 0);
  const int plain = static_cast<int>(calls.accept(listener));
  int value = 0;
  calls.get_option(plain, IPPROTO_TCP, TCP_NODELAY, value);
  EXPECT_NE(value, 0);
  calls.get_option(plain, SOL_SOCKET, SO_KEEPALIVE, value);
  EXPECT_NE(value, 0);
  calls.get_option(plain, IPPROTO_TCP, TCP_KEEPIDLE, value);
  EXPECT_EQ(value, 77);
  std::string got;
  std::thread writer([&] { calls.send(client, "x"); });
  EXPECT_EQ(calls.receive(plain, got), 1);  // blocking: O_NONBLOCK is not inherited
  writer.join();
}

TEST_P(ListenerTest, Accept_WithNonBlockFlag_GivesNonBlockingSocket) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  calls.connect(client, calls.address(port));
  const int server = static_cast<int>(calls.accept(listener, SOCK_NONBLOCK));
  std::string got;
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
  EXPECT_EQ(calls.accept(listener, 1), -EINVAL);
}

TEST_P(ListenerTest, Calls_ThatNeedAConnection_FailAsTheKernelsDo) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  std::string got;
  sockaddr_in name{};
  EXPECT_EQ(calls.receive(listener, got, 1, MSG_DONTWAIT), -ENOTCONN);
  EXPECT_EQ(calls.send(listener, "x"), -EPIPE);
  EXPECT_EQ(calls.connect(listener, calls.address(port)), -EISCONN);
  EXPECT_EQ(calls.peer_name(listener, name), -ENOTCONN);
  EXPECT_EQ(calls.bind(listener, calls.address(0)), -EINVAL);
  int listening = 0;
  calls.get_option(listener, SOL_SOCKET, SO_ACCEPTCONN, listening);
  EXPECT_EQ(listening, 1);
}

TEST_P(ListenerTest, Listen_Again_ChangesTheBacklog) {
  std::uint16_t port = 0;
  const int listener = calls.server(port, 1);
  EXPECT_EQ(calls.listen(listener, 50), 0);
}

TEST_P(ListenerTest, Bind_TakenPort_IsInUse) {
  std::uint16_t port = 0;
  calls.server(port);
  const int other = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.bind(other, calls.address(port)), -EADDRINUSE);
}

TEST_P(ListenerTest, Shutdown_OfListener_WakesAcceptWithInvalid) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  Sleeping acceptor([&] { EXPECT_EQ(calls.accept(listener), -EINVAL); });
  EXPECT_EQ(calls.shutdown(listener, SHUT_RDWR), 0);
  acceptor.join();
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  EXPECT_EQ(calls.connect(client, calls.address(port)), -ECONNREFUSED);
}

TEST_P(ListenerTest, Close_WithWaitingConnection_ResetsIt) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_NE(calls.poll_one(listener, POLLIN, 5000), 0);
  calls.close(listener);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), -ECONNRESET);
}

TEST_P(ListenerTest, Accept_NoDescriptorLeft_LeavesTheConnectionInTheQueue) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at a vtable through a pipe, for which there is no descriptor";
#endif
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.poll_one(listener, POLLIN, 5000), POLLIN);
  const int next = ::dup(listener);
  ::close(next);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_EQ(calls.accept(listener), -EMFILE);
  setrlimit(RLIMIT_NOFILE, &before);
  const long server = calls.accept(listener);
  ASSERT_GE(server, 0);
  EXPECT_EQ(calls.send(client, "x"), 1);
  std::string got;
  EXPECT_EQ(calls.receive(static_cast<int>(server), got), 1);
}

TEST_P(ListenerTest, Accept_NameWithoutItsLength_EndsTheConnection) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int client = calls.socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  const int next = ::dup(listener);
  ::close(next);
  sockaddr_in peer{};
  EXPECT_EQ(calls.accept_named(listener, 0, reinterpret_cast<sockaddr*>(&peer), nullptr), -EFAULT);
  const int same = ::dup(listener);
  EXPECT_EQ(same, next);
  ::close(same);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), 0);
}

TEST_P(ListenerTest, SharedPort_EachListenerGetsItsPart) {
  int listeners[2];
  std::uint16_t port = 0;
  for (int& fd : listeners) {
    fd = calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(calls.set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1), 0);
    ASSERT_EQ(calls.bind(fd, calls.address(port)), 0);
    port = ntohs(calls.local_name(fd).sin_port);
    ASSERT_EQ(calls.listen(fd, 64), 0);
  }
  constexpr int kClients = 64;
  for (int i = 0; i < kClients; i++)
    ASSERT_EQ(calls.connect(calls.socket(AF_INET, SOCK_STREAM), calls.address(port)), 0);
  int accepted[2] = {0, 0};
  for (int look = 0; look < 1000 && accepted[0] + accepted[1] < kClients; look++) {  // the last ACK may be on its way
    const int which = look % 2;
    while (calls.poll_one(listeners[which], POLLIN, 1) == POLLIN) {
      EXPECT_GE(calls.accept(listeners[which]), 0);
      accepted[which]++;
    }
  }
  EXPECT_EQ(accepted[0] + accepted[1], kClients);
  for (const int each : accepted) EXPECT_GT(each, kClients / 8);
}

TEST(ReusePortListenerTest, Listen_WhereOneSharesNoMore_FailsAndSaysWhy) {
  World::get();
  Calls calls(true);
  static int told;
  told = 0;
  socket::policy.record_why = [](int, unsigned, const char*) { told++; };
  int listeners[2];
  std::uint16_t port = 0;
  for (int& fd : listeners) {
    fd = calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(calls.set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1), 0);
    ASSERT_EQ(calls.bind(fd, calls.address(port)), 0);
    port = ntohs(calls.local_name(fd).sin_port);
  }
  EXPECT_EQ(calls.listen(listeners[0], 1), 0);
  EXPECT_EQ(told, 0);
  ASSERT_EQ(calls.set_option(listeners[1], SOL_SOCKET, SO_REUSEPORT, 0), 0);
  EXPECT_EQ(calls.listen(listeners[1], 1), -EADDRINUSE);
  EXPECT_EQ(told, 1);
}

// --- Both halves of a wildcard listener

class DualListenerTest : public ::testing::Test {
 protected:
  DualListenerTest() {
    World::get();
    listener = calls.socket(AF_INET, SOCK_STREAM);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    EXPECT_EQ(calls.bind(listener, any), 0);
    EXPECT_EQ(calls.listen(listener, 16), 0);
    port = ntohs(calls.local_name(listener).sin_port);
  }
  int connect_kernel() {
    const int fd = kernel_calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(kernel_calls.connect(fd, kernel_calls.address(port)), 0);
    return fd;
  }
  int connect_bypass() {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
    return fd;
  }
  void expect_exchange(Calls& client_calls, int client) {
    const long server = calls.accept(listener);
    ASSERT_GE(server, 0);
    std::string got;
    EXPECT_EQ(client_calls.send(client, "hello"), 5);
    EXPECT_EQ(calls.receive(static_cast<int>(server), got), 5);
    EXPECT_EQ(got, "hello");
  }

  Calls calls{true}, kernel_calls{false};
  int listener = -1;
  std::uint16_t port = 0;
};

TEST_F(DualListenerTest, Accept_PeersOfBothPaths_AreServed) {
  expect_exchange(kernel_calls, connect_kernel());
  expect_exchange(calls, connect_bypass());
  expect_exchange(kernel_calls, connect_kernel());
}

TEST_F(DualListenerTest, Accept_BothQueuesFull_TakesTurns) {
  World::get().budgets().kernel_poll = {};
  for (int i = 0; i < 3; i++) connect_kernel(), connect_bypass();
  calls.set_non_blocking(listener, true);
  ASSERT_NE(calls.poll_one(listener, POLLIN, 5000), 0);
  std::string order;
  for (int i = 0; i < 6; i++) {
    sockaddr_in peer{};
    ASSERT_GE(calls.accept(listener, 0, &peer), 0);
    order += peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK) ? 'k' : 'b';
  }
  EXPECT_TRUE(order.starts_with("kbkb") || order.starts_with("bkbk")) << order;
  EXPECT_EQ(calls.accept(listener), -EAGAIN);
}

TEST_F(DualListenerTest, Epoll_KernelPeer_IsSeenAsleep) {
  const int set = calls.epoll_create();
  ASSERT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, listener, EPOLLIN), 0);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  std::vector<epoll_event> events;
  Sleeping waiter([&] { events = calls.epoll_wait(set, 5000); });
  connect_kernel();
  waiter.join();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLIN);
  EXPECT_EQ(events[0].data.u64, static_cast<std::uint64_t>(listener));
  EXPECT_GE(calls.accept(listener), 0);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_F(DualListenerTest, Dup_NumberOfTheWatchCloses_KernelHalfIsStillWatched) {
  const int other = calls.dup(listener);
  calls.close(listener);
  listener = other;
  connect_kernel();
  EXPECT_EQ(calls.poll_one(listener, POLLIN, 5000), POLLIN);
  EXPECT_GE(calls.accept(listener), 0);
}

TEST_F(DualListenerTest, Accept_KernelPeersNameWithoutItsLength_EndsTheConnection) {
  const int client = connect_kernel();
  ASSERT_EQ(calls.poll_one(listener, POLLIN, 5000), POLLIN);
  sockaddr_in peer{};
  EXPECT_EQ(calls.accept_named(listener, 0, reinterpret_cast<sockaddr*>(&peer), nullptr), -EFAULT);
  std::string got;
  EXPECT_EQ(kernel_calls.receive(client, got), 0);
}

TEST_F(DualListenerTest, Close_OwnDuplicateOfTheWatch_IsOursNoMore) {
  static int own;
  own = 0;
  socket::policy.own_descriptor = [](int fd) {
    own++;
    return fd;
  };
  socket::policy.disown_descriptor = [](int) { own--; };
  const int other = calls.dup(listener);
  calls.close(listener);
  listener = other;
  EXPECT_EQ(own, 1);
  calls.close(listener);
  EXPECT_EQ(own, 0);
}

TEST_F(DualListenerTest, Listen_KernelRefusesThePort_IsTheProgramsError) {
  const int other = calls.socket(AF_INET, SOCK_STREAM);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  EXPECT_EQ(calls.bind(other, any), -EADDRINUSE);
}

}  // namespace
}  // namespace bypass::test
