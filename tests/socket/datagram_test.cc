// Datagrams: the same calls on both sides, and sockets with peers on both paths at once.
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "socket/calls.h"
#include "socket/sleeping.h"
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
  /// A socket that is connected to a port which nobody has. The error of its first datagram has come.
  int refused_by_nobody() {
    std::uint16_t port = 0;
    calls.close(bound(port));
    const int client = calls.socket(AF_INET, SOCK_DGRAM);
    EXPECT_EQ(calls.connect(client, calls.address(port)), 0);
    EXPECT_EQ(calls.send(client, "x"), 1);
    EXPECT_EQ(calls.poll_one(client, POLLIN, 5000) & POLLERR, POLLERR);
    return client;
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

// recvmsg(2) writes a name's length only if a name was asked for, and always writes a control length. sendmsg(2) looks
// at neither.
TEST_P(DatagramTest, MessageHeader_LengthOfANullNameSaysNothing) {
  std::uint16_t port = 0;
  const int server = bound(port), client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  char room[8] = "ping";
  iovec data{room, 4};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_namelen = 77;
  EXPECT_EQ(calls.send_message(client, header), 4);
  header.msg_controllen = 99;
  EXPECT_EQ(calls.receive_message(server, header, 0), 4);
  EXPECT_EQ(header.msg_namelen, 77U);
  EXPECT_EQ(header.msg_controllen, 0U);
  EXPECT_EQ(header.msg_flags, 0);
  sockaddr_in from{};
  header.msg_name = &from;
  calls.send(client, "ping");
  EXPECT_EQ(calls.receive_message(server, header, 0), 4);
  EXPECT_EQ(header.msg_namelen, sizeof from);
}

TEST_P(DatagramTest, MessageHeader_ControlMessagesWithoutAPlace_AreSaidToBeCut) {
  std::uint16_t port = 0;
  const int server = bound(port), client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.set_option(server, IPPROTO_IP, IP_PKTINFO, 1), 0);
  EXPECT_EQ(calls.send_to(client, "ping", calls.address(port)), 4);
  char room[8];
  iovec data{room, sizeof room};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_controllen = 99;
  EXPECT_EQ(calls.receive_message(server, header, 0), 4);
  EXPECT_EQ(header.msg_controllen, 0U);
  EXPECT_EQ(header.msg_flags, MSG_CTRUNC);
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

TEST_P(DatagramTest, Mtu_IsTheConnectedPathsAlone) {
  std::uint16_t port = 0;
  bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  int value = -1;
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_MTU_DISCOVER, value), 0);
  EXPECT_EQ(value, IP_PMTUDISC_WANT);
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_MTU, value), -ENOTCONN);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(calls.get_option(client, IPPROTO_IP, IP_MTU, value), 0);
  EXPECT_EQ(value, 65535) << "to ourselves";
}

// ip_sock_set_tos() of Linux drops the route, and IP_MTU asks for it.
TEST_P(DatagramTest, TypeOfService_Changed_LeavesNoMtuUntilItSends) {
  std::uint16_t port = 0;
  bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  const auto mtu = [&] {
    int value = -1;
    return calls.get_option(client, IPPROTO_IP, IP_MTU, value);
  };
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TOS, 1), 0);
  EXPECT_EQ(mtu(), -ENOTCONN);
  EXPECT_EQ(calls.send_to(client, "elsewhere", calls.address(port)), 9);
  EXPECT_EQ(mtu(), -ENOTCONN) << "it went by a route of its own";
  EXPECT_EQ(calls.send(client, "x"), 1);
  EXPECT_EQ(mtu(), 0);
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TOS, 1), 0) << "it is that already";
  EXPECT_EQ(mtu(), 0);
  EXPECT_EQ(calls.set_option(client, IPPROTO_IP, IP_TOS, 0), 0);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  EXPECT_EQ(mtu(), 0) << "connect() looks for one";
}

TEST_P(DatagramTest, LargestDatagram_Arrives) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  const std::string text(65507, 'x');
  ASSERT_EQ(calls.send_to(client, text, calls.address(port)), 65507);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 65507);
  EXPECT_EQ(got, text);
}

TEST_P(DatagramTest, Connected_NobodyThere_IsRefusedOnce) {
  const int client = refused_by_nobody();
  std::string got;
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -ECONNREFUSED);
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -EAGAIN);
}

TEST_P(DatagramTest, Send_AfterAnError_TellsOfItBeforeAnythingElse) {
  const int client = refused_by_nobody();
  EXPECT_EQ(calls.shutdown(client, SHUT_WR), 0);
  EXPECT_EQ(calls.send(client, "x"), -ECONNREFUSED);
  EXPECT_EQ(calls.send(client, "x"), -EPIPE);
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
  Sleeping reader([&] { EXPECT_EQ(calls.poll_one(client, POLLIN, 5000), POLLIN); });
  calls.send_to(client, "abc", calls.address(port));
  std::string got;
  sockaddr_in from{};
  EXPECT_EQ(calls.receive_from(server, got, from), 3);
  calls.send_to(server, "def", from);
  reader.join();
}

