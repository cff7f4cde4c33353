// The kernel's side of an object with two halves: its readiness is never forgotten, and ends when its cause ends.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "socket/calls.h"
#include "socket/kernel_table.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

/// What a test does in the middle of a kernel call for which our side has released the lock; done once.
std::function<void()> g_meanwhile;
void run_meanwhile() {
  if (g_meanwhile) std::exchange(g_meanwhile, nullptr)();
}

class KernelHalfTest : public ::testing::Test {
 protected:
  KernelHalfTest() { World::get(); }

  int datagram_socket(std::uint32_t address, std::uint16_t& port) {
    const int fd = calls.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(address);
    EXPECT_EQ(calls.bind(fd, name), 0);
    port = ntohs(calls.local_name(fd).sin_port);
    return fd;
  }
  int watch(int fd, std::uint32_t events) {
    const int set = calls.epoll_create();
    EXPECT_EQ(calls.epoll_control(set, EPOLL_CTL_ADD, fd, events), 0);
    return set;
  }
  int dual_listener(std::uint16_t& port) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    EXPECT_EQ(calls.bind(fd, any), 0);
    EXPECT_EQ(calls.listen(fd, 16), 0);
    port = ntohs(calls.local_name(fd).sin_port);
    return fd;
  }

  Calls calls{true}, kernel_calls{false};
  int peer = kernel_calls.socket(AF_INET, SOCK_DGRAM);
};

TEST_F(KernelHalfTest, Epoll_KernelOnlySocketIsReadEmpty_IsNotReadyAnyMore) {
  std::uint16_t port = 0;
  const int fd = datagram_socket(INADDR_LOOPBACK, port);
  const int set = watch(fd, EPOLLIN);
  kernel_calls.send_to(peer, "ping", kernel_calls.address(port));
  ASSERT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  std::string got;
  EXPECT_EQ(calls.receive(fd, got), 4);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  EXPECT_EQ(calls.poll_one(fd, POLLIN), 0);
}

TEST_F(KernelHalfTest, Epoll_ErrorTakenBySend_IsNotReportedAnyMore) {
  std::uint16_t port = 0;
  const int gone = kernel_calls.socket(AF_INET, SOCK_DGRAM);
  kernel_calls.bind(gone, kernel_calls.address(0));
  port = ntohs(kernel_calls.local_name(gone).sin_port);
  kernel_calls.close(gone);
  const int fd = calls.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK);
  ASSERT_EQ(calls.connect(fd, kernel_calls.address(port)), 0);
  const int set = watch(fd, EPOLLIN);
  ASSERT_EQ(calls.send(fd, "x"), 1);
  const auto events = calls.epoll_wait(set, 1000);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLERR);
  EXPECT_EQ(calls.send(fd, "x"), -ECONNREFUSED);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
  EXPECT_EQ(calls.poll_one(fd, POLLIN), 0);
}

// ip(7), IP_RECVERR: the error queue is reported until it has been read, whatever else a read finds.
TEST_F(KernelHalfTest, Epoll_QueueOfErrorsIsUnread_IsReportedThoughAReadFindsNothing) {
  const int gone = kernel_calls.socket(AF_INET, SOCK_DGRAM);
  kernel_calls.bind(gone, kernel_calls.address(0));
  const sockaddr_in nobody = kernel_calls.local_name(gone);
  kernel_calls.close(gone);
  std::uint16_t port = 0;
  const int fd = datagram_socket(INADDR_ANY, port);
  ASSERT_EQ(calls.set_option(fd, IPPROTO_IP, IP_RECVERR, 1), 0);
  const int set = watch(fd, EPOLLIN);
  ASSERT_EQ(calls.send_to(fd, "x", nobody), 1);
  ASSERT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  std::string got;
  EXPECT_EQ(calls.receive(fd, got), -ECONNREFUSED);
  EXPECT_EQ(calls.receive(fd, got), -EAGAIN);
  EXPECT_EQ(calls.poll_one(fd, POLLIN), POLLERR);
  const auto events = calls.epoll_wait(set, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].events, EPOLLERR);
  EXPECT_EQ(calls.receive(fd, got, 65536, MSG_ERRQUEUE), 1);
  EXPECT_EQ(calls.poll_one(fd, POLLIN), 0);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_F(KernelHalfTest, Poll_OthersTakeWhatAKernelDescriptorHad_IsNoneThatIsReady) {
  std::uint16_t port = 0;
  const int fd = datagram_socket(INADDR_ANY, port);
  static int event;
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  KernelTable table;
  table->ppoll = [](pollfd* items, nfds_t count, const timespec* limit, const sigset_t* mask) {
    const int ready = ::ppoll(items, count, limit, mask);
    eventfd_t taken = 0;
    if (ready == 1) eventfd_read(event, &taken);  // read by another thread, before it is asked for again
    return ready;
  };
  const Duration looks = std::exchange(World::get().budgets().kernel_poll, {});
  for (const int timeout_ms : {0, 20}) {
    eventfd_write(event, 1);
    std::vector<pollfd> items{{fd, POLLIN, 0}, {event, POLLIN, 0}};
    EXPECT_EQ(calls.poll(items, timeout_ms), items[1].revents != 0 ? 1 : 0) << timeout_ms;
  }
  World::get().budgets().kernel_poll = looks;
  ::close(event);
}

