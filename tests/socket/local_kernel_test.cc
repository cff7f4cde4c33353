// The kernel's own counts of a connection's bytes, on real loopback connections. They say where a stream is cut.
#include "socket/shared/local_kernel.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <vector>

namespace bypass::test {
namespace {

std::optional<std::uint64_t> kernel_bytes_written(int fd) {
  const auto written = socket::kernel_written(fd);
  return written.has_value() ? std::optional(written->bytes) : std::nullopt;
}

std::optional<std::uint64_t> kernel_bytes_read(int fd) {
  const auto read = socket::kernel_bytes_read(fd);
  EXPECT_EQ(read.has_value() ? read->error : 0, 0);
  return read.has_value() ? std::optional(read->bytes) : std::nullopt;
}

/// Both ends of one connection. When a send returns, its bytes are there.
class LocalKernelTest : public ::testing::Test {
 protected:
  LocalKernelTest() { connect_both(); }
  void connect_both() {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    socklen_t bytes = sizeof here;
    EXPECT_EQ(::bind(listener, address, bytes), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, address, &bytes), 0);
    ours = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(ours, address, bytes), 0);
    peer = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
    const int on = 1;
    for (const int fd : {ours, peer}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~LocalKernelTest() override {
    close_one(ours);
    close_one(peer);
  }
  static void close_one(int& fd) {
    const linger abort{1, 0};
    if (fd < 0) return;
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    ::close(std::exchange(fd, -1));
  }
  void peer_sends(std::size_t bytes, int flags = 0) {
    const std::string data(bytes, 'x');
    ASSERT_EQ(::send(peer, data.data(), bytes, flags | MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
    wait_for(POLLIN);
  }
  void wait_for(short events) const {
    pollfd one{ours, events, 0};
    EXPECT_EQ(::poll(&one, 1, 10'000), 1);
  }
  void read(std::size_t bytes, int flags = 0) const {
    std::string room(bytes, '\0');
    ASSERT_EQ(::recv(ours, room.data(), bytes, flags | MSG_WAITALL), static_cast<ssize_t>(bytes));
  }

  int ours = -1, peer = -1;
};

TEST_F(LocalKernelTest, NothingYet_Is0) {
  EXPECT_EQ(kernel_bytes_read(ours), 0U);
  EXPECT_EQ(kernel_bytes_written(ours), 0U);
}

TEST_F(LocalKernelTest, UnreadBytes_DoNotCount_PartsOfThemDo) {
  peer_sends(1000);
  EXPECT_EQ(kernel_bytes_read(ours), 0U);
  read(1);
  EXPECT_EQ(kernel_bytes_read(ours), 1U);
  read(998);
  EXPECT_EQ(kernel_bytes_read(ours), 999U);
  peer_sends(500);
  EXPECT_EQ(kernel_bytes_read(ours), 999U);
  read(501);
  EXPECT_EQ(kernel_bytes_read(ours), 1500U);
}

TEST_F(LocalKernelTest, PeekedBytes_DoNotCount_DroppedOnesDo) {
  peer_sends(100);
  read(50, MSG_PEEK);
  EXPECT_EQ(kernel_bytes_read(ours), 0U);
  EXPECT_EQ(::recv(ours, nullptr, 60, MSG_TRUNC), 60);
  EXPECT_EQ(kernel_bytes_read(ours), 60U);
}

// A FIN has a sequence number and carries no byte.
TEST_F(LocalKernelTest, PeersFin_DoesNotCount_BeforeAndAfterItIsRead) {
  peer_sends(100);
  read(40);
  ::shutdown(peer, SHUT_WR);
  wait_for(POLLRDHUP);
  EXPECT_EQ(kernel_bytes_read(ours), 40U);
  read(60);
  EXPECT_EQ(kernel_bytes_read(ours), 100U);
  char byte = 0;
  EXPECT_EQ(::recv(ours, &byte, 1, 0), 0);
  EXPECT_EQ(kernel_bytes_read(ours), 100U);
}

TEST_F(LocalKernelTest, FinWithoutABytes_Is0) {
  ::shutdown(peer, SHUT_WR);
  wait_for(POLLRDHUP);
  EXPECT_EQ(kernel_bytes_read(ours), 0U);
}

TEST_F(LocalKernelTest, OwnFin_DoesNotCount_AndTheOtherWayGoesOn) {
  ASSERT_EQ(::send(ours, "abc", 3, 0), 3);
  ::shutdown(ours, SHUT_WR);
  EXPECT_EQ(kernel_bytes_written(ours), 3U);
  peer_sends(10);
  read(4);
  EXPECT_EQ(kernel_bytes_read(ours), 4U);
  EXPECT_EQ(kernel_bytes_written(ours), 3U);
}

TEST_F(LocalKernelTest, BothEnded_StillTellsWhatWasRead) {
  peer_sends(10);
  ASSERT_EQ(::send(ours, "abc", 3, 0), 3);
  ::shutdown(ours, SHUT_WR);
  ::shutdown(peer, SHUT_WR);
  wait_for(POLLHUP);
  read(10);
  EXPECT_EQ(kernel_bytes_read(ours), 10U);
  EXPECT_EQ(kernel_bytes_written(ours), 3U);
}

TEST_F(LocalKernelTest, OwnShutdownOfReading_ChangesNoCount) {
  peer_sends(10);
  read(3);
  ::shutdown(ours, SHUT_RD);
  EXPECT_EQ(kernel_bytes_read(ours), 3U);
}

TEST_F(LocalKernelTest, WhatNobodyAcknowledges_CountsAsWritten) {
  std::size_t written = 0;
  const std::string data(65536, 'x');
  for (ssize_t n = 0; (n = ::send(ours, data.data(), data.size(), MSG_DONTWAIT)) > 0;)
    written += static_cast<std::size_t>(n);
  ASSERT_GT(written, 0U);
  EXPECT_EQ(kernel_bytes_written(ours), written);
}

TEST_F(LocalKernelTest, ManySmallWritesAndReads_AddUp) {
  std::size_t sum = 0;
  for (std::size_t i = 1; i <= 200; i++) {
    peer_sends(i);
    read(i);
    sum += i;
    ASSERT_EQ(kernel_bytes_read(ours), sum);
    ASSERT_EQ(kernel_bytes_written(peer), sum);
  }
}

// An urgent byte counts as a byte of the stream, wherever it is read.
TEST_F(LocalKernelTest, UrgentByte_ReadApart) {
  peer_sends(10);
  peer_sends(1, MSG_OOB);
  EXPECT_EQ(kernel_bytes_written(peer), 11U);
  read(10);
  char urgent = 0;
  EXPECT_EQ(::recv(ours, &urgent, 1, MSG_OOB), 1);
  peer_sends(5);
  read(5);
  EXPECT_EQ(kernel_bytes_read(ours), 16U);
}

TEST_F(LocalKernelTest, UrgentByte_Inline) {
  const int on = 1;
  ::setsockopt(ours, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
  peer_sends(10);
  peer_sends(1, MSG_OOB);
  read(10);
  EXPECT_EQ(kernel_bytes_read(ours), 10U);
  read(1);
  EXPECT_EQ(kernel_bytes_read(ours), 11U);
}

// --- Reset: the connection is closed. Its state does not say whether a FIN was counted before

TEST_F(LocalKernelTest, Reset_WithBytesUnread_TellsThem_AndKeepsTheError) {
  peer_sends(10);
  read(4);
  close_one(peer);
  wait_for(POLLERR);
  EXPECT_EQ(kernel_bytes_read(ours), 4U);
  read(6);
  EXPECT_EQ(socket::kernel_bytes_read(ours)->bytes, 10U);
}

TEST_F(LocalKernelTest, Reset_NothingUnread_TellsTheErrorOnce) {
  peer_sends(10);
  read(10);
  close_one(peer);
  wait_for(POLLERR);
  const auto first = socket::kernel_bytes_read(ours);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->bytes, 10U);
  EXPECT_EQ(first->error, ECONNRESET);
  EXPECT_EQ(kernel_bytes_read(ours), 10U) << "nobody's error any more";
}

TEST_F(LocalKernelTest, Reset_AfterAFin_TheFinDoesNotCount) {
  for (const std::size_t unread : {0U, 6U}) {
    peer_sends(10);
    read(10 - unread);
    ::shutdown(peer, SHUT_WR);
    wait_for(POLLRDHUP);
    close_one(peer);
    wait_for(POLLERR);
    EXPECT_EQ(socket::kernel_bytes_read(ours)->bytes, 10 - unread);
    close_one(ours);
    connect_both();
  }
}

TEST_F(LocalKernelTest, AskedAfterItIsClosed_TheProgramsOptionIsAsBefore) {
  peer_sends(10);
  close_one(peer);
  wait_for(POLLERR);
  EXPECT_EQ(kernel_bytes_read(ours), 0U);
  int inq = -1;
  socklen_t bytes = sizeof inq;
  EXPECT_EQ(::getsockopt(ours, IPPROTO_TCP, TCP_INQ, &inq, &bytes), 0);
  EXPECT_EQ(inq, 0);
}

TEST(LocalKernel, WhatIsNoConnection_CannotBeTold) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_FALSE(kernel_bytes_read(pipe_ends[0]).has_value());
  EXPECT_FALSE(kernel_bytes_written(pipe_ends[1]).has_value());
  EXPECT_FALSE(kernel_bytes_read(-1).has_value());
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

}  // namespace
}  // namespace bypass::test