TEST_P(DatagramTest, Shutdown_OfUnconnected_WakesItsReader) {
  std::uint16_t port = 0;
  const int server = bound(port);
  std::atomic<long> result{-1};
  std::thread reader([&] {
    std::string got;
    result = calls.receive(server, got);
  });
  while (calls.shutdown(server, SHUT_RD) == -ENOTCONN && result == -1) std::this_thread::yield();
  reader.join();
  EXPECT_EQ(result, 0);
  EXPECT_EQ(calls.poll_one(server, POLLIN | POLLRDHUP) & (POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
}

TEST_P(DatagramTest, Error_ComesBeforeWhatIsQueued) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.send_to(server, "queued", calls.local_name(client)), 6);
  ASSERT_EQ(calls.poll_one(client, POLLIN, 5000), POLLIN);
  calls.close(server);
  ASSERT_EQ(calls.send(client, "x"), 1);
  ASSERT_EQ(calls.poll_one(client, POLLPRI, 5000), POLLERR);
  std::string got;
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), -ECONNREFUSED);
  EXPECT_EQ(calls.receive(client, got, 10, MSG_DONTWAIT), 6);
}

TEST_P(DatagramTest, Error_IsToldBySendAsWell) {
  std::uint16_t port = 0;
  calls.close(bound(port));
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.send(client, "x"), 1);
  ASSERT_EQ(calls.poll_one(client, POLLPRI, 5000), POLLERR);
  EXPECT_EQ(calls.send(client, "y"), -ECONNREFUSED);
  EXPECT_EQ(calls.send(client, "z"), 1);
}

TEST_P(DatagramTest, Disconnect_NameIsWhereDatagramsComeFrom) {
  std::uint16_t port = 0;
  const int server = bound(port);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.send(client, "one"), 3);
  sockaddr_in none{}, from{};
  none.sin_family = AF_UNSPEC;
  ASSERT_EQ(calls.connect(client, none), 0);
  ASSERT_EQ(calls.send_to(client, "two", calls.address(port)), 3);
  std::string got;
  EXPECT_EQ(calls.receive(server, got), 3);
  EXPECT_EQ(calls.receive_from(server, got, from), 3);
  EXPECT_EQ(calls.local_name(client).sin_port, from.sin_port);
  EXPECT_EQ(calls.send_to(server, "back", from), 4);
  EXPECT_EQ(calls.receive(client, got), 4);
}

TEST_P(DatagramTest, Disconnect_OfBoundSocket_KeepsThePort) {
  std::uint16_t port = 0, own_port = 0;
  const int server = bound(port);
  calls.close(bound(own_port));
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.bind(client, calls.address(own_port)), 0);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  sockaddr_in none{};
  none.sin_family = AF_UNSPEC;
  ASSERT_EQ(calls.connect(client, none), 0);
  EXPECT_EQ(ntohs(calls.local_name(client).sin_port), own_port);
  EXPECT_EQ(calls.send_to(server, "back", calls.address(own_port)), 4);
  std::string got;
  EXPECT_EQ(calls.receive(client, got), 4);
}

// --- Segmentation and corking

class DatagramSegmentTest : public DatagramTest {
 protected:
  void expect(std::initializer_list<std::size_t> lengths) {
    std::string got;
    for (const std::size_t length : lengths) {
      EXPECT_EQ(calls.receive(server, got), static_cast<long>(length));
      for (const char c : got) EXPECT_EQ(c, static_cast<char>('a' + next_++ % 26));
    }
    calls.poll_one(server, POLLIN, 5);
    EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), -EAGAIN);
    next_ = 0;
  }
  static std::string pattern(std::size_t bytes) {
    std::string text(bytes, 0);
    for (std::size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + i % 26);
    return text;
  }
  std::uint16_t port = 0;
  int server = bound(port);
  int client = calls.socket(AF_INET, SOCK_DGRAM);

 private:
  std::size_t next_ = 0;
};
ON_BOTH_SIDES(DatagramSegmentTest);

TEST_P(DatagramSegmentTest, Option_CutsEverySend) {
  ASSERT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_SEGMENT, 1000), 0);
  EXPECT_EQ(calls.send_to(client, pattern(2500), calls.address(port)), 2500);
  expect({1000, 1000, 500});
  EXPECT_EQ(calls.send_to(client, pattern(10), calls.address(port)), 10);
  expect({10});
  int value = 0;
  EXPECT_EQ(calls.get_option(client, IPPROTO_UDP, UDP_SEGMENT, value), 0);
  EXPECT_EQ(value, 1000);
}

