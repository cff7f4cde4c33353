// Epoll: each rule is checked against Linux. Mixed sets and moved sockets exist only on the stack's side.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

class EpollTest : public BothSides {
 protected:
  EpollTest() {
    std::tie(client, server) = calls.connected();
    set = calls.epoll_create();
  }
  void send_and_wait(std::string_view bytes) {
    int before = 0, now = 0;
    calls.ioctl_int(server, 0x541B /* FIONREAD */, before);
    calls.send(client, bytes);
    for (int i = 0; i < 5000 && now < before + static_cast<int>(bytes.size()); i++) {
      calls.poll_one(client, POLLPRI, 1);
      calls.ioctl_int(server, 0x541B, now);
    }
  }
  int client = -1, server = -1, set = -1;
};
ON_BOTH_SIDES(EpollTest);

TEST_P(EpollTest, Level_UnreadBytes_AreReportedAgain) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  send_and_wait("ab");
  for (int i = 0; i < 3; i++) {
    const auto events = calls.epoll_wait(set, 1000);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].events, EPOLLIN);
    EXPECT_EQ(events[0].data.u64, static_cast<std::uint64_t>(server));
  }
  std::string got;
  calls.receive(server, got);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_P(EpollTest, Edge_UnreadBytes_AreReportedOnceUntilMoreCome) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET);
  send_and_wait("ab");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  send_and_wait("cd");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_P(EpollTest, Edge_ReadyWhenAdded_IsReported) {
  send_and_wait("ab");
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLOUT | EPOLLET);
  const auto events = calls.epoll_wait(set, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLIN | EPOLLOUT);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_P(EpollTest, Edge_Modify_ReportsAnew) {
  send_and_wait("ab");
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLET, 99), 0);
  const auto events = calls.epoll_wait(set, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].data.u64, 99U);
}

TEST_P(EpollTest, OneShot_ReportsOnceUntilModified) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLONESHOT);
  send_and_wait("ab");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  send_and_wait("cd");
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  calls.epoll_control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLONESHOT);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
}

TEST_P(EpollTest, OneShot_Fired_HidesHangUpToo) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLONESHOT);
  send_and_wait("ab");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  calls.shutdown(server, SHUT_RDWR);
  calls.close(client);
  EXPECT_TRUE(calls.epoll_wait(set, 10).empty());
}

TEST_P(EpollTest, PeerShuts_IsReadableAndPeerShut) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLRDHUP);
  calls.shutdown(client, SHUT_WR);
  const auto events = calls.epoll_wait(set, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLIN | EPOLLRDHUP);
}

TEST_P(EpollTest, NoEvents_HangUpAndErrorAreStillReported) {
  calls.epoll_control(set, EPOLL_CTL_ADD, client, 0);
  const linger off{1, 0};
  calls.set_option(server, SOL_SOCKET, SO_LINGER, &off, sizeof off);
  calls.close(server);
  const auto events = calls.epoll_wait(set, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLERR | EPOLLHUP);
}

TEST_P(EpollTest, Control_WrongUse_FailsAsTheKernelsDoes) {
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_MOD, server, EPOLLIN), -ENOENT);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_DEL, server, 0), -ENOENT);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN), 0);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN), -EEXIST);
  EXPECT_EQ(calls.epoll_control(set, 17, server, EPOLLIN), -EINVAL);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLEXCLUSIVE), -EINVAL);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, set, EPOLLIN), -EINVAL);
  epoll_event event;
  EXPECT_EQ(calls.epoll_wait_raw(set, &event, 0, 0), -EINVAL);
}

TEST_P(EpollTest, Delete_PendingEvent_IsGone) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  send_and_wait("ab");
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_DEL, server, 0), 0);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_P(EpollTest, Close_OfTheSocket_TakesItOutOfTheSet) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  send_and_wait("ab");
  calls.close(server);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_P(EpollTest, Dup_OneNumberCloses_ItemStays) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  const int other = calls.dup(server);
  calls.close(server);
  calls.send(client, "x");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  std::string got;
  EXPECT_EQ(calls.receive(other, got), 1);
}

TEST_P(EpollTest, Dup_BothNumbersInOneSet_AreTwoItems) {
  const int other = calls.dup(server);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN), 0);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, other, EPOLLIN), 0);
  send_and_wait("x");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 2U);
}

TEST_P(EpollTest, TwoSets_BothReport) {
  const int second = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  calls.epoll_control(second, EPOLL_CTL_ADD, server, EPOLLIN);
  send_and_wait("x");
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  EXPECT_EQ(calls.epoll_wait(second, 1000).size(), 1U);
}

TEST_P(EpollTest, Room_ForOneOfTwo_OtherComesNext) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLOUT, 1);
  calls.epoll_control(set, EPOLL_CTL_ADD, client, EPOLLOUT, 2);
  std::uint64_t seen = 0;
  for (int i = 0; i < 2; i++) {
    const auto events = calls.epoll_wait(set, 0, 1);
    ASSERT_EQ(events.size(), 1U);
    seen |= events[0].data.u64;
  }
  EXPECT_EQ(seen, 3U);
}