TEST_F(KernelHalfTest, Accept_OthersHarvestMeanwhile_TheNextConnectionIsStillReported) {
  std::uint16_t port = 0;
  const int listener = dual_listener(port);
  const int set = watch(listener, EPOLLIN);
  for (int i = 0; i < 2; i++) {
    const int client = kernel_calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(kernel_calls.connect(client, kernel_calls.address(port)), 0);
  }
  ASSERT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  KernelTable table;
  table->accept4 = [](int fd, sockaddr* name, socklen_t* length, int flags) {
    run_meanwhile();
    return ::accept4(fd, name, length, flags);
  };
  g_meanwhile = [&] { EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U); };
  EXPECT_GE(calls.accept(listener), 0);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_GE(calls.accept(listener), 0);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_F(KernelHalfTest, Accept_SpinnerFoundItTaken_HearsOfTheRest) {
  std::uint16_t port = 0;
  const int listener = dual_listener(port);
  for (int i = 0; i < 2; i++) {
    const int client = kernel_calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(kernel_calls.connect(client, kernel_calls.address(port)), 0);
  }
  ASSERT_EQ(calls.poll_one(listener, POLLIN, 1000), POLLIN);
  World::get().budgets().yield = std::chrono::seconds(10);  // the second thread never sleeps
  KernelTable table;
  table->accept4 = [](int fd, sockaddr* name, socklen_t* length, int flags) {
    run_meanwhile();
    return ::accept4(fd, name, length, flags);
  };
  std::thread second;
  g_meanwhile = [&] {
    const std::atomic<unsigned>& looks = World::get().port().looks;
    const unsigned before = looks;
    second = std::thread([&] { EXPECT_GE(calls.accept(listener), 0); });
    while (looks - before < 5) std::this_thread::yield();  // until it spins
  };
  EXPECT_GE(calls.accept(listener), 0);
  second.join();
}

TEST_F(KernelHalfTest, Receive_OthersHarvestMeanwhile_TheNextDatagramIsStillReported) {
  std::uint16_t port = 0;
  const int fd = datagram_socket(INADDR_ANY, port);
  const int set = watch(fd, EPOLLIN);
  for (int i = 0; i < 2; i++) kernel_calls.send_to(peer, "ping", kernel_calls.address(port));
  ASSERT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  KernelTable table;
  table->recvmsg = [](int number, msghdr* header, int flags) {
    run_meanwhile();
    return ::recvmsg(number, header, flags);
  };
  g_meanwhile = [&] { EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U); };
  std::string got;
  EXPECT_EQ(calls.receive(fd, got), 4);
  EXPECT_EQ(calls.epoll_wait(set, 0).size(), 1U);
  EXPECT_EQ(calls.receive(fd, got), 4);
  EXPECT_TRUE(calls.epoll_wait(set, 0).empty());
}

TEST_F(KernelHalfTest, Close_WhileACallIsInside_TheNumbersNextOwnerKeepsItsWatch) {
  std::uint16_t port = 0, next_port = 0;
  const int fd = datagram_socket(INADDR_ANY, port);
  calls.set_non_blocking(fd, false);
  KernelTable table;
  table->ppoll = [](pollfd* items, nfds_t count, const timespec* limit, const sigset_t* mask) {
    run_meanwhile();
    return ::ppoll(items, count, limit, mask);
  };
  std::atomic<bool> asleep{false};
  g_meanwhile = [&] { asleep = true; };
  std::thread reader([&] {
    std::string got;
    EXPECT_EQ(calls.receive(fd, got), 4);  // events of the socket with which it began, as in the kernel
    EXPECT_EQ(got, "ping");
  });
  while (!asleep) std::this_thread::yield();
  calls.close(fd);
  const int next = datagram_socket(INADDR_ANY, next_port);
  ASSERT_EQ(next, fd);
  const int set = watch(next, EPOLLIN);
  kernel_calls.send_to(peer, "ping", kernel_calls.address(port));
  reader.join();
  kernel_calls.send_to(peer, "pong", kernel_calls.address(next_port));
  EXPECT_EQ(calls.epoll_wait(set, 1000).size(), 1U);
  std::string got;
  EXPECT_EQ(calls.receive(next, got), 4);
  EXPECT_EQ(got, "pong");
}

}  // namespace
}  // namespace bypass::test