TEST_P(DatagramSegmentTest, ControlMessage_CutsOneSend) {
  const std::string text = pattern(2500);
  iovec data[2] = {{const_cast<char*>(text.data()), 700}, {const_cast<char*>(text.data()) + 700, 1800}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
  sockaddr_in to = calls.address(port);
  msghdr header{};
  header.msg_name = &to;
  header.msg_namelen = sizeof to;
  header.msg_iov = data;
  header.msg_iovlen = 2;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const std::uint16_t size = 1200;
  std::memcpy(CMSG_DATA(c), &size, sizeof size);
  EXPECT_EQ(calls.send_message(client, header), 2500);
  expect({1200, 1200, 100});
}

TEST_P(DatagramSegmentTest, TooManyOrTooLong_IsRefused) {
  ASSERT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_SEGMENT, 10), 0);
  EXPECT_EQ(calls.send_to(client, pattern(10 * 200), calls.address(port)), -EINVAL);
  EXPECT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_SEGMENT, 70000), -EINVAL);
  ASSERT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_SEGMENT, 1400), 0);
  EXPECT_EQ(calls.send_to(client, pattern(65508), calls.address(port)), -EMSGSIZE);
}

TEST_P(DatagramSegmentTest, More_MakesOneDatagramOfSeveralSends) {
  const std::string text = pattern(100);
  EXPECT_EQ(calls.send_to(client, text.substr(0, 30), calls.address(port), MSG_MORE), 30);
  EXPECT_EQ(calls.send_to(client, text.substr(30, 30), calls.address(port), MSG_MORE), 30);
  calls.poll_one(server, POLLIN, 5);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), -EAGAIN);
  EXPECT_EQ(calls.send(client, text.substr(60)), 40);  // the address to which the first part goes
  expect({100});
}

TEST_P(DatagramSegmentTest, Cork_HoldsUntilItIsTakenOut) {
  const std::string text = pattern(100);
  ASSERT_EQ(calls.connect(client, calls.address(port)), 0);
  ASSERT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_CORK, 1), 0);
  EXPECT_EQ(calls.send(client, text.substr(0, 50)), 50);
  EXPECT_EQ(calls.send(client, text.substr(50)), 50);
  calls.poll_one(server, POLLIN, 5);
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), -EAGAIN);
  ASSERT_EQ(calls.set_option(client, IPPROTO_UDP, UDP_CORK, 0), 0);
  expect({100});
  EXPECT_EQ(calls.send(client, pattern(5)), 5);
  expect({5});
}

// --- What cannot go by the wire

class DatagramRouteTest : public ::testing::Test {
 protected:
  DatagramRouteTest() {
    World::get();
    told = 0;
    socket::policy.record_why = [](int, unsigned, const char*) { told++; };
  }
  static inline int told = 0;
  Calls calls{true}, kernel_calls{false};
};

TEST_F(DatagramRouteTest, Send_RuleForbidsIt_IsDenied) {
  socket::policy.routes_to = [](const sockaddr*) { return socket::Decision::kFail; };
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.send_to(fd, "x", calls.address(9)), -EACCES);
}

