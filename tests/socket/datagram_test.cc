// Datagrams: the same calls on both sides, and sockets with peers on both paths at once.
#include <arpa/inet.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "socket/calls.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

class DatagramTest : public BothSides {
 protected:
  int bound(std::uint16_t& port) {
    const int fd = calls.socket(AF_INET, SOCK_DGRAM);
    EXPECT_EQ(calls.bind(fd, calls.address(0)), 0);
    port = ntohs(calls.local_name(fd).sin_port);
    return fd;
  }
};
ON_BOTH_SIDES(DatagramTest);

TEST_P(DatagramTest, SendTo_BoundSocket_ArrivesWithItsSource) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.send_to(client, "ping", calls.address(port)), 4);
  std::string got;
  sockaddr_in from{};
  EXPECT_EQ(calls.receive_from(server, got, from), 4);
  EXPECT_EQ(got, "ping");
  EXPECT_EQ(from.sin_addr.s_addr, calls.address(0).sin_addr.s_addr);
  EXPECT_EQ(from.sin_port, calls.local_name(client).sin_port);
  EXPECT_EQ(calls.send_to(server, "pong", from), 4);
  EXPECT_EQ(calls.receive(client, got), 4);
  EXPECT_EQ(got, "pong");
}

TEST_P(DatagramTest, Connected_HearsItsPeerAlone) {
  std::uint16_t server_port = 0, other_port = 0;
  const int server = bound(server_port), other = bound(other_port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(server_port)), 0);
  const sockaddr_in local = calls.local_name(client);
  EXPECT_EQ(local.sin_addr.s_addr, calls.address(0).sin_addr.s_addr);
  sockaddr_in peer{};
  ASSERT_EQ(calls.peer_name(client, peer), 0);
  EXPECT_EQ(peer.sin_port, htons(server_port));
  calls.send_to(other, "stranger", local);
  EXPECT_EQ(calls.send(client, "hello"), 5);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 5);
  calls.send_to(server, "answer", local);
  EXPECT_EQ(calls.receive(client, got), 6);
  EXPECT_EQ(got, "answer");
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -EAGAIN);
}

TEST_P(DatagramTest, Send_WithoutDestination_NeedsOne) {
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.send(fd, "x"), -EDESTADDRREQ);
  sockaddr_in peer{};
  EXPECT_EQ(calls.peer_name(fd, peer), -ENOTCONN);
  EXPECT_EQ(calls.listen(fd, 1), -EOPNOTSUPP);
  EXPECT_EQ(calls.accept(fd), -EOPNOTSUPP);
}

TEST_P(DatagramTest, Connected_NobodyThere_IsRefusedOnce) {
  std::uint16_t port = 0;
  calls.close(bound(port));
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(calls.send(client, "x"), 1);
  EXPECT_EQ(calls.poll_one(client, POLLIN, 5000) & POLLERR, POLLERR);
  std::string got;
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -ECONNREFUSED);
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -EAGAIN);
}

TEST_P(DatagramTest, Receive_TooLittleRoom_CutsAndTells) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  for (int i = 0; i < 2; i++) calls.send_to(client, "0123456789", calls.address(port));
  char room[4];
  iovec data{room, sizeof room};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  EXPECT_EQ(calls.receive_message(server, header), 4);
  EXPECT_EQ(header.msg_flags & MSG_TRUNC, MSG_TRUNC);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 4, MSG_TRUNC), 10);
}

TEST_P(DatagramTest, Receive_Peek_LeavesTheDatagram) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  calls.send_to(client, "abc", calls.address(port));
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 10, MSG_PEEK), 3);
  int next = 0;
  EXPECT_EQ(calls.ioctl_int(server, FIONREAD, next), 0);
  EXPECT_EQ(next, 3);
  EXPECT_EQ(calls.receive(server, got), 3);
}

TEST_P(DatagramTest, Poll_FreshAndReadable_AsOnLinux) {
  std::uint16_t port = 0;
  const int server = bound(port);
  EXPECT_EQ(calls.poll_one(server, POLLIN | POLLOUT | POLLRDHUP), POLLOUT);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  calls.send_to(client, "abc", calls.address(port));
  EXPECT_EQ(calls.poll_one(server, POLLIN, 5000), POLLIN);
}

TEST_P(DatagramTest, Receive_WithTimeout_EndsWithWouldBlock) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const timeval limit{0, 20'000};
  calls.set_option(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), -EAGAIN);
}

