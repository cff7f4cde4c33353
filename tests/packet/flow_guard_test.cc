// What a FlowGuard keeps from the kernel: connections over the loopback interface of the test's own network namespace.
// A process that may not make one, or load programs, skips these cases.
#include "backends/packet/flows/flow_guard.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backends/packet/flows/bpf.h"
#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "network_namespace.h"

namespace bypass::packet {
namespace {

constexpr IpAddress kLocal = IpAddress::from_v4(INADDR_LOOPBACK);
constexpr MacAddress kNoMac;  // the loopback interface's
constexpr int kLoopback = 1;  // its number in a new namespace
constexpr std::uint16_t kOne = 1001, kTwo = 1002, kThree = 1003, kFree = 1009;

FlowSpec to_port(std::uint16_t port, std::uint8_t protocol = IPPROTO_TCP) {
  FlowSpec flow;
  flow.protocol = protocol;
  flow.local = {kLocal, port};
  return flow;
}

sockaddr_in address_of(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A question to a port where no process listens.
class Question {
 public:
  explicit Question(std::uint16_t port, int type = SOCK_STREAM)
      : socket_(::socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to = address_of(port);
    (void)connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    if (type == SOCK_DGRAM) (void)!::send(socket_, "", 1, 0);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question() { close(socket_); }

  // Waits at most that many milliseconds.
  [[nodiscard]] bool is_refused(int limit) const {
    pollfd waits{socket_, POLLIN, 0};
    if (poll(&waits, 1, limit) != 1) return false;
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNREFUSED;
  }

 private:
  int socket_;
};

class OneDescriptorLeft {
 public:
  OneDescriptorLeft() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit tight{64, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
    for (int fd = 0; (fd = eventfd(0, EFD_CLOEXEC)) >= 0;) taken_.push_back(fd);
    close(taken_.back());
    taken_.pop_back();
  }
  ~OneDescriptorLeft() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  OneDescriptorLeft(const OneDescriptorLeft&) = delete;
  OneDescriptorLeft& operator=(const OneDescriptorLeft&) = delete;

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

class FlowGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
    if (const std::string lacks = missing_capabilities(); !lacks.empty()) GTEST_SKIP() << "programs take " << lacks;
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
    handover_ = {pair[0], pair[1]};
  }
  void TearDown() override { forget(); }

  // Runs in a network namespace whose loopback interface is up.
  void inside(const std::function<void()>& test) {
    const std::string lacks = in_network_namespace([&]() -> std::string {
      ifreq request{};
      std::strcpy(request.ifr_name, "lo");
      request.ifr_flags = IFF_UP;
      const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
      EXPECT_EQ(ioctl(socket, SIOCSIFFLAGS, &request), 0);
      close(socket);
      test();
      return old_kernel_;
    });
    if (!lacks.empty()) GTEST_SKIP() << lacks;
  }

  [[nodiscard]] bool hold(FlowGuard& guard, const std::vector<FlowSpec>& flows, const MacAddress& mac = kNoMac) {
    std::string problem;
    const bool held = guard.hold(handover_, kLoopback, mac, flows, problem);
    if (problem.find("TCX") != std::string::npos) old_kernel_ = problem;
    EXPECT_TRUE(held || !old_kernel_.empty()) << problem;
    return held;
  }

  // Segments are received in the order in which they were sent.
  static bool refuses(std::uint16_t port, int type = SOCK_STREAM) {
    constexpr int kAtLast = 10'000;  // ms
    const Question asked(port, type), behind(kFree, type);
    EXPECT_TRUE(behind.is_refused(kAtLast));
    return asked.is_refused(0);
  }

  void forget() {
    for (int* const fd : {&handover_.put, &handover_.look})
      if (*fd >= 0) close(std::exchange(*fd, -1));
  }

  Handover handover_;
  std::string old_kernel_;  // what it has not
};

TEST_F(FlowGuardTest, TcpFlowsAreKeptFromTheKernel_NoOthers) {
  inside([&] {
    FlowGuard guard;
    if (!hold(guard, {to_port(kOne), to_port(kTwo, IPPROTO_UDP)})) return;
    EXPECT_FALSE(refuses(kOne));
    EXPECT_TRUE(refuses(kTwo));
    EXPECT_TRUE(refuses(kTwo, SOCK_DGRAM));
    guard.keep(to_port(kTwo), true);
    EXPECT_FALSE(refuses(kTwo));
    guard.keep(to_port(kTwo), false);
    guard.keep(to_port(kThree, IPPROTO_UDP), true);
    EXPECT_TRUE(refuses(kTwo));
    EXPECT_TRUE(refuses(kThree, SOCK_DGRAM));
  });
}

TEST_F(FlowGuardTest, LivesOnInTheHandover_AndEndsWithIt) {
  inside([&] {
    {
      FlowGuard dead;
      if (!hold(dead, {to_port(kOne)})) return;
    }
    EXPECT_FALSE(refuses(kOne));
    forget();
    EXPECT_TRUE(refuses(kOne));
  });
}

TEST_F(FlowGuardTest, TheNextOwnersFlowsTakeThePlaceOfTheLastOnes) {
  inside([&] {
    {
      FlowGuard dead;
      if (!hold(dead, {to_port(kOne), to_port(kTwo)})) return;
    }
    {
      FlowGuard next;
      ASSERT_TRUE(hold(next, {to_port(kTwo), to_port(kThree)}));
      EXPECT_TRUE(refuses(kOne));
      EXPECT_FALSE(refuses(kTwo));
      EXPECT_FALSE(refuses(kThree));
      next.keep(to_port(kTwo), false);
    }
    FlowGuard third;
    ASSERT_TRUE(hold(third, {}));
    for (const std::uint16_t port : {kOne, kTwo, kThree}) EXPECT_TRUE(refuses(port)) << port;
  });
}

// The descriptors in a handover are reported as new ones.
TEST_F(FlowGuardTest, WhoHasNoDescriptorsLeft_LeavesTheGuardAsItIs) {
  inside([&] {
    {
      FlowGuard dead;
      if (!hold(dead, {to_port(kOne)})) return;
    }
    {
      const OneDescriptorLeft shortage;
      FlowGuard next;
      std::string problem;
      EXPECT_FALSE(next.hold(handover_, kLoopback, kNoMac, {}, problem));
      EXPECT_NE(problem.find("no descriptor left"), std::string::npos) << problem;
    }
    EXPECT_FALSE(refuses(kOne));
    FlowGuard third;
    ASSERT_TRUE(hold(third, {to_port(kTwo)}));
    EXPECT_TRUE(refuses(kOne));
    EXPECT_FALSE(refuses(kTwo));
  });
}

// The interface of that name has gone, and another one with the name has come.
TEST_F(FlowGuardTest, AnotherInterfacesGuardGoes) {
  inside([&] {
    {
      FlowGuard before;
      if (!hold(before, {to_port(kOne)})) return;
    }
    {
      FlowGuard of_another;
      ASSERT_TRUE(hold(of_another, {to_port(kOne)}, MacAddress{{2, 0, 0, 0, 0, 1}}));
      EXPECT_TRUE(refuses(kOne)) << "only its own MAC address's frames are meant";
    }
    FlowGuard again;
    ASSERT_TRUE(hold(again, {to_port(kTwo)}));
    EXPECT_TRUE(refuses(kOne));
    EXPECT_FALSE(refuses(kTwo));
  });
}

}  // namespace
}  // namespace bypass::packet