TEST_F(DatagramRouteTest, Send_NoWire_GoesByTheKernelAndSaysSoOnce) {
  socket::policy.routes_to = [](const sockaddr*) { return socket::Decision::kBypass; };
  socket::policy.open_wire = [] { return false; };
  const int server = kernel_calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(kernel_calls.bind(server, kernel_calls.address(0)), 0);
  const sockaddr_in to = kernel_calls.local_name(server);
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  EXPECT_EQ(calls.send_to(fd, "one", to), 3);
  EXPECT_EQ(calls.send_to(fd, "two", to), 3);
  std::string got;
  EXPECT_EQ(kernel_calls.receive(server, got), 3);
  EXPECT_EQ(told, 1);
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

TEST(DualDatagramTest, Send_PeerTakesNothingAnyMore_LosesAndCounts) {
  World& world = World::get();
  Calls calls(true);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in peer = calls.address(9);
  peer.sin_addr.s_addr = htonl(kPeers);
  {
    World::PeerThread answers_arp(world, [] {});
    ASSERT_EQ(calls.send_to(client, "first", peer), 5);
    while (world.shard().stack().undelivered(world.shard().context()) != 0) (void)world.shard().poll();
  }
  world.peer_port().room = 100;
  std::uint64_t& lost = world.shard().stack().counters().drop_udp_device;
  for (int i = 0; i < 1000 && lost == 0; i++) ASSERT_EQ(calls.send_to(client, "more", peer, MSG_DONTWAIT), 4);
  EXPECT_EQ(lost, 1U);
  EXPECT_EQ(calls.send_to(client, "more", peer), 4) << "a blocking send must not wait for ever either";
  EXPECT_EQ(lost, 2U);
}

// As on Linux, where the routes of an interface go with it.
TEST(DualDatagramTest, Connect_ThroughADeviceThatHasGone_IsUnreachable) {
  World& world = World::get();
  Calls calls(true);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in first = calls.address(9), second = calls.address(10), name{};
  first.sin_addr.s_addr = second.sin_addr.s_addr = htonl(kPeers);
  ASSERT_EQ(calls.connect(client, first), 0);
  world.port().gone = true;
  EXPECT_EQ(calls.connect(client, second), -ENETUNREACH);
  ASSERT_EQ(calls.peer_name(client, name), 0);
  EXPECT_EQ(name.sin_port, first.sin_port) << "it keeps its peer";
  EXPECT_EQ(calls.send(client, "x"), -ENETUNREACH);
  EXPECT_EQ(calls.send_to(client, "x", second), -ENETUNREACH);
  EXPECT_EQ(calls.connect(client, calls.address(9)), 0) << "the own address is reached all the same";
  world.port().gone = false;
  EXPECT_EQ(calls.connect(client, second), 0);
}

// ip_sk_ignore_df() of Linux: a datagram above the wire's MTU goes in fragments, unless the program forbids it.
TEST(DualDatagramTest, Send_AboveTheMtu_IsAsMtuDiscoveryAllows) {
  World& world = World::get();
  std::string got;
  udp::Binding* at_peer = *world.peer().udp().open({IpAddress::from_v4(kPeers), 19}, 1 << 20, {}, &got);
  Calls calls(true);
  const int client = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in peer = calls.address(19);
  peer.sin_addr.s_addr = htonl(kPeers);
  std::atomic<std::size_t> arrived{0};
  std::atomic<bool> running{false};
  const auto count = [&] {
    arrived = world.peer().udp().queued(*at_peer);
    running = true;
  };
  {
    World::PeerThread thread(world, count);
    while (!running) std::this_thread::yield();  // frames that other cases have left on the wire are gone
    const std::pair<int, bool> modes[] = {{IP_PMTUDISC_WANT, true}, {IP_PMTUDISC_DO, false},
                                          {IP_PMTUDISC_DONT, true}, {IP_PMTUDISC_PROBE, false},
                                          {IP_PMTUDISC_OMIT, true}, {IP_PMTUDISC_INTERFACE, false}};
    std::size_t expected = 0;
    for (const auto& [mode, allowed] : modes) {
      ASSERT_EQ(calls.set_option(client, IPPROTO_IP, IP_MTU_DISCOVER, mode), 0);
      EXPECT_EQ(calls.send_to(client, std::string(1472, 'x'), peer), 1472) << mode;
      EXPECT_EQ(calls.send_to(client, std::string(9000, 'x'), peer), allowed ? 9000 : -EMSGSIZE) << mode;
      expected += allowed ? 2 : 1;
      while (arrived != expected) (void)world.shard().poll();
    }
  }
  world.peer().udp().close(world.peer_context(), *at_peer);
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

TEST(DualDatagramTest, NonBlockingReceive_NothingThere_LooksAtTheWireOnce) {
  World::get();
  Calls calls(true);
  const int server = calls.socket(AF_INET, SOCK_DGRAM);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ASSERT_EQ(calls.bind(server, any), 0);
  const unsigned before = World::get().port().looks;
  std::string got;
  EXPECT_EQ(calls.receive(server, got, 10, MSG_DONTWAIT), -EAGAIN);
  EXPECT_EQ(World::get().port().looks - before, 1U);
}

TEST(DualDatagramTest, Connect_FromAKernelPeerToABypassPeer_KeepsThePort) {
  World::get();
  Calls calls(true), kernel_calls(false);
  const int kernel_peer = kernel_calls.socket(AF_INET, SOCK_DGRAM), bypass_peer = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(kernel_calls.bind(kernel_peer, kernel_calls.address(0)), 0);
  ASSERT_EQ(calls.bind(bypass_peer, calls.address(0)), 0);
  const int fd = calls.socket(AF_INET, SOCK_DGRAM);
  ASSERT_EQ(calls.connect(fd, kernel_calls.local_name(kernel_peer)), 0);
  const auto port = calls.local_name(fd).sin_port;
  ASSERT_EQ(calls.connect(fd, calls.local_name(bypass_peer)), 0);
  EXPECT_EQ(calls.local_name(fd).sin_port, port);
  sockaddr_in kernel_name{};
  socklen_t length = sizeof kernel_name;
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&kernel_name), &length), 0);
  EXPECT_EQ(kernel_name.sin_port, port);  // this one is still the program's alone
}

}  // namespace
}  // namespace bypass::test
