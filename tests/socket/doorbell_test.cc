// Every process in the network namespace can know a doorbell's name. Only its family can ring it.
#include "socket/family/doorbell.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "socket/socket.h"
#include "socket/world.h"

namespace bypass::socket {
namespace {

class DoorbellTest : public testing::Test {
 protected:
  DoorbellTest() {
    target_.slot = shard().family().slot();
    fd_ = make_doorbell(target_.doorbell);
    name_.sun_family = AF_UNIX;
    socklen_t length = sizeof name_;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name_), &length), 0);
    name_bytes_ = length;
  }
  ~DoorbellTest() override { close(fd_); }

  [[nodiscard]] bool has_rung() const {
    pollfd one{fd_, POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  }
  /// Sends from another process, which is another user's if the test runs as root. Returns what sendmsg() gave for each
  /// message.
  template <typename Attack>
  void as_stranger(Attack&& attack) {
    const pid_t child = fork();
    if (child == 0) {
      if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(2);
      const int own = ::socket(AF_UNIX, SOCK_DGRAM, 0);
      _exit(attack(own) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  bool send(int from, std::span<const std::byte> bytes, int passed = -1) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed)] = {};
    msghdr header{};
    header.msg_name = &name_;
    header.msg_namelen = name_bytes_;
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof passed);
      std::memcpy(CMSG_DATA(rights), &passed, sizeof passed);
    }
    return sendmsg(from, &header, MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
  }

  test::World& world_ = test::World::get();
  WakeTarget target_;
  int fd_ = -1;
  sockaddr_un name_{};
  socklen_t name_bytes_ = 0;
};

/// One end of a connection whose close() waits half a minute for the other end to read.
int lingering_socket() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof here;
  const int small = 4096;
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  ::bind(listener, reinterpret_cast<sockaddr*>(&here), sizeof here);
  ::listen(listener, 1);
  getsockname(listener, reinterpret_cast<sockaddr*>(&here), &length);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ::connect(fd, reinterpret_cast<sockaddr*>(&here), sizeof here);
  pollfd ready{fd, POLLOUT, 0};
  ::poll(&ready, 1, 5'000);
  const char bytes[65536] = {};
  while (::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {
  }
  const ::linger patient{1, 30};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &patient, sizeof patient);
  fcntl(fd, F_SETFL, 0);
  return fd;
}

TEST_F(DoorbellTest, Family_Rings) {
  ASSERT_GE(fd_, 0);
  EXPECT_FALSE(has_rung());
  for (int i = 0; i < 100; i++) ring_doorbell(target_);
  EXPECT_TRUE(has_rung());
  silence_doorbell(fd_);
  EXPECT_FALSE(has_rung());
}

// A process that goes to another network namespace is rung from its family's, and rings there.
TEST_F(DoorbellTest, ProcessInAnotherNetwork_IsRungAndRings) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    prepare_to_go();
    if (unshare(CLONE_NEWNET) != 0) _exit(77);
    WakeTarget own;
    const int bell = make_doorbell(own.doorbell);
    const int foreign = ::socket(AF_INET, SOCK_STREAM, 0);
    if (bell < 0 || is_elsewhere(bell) || !is_elsewhere(foreign)) _exit(1);
    if (write(pipe[1], &own.doorbell, sizeof own.doorbell) != sizeof own.doorbell) _exit(2);
    pollfd one{bell, POLLIN, 0};
    if (::poll(&one, 1, 10'000) != 1) _exit(3);
    ring_doorbell(target_);
    _exit(0);
  }
  close(pipe[1]);
  WakeTarget childs;
  childs.slot = target_.slot;
  const bool made = read(pipe[0], &childs.doorbell, sizeof childs.doorbell) == sizeof childs.doorbell;
  if (made) ring_doorbell(childs);
  close(pipe[0]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user makes no network namespaces";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(has_rung());
  EXPECT_FALSE(is_elsewhere(fd_));
}

TEST_F(DoorbellTest, Stranger_NeitherWakesNorFillsIt) {
  as_stranger([this](int own) {
    std::array<std::byte, 64> bytes{};
    bool sent = true;
    for (std::size_t i = 0; i < bytes.size(); i++) sent = sent && send(own, std::span(bytes).first(i));
    return sent;  // the kernel does not report what it has dropped
  });
  EXPECT_FALSE(has_rung());
  ring_doorbell(target_);
  EXPECT_TRUE(has_rung());
}

TEST_F(DoorbellTest, AllButOneBitOfTheToken_IsAStranger) {
  as_stranger([this](int own) {
    for (std::size_t bit = 0; bit < 8 * target_.doorbell.token.size(); bit++) {
      auto guess = target_.doorbell.token;
      guess[bit / 8] ^= std::byte{1} << (bit % 8);
      if (!send(own, guess)) return false;
    }
    std::array<std::byte, 17> longer{};
    std::memcpy(longer.data(), target_.doorbell.token.data(), target_.doorbell.token.size());
    return send(own, longer);
  });
  EXPECT_FALSE(has_rung());
}

// The last number of a socket with SO_LINGER is closed by the process that drops the message. That is the sender, whose
// thread then waits.
TEST_F(DoorbellTest, StrangersLingeringSocket_IsNotForUsToClose) {
  as_stranger([this](int own) {
    const std::byte byte{};
    const int lingering = lingering_socket();
    const pid_t sender = fork();
    if (sender == 0) _exit(send(own, {&byte, 1}, lingering) ? 0 : 1);
    int status = -1;
    return waitpid(sender, &status, 0) == sender && status == 0;
  });
  EXPECT_FALSE(has_rung());
  silence_doorbell(fd_);
}

TEST_F(DoorbellTest, TwoDoorbells_HaveTwoTokens) {
  Doorbell other;
  const int fd = make_doorbell(other);
  EXPECT_NE(other.token, target_.doorbell.token);
  EXPECT_NE(other.name, target_.doorbell.name);
  close(fd);
}

}  // namespace
}  // namespace bypass::socket