TEST_P(EpollTest, Nested_InnerReady_OuterReports) {
  const int outer = calls.epoll_create();
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  EXPECT_EQ(calls.epoll_control(outer, EPOLL_CTL_ADD, set, EPOLLIN), 0);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, outer, EPOLLIN), -ELOOP);
  EXPECT_TRUE(calls.epoll_wait(outer, 0).empty());
  EXPECT_EQ(calls.poll_one(set, POLLIN), 0);
  calls.send(client, "x");
  const auto events = calls.epoll_wait(outer, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].data.u64, static_cast<std::uint64_t>(set));
  EXPECT_EQ(calls.poll_one(set, POLLIN, 1000), POLLIN);
  std::string got;
  calls.receive(server, got);
  EXPECT_TRUE(calls.epoll_wait(outer, 0).empty());
}

TEST_P(EpollTest, Sleep_IsWokenByAnotherThreadsSend) {
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
  Sleeping waiter([&] { EXPECT_EQ(calls.epoll_wait(set, -1).size(), 1U); });
  calls.send(client, "x");
}

TEST_P(EpollTest, Sleep_IsWokenByAddOfAReadySocket) {
  send_and_wait("x");
  Sleeping waiter([&] { EXPECT_EQ(calls.epoll_wait(set, -1).size(), 1U); });
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN);
}

TEST_P(EpollTest, Mixed_KernelDescriptor_IsReportedBesideASocket) {
  const int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN, 1);
  calls.epoll_control(set, EPOLL_CTL_ADD, event, EPOLLIN, 2);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  const std::uint64_t one = 1;
  ASSERT_EQ(write(event, &one, sizeof one), 8);
  auto events = calls.epoll_wait(set, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].data.u64, 2U);
  send_and_wait("x");
  std::uint64_t seen = 0;
  for (int i = 0; i < 100 && seen != 3; i++)
    for (const epoll_event& e : calls.epoll_wait(set, 100)) seen |= e.data.u64;
  EXPECT_EQ(seen, 3U);
  ::close(event);
}

TEST_P(EpollTest, Mixed_SleepsOnBoth_KernelWakes) {
  const int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  calls.epoll_control(set, EPOLL_CTL_ADD, server, EPOLLIN, 1);
  calls.epoll_control(set, EPOLL_CTL_ADD, event, EPOLLIN, 2);
  std::vector<epoll_event> events;
  Sleeping waiter([&] { events = calls.epoll_wait(set, -1); });
  const std::uint64_t one = 1;
  EXPECT_EQ(write(event, &one, sizeof one), 8);
  waiter.join();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].data.u64, 2U);
  ::close(event);
}

TEST_P(EpollTest, Undecided_AddedThenConnected_ReportsTheConnection) {
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  calls.epoll_control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT);
  auto events = calls.epoll_wait(set, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLOUT | EPOLLHUP);
  calls.connect(fd, calls.address(port));
  EXPECT_GE(calls.accept(listener), 0);
  events = calls.epoll_wait(set, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLOUT);
}

TEST_P(EpollTest, Undecided_DecidedForTheKernel_MovesInsideTheSet) {
  Calls kernel_calls(false);
  std::uint16_t port = 0;
  const int listener = kernel_calls.server(port);
  const int fd = calls.socket(AF_INET, SOCK_STREAM);
  calls.epoll_control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 77);
  ASSERT_EQ(calls.connect(fd, kernel_calls.address(port)), 0);
  const int peer = static_cast<int>(kernel_calls.accept(listener));
  calls.epoll_wait(set, 0);  // an edge from before
  kernel_calls.send(peer, "x");
  const auto events = calls.epoll_wait(set, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].data.u64, 77U);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 78), 0);
  EXPECT_EQ(calls.epoll_wait(set, 1000).at(0).data.u64, 78U);
  EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_DEL, fd, 0), 0);
}

TEST_P(EpollTest, Exclusive_TwoSleepers_BothAreServedInTheEnd) {
  const int second = calls.epoll_create();
  std::uint16_t port = 0;
  const int listener = calls.server(port);
  calls.set_non_blocking(listener, true);
  calls.epoll_control(set, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLEXCLUSIVE);
  calls.epoll_control(second, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLEXCLUSIVE);
  std::atomic<int> accepted{0};
  auto serve = [&](int own) {
    while (accepted.load() < 10) {
      if (calls.epoll_wait(own, 20).empty()) continue;
      while (calls.accept(listener) >= 0) accepted++;
    }
  };
  std::thread one(serve, set), two(serve, second);
  for (int i = 0; i < 10; i++) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.connect(fd, calls.address(port)), 0);
  }
  one.join();
  two.join();
  EXPECT_EQ(accepted.load(), 10);
}

}  // namespace
}  // namespace bypass::test
