// Options of streams, compared with the kernel's: what they read as, and what they do.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "socket/calls.h"
#include "socket/sleeping.h"
#include "socket/world.h"

namespace bypass::test {
namespace {

using StreamOptionTest = BothSides;
ON_BOTH_SIDES(StreamOptionTest);

TEST_P(StreamOptionTest, Options_NobodySet_ReadAsOnLinux) {
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

TEST_P(StreamOptionTest, MaxSegment_Zero_IsThePathsAgain) {
  const auto [client, server] = calls.connected();
  for (const int value : {0, 1000, 0}) EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_MAXSEG, value), 0);
  for (const int value : {-1, 1, 87, 32768})
    EXPECT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_MAXSEG, value), -EINVAL);
}

TEST_P(StreamOptionTest, NotSentLowWater_Zero_IsNoBound) {
  const auto [client, server] = calls.connected();
  ASSERT_EQ(calls.set_option(client, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0), 0);
  EXPECT_EQ(calls.poll_one(client, POLLOUT, 1000), POLLOUT);
}

// A larger send buffer is new room. A thread that sleeps for room is woken, and each setting is an edge
// (sk_write_space).
TEST_P(StreamOptionTest, SendingBounds_Raised_WakeWhoWaitsForRoom) {
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
    Sleeping writer([&, c = client] { sent = calls.send(c, "y"); });
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

TEST_P(StreamOptionTest, LowWater_AboveTheBuffer_IsBounded) {
  const auto [client, server] = calls.connected();
  int value = 0;
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVBUF, 8192), 0);
  ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_RCVLOWAT, 1 << 20), 0);
  ASSERT_EQ(calls.get_option(server, SOL_SOCKET, SO_RCVLOWAT, value), 0);
  EXPECT_EQ(value, 8192);
}

TEST_P(StreamOptionTest, Linger_IsReportedAsItWasSet) {
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

TEST_P(StreamOptionTest, Buffers_AboveTheSystemsBound_AreClampedToIt) {
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

TEST_P(StreamOptionTest, Bind_OverAListener_IsInUse_WithReuseToo) {
  const auto listener = [&](bool reuse) {
    const int fd = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.set_option(fd, SOL_SOCKET, SO_REUSEADDR, reuse ? 1 : 0), 0);
    return fd;
  };
  const int first = listener(true), second = listener(true), third = listener(true), bound = listener(true);
  ASSERT_EQ(calls.bind(first, calls.address(0)), 0);
  const sockaddr_in name = calls.local_name(first);
  EXPECT_EQ(calls.bind(bound, name), 0) << "nobody listens yet";
  ASSERT_EQ(calls.listen(first, 3), 0);
  EXPECT_EQ(calls.bind(second, name), -EADDRINUSE);
  sockaddr_in any = name;
  any.sin_addr.s_addr = INADDR_ANY;
  EXPECT_EQ(calls.bind(third, any), -EADDRINUSE);
  EXPECT_EQ(calls.listen(bound, 3), -EADDRINUSE);
}

TEST_P(StreamOptionTest, Bind_OverAConnection_NeedsReuseOfBoth) {
  for (const bool both : {false, true}) {
    const int server = calls.socket(AF_INET, SOCK_STREAM), client = calls.socket(AF_INET, SOCK_STREAM);
    ASSERT_EQ(calls.set_option(server, SOL_SOCKET, SO_REUSEADDR, both ? 1 : 0), 0);
    ASSERT_EQ(calls.bind(server, calls.address(0)), 0);
    ASSERT_EQ(calls.listen(server, 3), 0);
    const sockaddr_in name = calls.local_name(server);
    ASSERT_EQ(calls.connect(client, name), 0);
    const int accepted = static_cast<int>(calls.accept(server));
    ASSERT_GE(accepted, 0);
    ASSERT_EQ(calls.close(server), 0);
    const int without = calls.socket(AF_INET, SOCK_STREAM), with = calls.socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(calls.bind(without, name), -EADDRINUSE);
    ASSERT_EQ(calls.set_option(with, SOL_SOCKET, SO_REUSEADDR, 1), 0);
    EXPECT_EQ(calls.bind(with, name), both ? 0 : -EADDRINUSE);
  }
}

TEST(KernelsOptionTest, SetOnAConnection_IsToldByItsName) {
  World::get();
  Calls calls(true);
  static std::vector<std::string> told;
  told.clear();
  socket::policy.record_why = [](int, unsigned, const char* detail) { told.emplace_back(detail); };
  const auto [client, server] = calls.connected();
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_EQ(calls.set_option(client, SOL_SOCKET, SO_PRIORITY, 3), 0);
  EXPECT_TRUE(told.empty());
  if (geteuid() != 0) GTEST_SKIP() << "SO_MARK wants CAP_NET_ADMIN";
  EXPECT_EQ(calls.set_option(server, SOL_SOCKET, SO_MARK, 7), 0);
  EXPECT_EQ(told, std::vector<std::string>{"setsockopt SO_MARK"});
}

/// While it lives, this thread has no effective CAP_NET_ADMIN.
class WithoutNetAdmin {
 public:
  WithoutNetAdmin() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~(1U << CAP_NET_ADMIN);
    syscall(SYS_capset, &header_, less);
  }
  ~WithoutNetAdmin() { syscall(SYS_capset, &header_, before_); }
  WithoutNetAdmin(const WithoutNetAdmin&) = delete;
  WithoutNetAdmin& operator=(const WithoutNetAdmin&) = delete;

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2]{};
};

// SO_SNDBUFFORCE may exceed net.core.wmem_max. That needs CAP_NET_ADMIN (socket(7)).
TEST(ForcedBufferTest, WithoutTheRight_IsRefusedAndChangesNothing) {
  World::get();
  Calls calls(true);
  const auto [client, server] = calls.connected();
  const WithoutNetAdmin less;
  for (const auto& [force, plain] : {std::pair{SO_SNDBUFFORCE, SO_SNDBUF}, std::pair{SO_RCVBUFFORCE, SO_RCVBUF}}) {
    int before = 0, after = 0;
    ASSERT_EQ(calls.get_option(client, SOL_SOCKET, plain, before), 0);
    EXPECT_EQ(calls.set_option(client, SOL_SOCKET, force, 1 << 26), -EPERM);
    ASSERT_EQ(calls.get_option(client, SOL_SOCKET, plain, after), 0);
    EXPECT_EQ(after, before);
  }
}

TEST(ForcedBufferTest, WithTheRightAndNoDescriptorLeft_IsTaken) {
  World::get();
  Calls calls(true);
  const auto [client, server] = calls.connected();
  int told = 0;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  if (calls.set_option(client, SOL_SOCKET, SO_SNDBUFFORCE, 1 << 20) != 0) GTEST_SKIP() << "no CAP_NET_ADMIN";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const long set = calls.set_option(client, SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(set, 0);
  ASSERT_EQ(calls.get_option(client, SOL_SOCKET, SO_SNDBUF, told), 0);
  EXPECT_EQ(told, 1 << 27);
}

}  // namespace
}  // namespace bypass::test