TEST_P(DatagramTest, PacketInfo_TellsTheDestination) {
  std::uint16_t port = 0;
  const int server = bound(port);
  EXPECT_EQ(calls.set_option(server, IPPROTO_IP, IP_PKTINFO, 1), 0);
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_TIMESTAMPNS, 1), 0);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  calls.send_to(client, "abc", calls.address(port));
  char room[16];
  alignas(cmsghdr) char control[256];
  iovec data{room, sizeof room};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ASSERT_EQ(calls.receive_message(server, header), 3);
  bool info = false, stamp = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    stamp = stamp || (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS);
    if (c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_PKTINFO) continue;
    in_pktinfo value;
    std::memcpy(&value, CMSG_DATA(c), sizeof value);
    EXPECT_EQ(value.ipi_addr.s_addr, calls.address(0).sin_addr.s_addr);
    info = true;
  }
  EXPECT_TRUE(info);
  EXPECT_TRUE(stamp);
}

TEST_P(DatagramTest, Epoll_EdgeAndLevel_SeeDatagrams) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int edge = calls.epoll_create(), level = calls.epoll_create();
  calls.epoll_control(edge, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET);
  calls.epoll_control(level, EPOLL_CTL_ADD, server, EPOLLIN);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  calls.send_to(client, "abc", calls.address(port));
  EXPECT_EQ(calls.epoll_wait(edge, 1000).size(), 1U);
  EXPECT_TRUE(calls.epoll_wait(edge, 0).empty());
  EXPECT_EQ(calls.epoll_wait(level, 0).size(), 1U);
  EXPECT_EQ(calls.epoll_wait(level, 0).size(), 1U);
  std::string got;
  calls.receive(server, got);
  EXPECT_TRUE(calls.epoll_wait(level, 0).empty());
}

TEST_P(DatagramTest, Shutdown_OfUnconnected_IsNotConnected) {
  std::uint16_t port = 0;
  const int server = bound(port);
  EXPECT_EQ(calls.shutdown(server, SHUT_RDWR), -ENOTCONN);
}

TEST_P(DatagramTest, Broadcast_WithoutPermission_IsDenied) {
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in to = calls.address(9);
  to.sin_addr.s_addr = htonl(calls.bypass() ? 0x0a0900ff : 0x7fffffff);
  EXPECT_EQ(calls.send_to(fd, "x", to), -EACCES);
}

TEST_P(DatagramTest, UnboundReader_InAnotherThread_HearsTheAnswer) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  std::thread reader([&] { EXPECT_EQ(calls.poll_one(client, POLLIN, 5000), POLLIN); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  calls.send_to(client, "abc", calls.address(port));
  std::string got;
  sockaddr_in from{};
  EXPECT_EQ(calls.receive_from(server, got, from), 3);
  calls.send_to(server, "def", from);
  reader.join();
}

// --- Peers on both paths at once

TEST(DualDatagramTest, EchoServer_KernelAndBypassPeers_BothAreAnswered) {
  World::get();
  Calls calls(true), kernel_calls(false);
  const int server = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ASSERT_EQ(calls.bind(server, any), 0);
  const std::uint16_t port = ntohs(calls.local_name(server).sin_port);
  const int bypass_peer = calls.socket(AF_INET, SOCK_DGRAM), kernel_peer = kernel_calls.socket(AF_INET, SOCK_DGRAM);
  std::thread echo([&] {
    std::string got;
    for (int i = 0; i < 200; i++) {
      sockaddr_in from{};
      ASSERT_GT(calls.receive_from(server, got, from), 0);
      ASSERT_GT(calls.send_to(server, got, from), 0);
    }
  });
  std::string got;
  for (int i = 0; i < 100; i++) {
    const std::string text = "datagram " + std::to_string(i);
    calls.send_to(bypass_peer, text, calls.address(port));
    kernel_calls.send_to(kernel_peer, text, kernel_calls.address(port));
    calls.receive(bypass_peer, got);
    EXPECT_EQ(got, text);
    kernel_calls.receive(kernel_peer, got);
    EXPECT_EQ(got, text);
  }
  echo.join();
}

TEST(DualDatagramTest, NonBlockingReceive_AfterOwnKernelSend_SeesItAtOnce) {
  World::get();
  Calls calls(true);
  const int server = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ASSERT_EQ(calls.bind(server, any), 0);
  sockaddr_in to = calls.local_name(server);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string got;
  for (int i = 0; i < 10; i++) {
    EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), -EAGAIN);
    EXPECT_EQ(calls.send_to(server, "self", to), 4);
    EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), 4);
  }
}

}  // namespace
}  // namespace bypass::test
