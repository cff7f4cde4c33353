// TCP ports of connections on an interface that the kernel keeps. The kernel binds them, and they are kept after
// close() until nothing is left of the connection.
#include "socket/family/steering.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "socket/calls.h"
#include "socket/kernel_table.h"
#include "socket/socket.h"
#include "socket/world.h"
#include "stack/counters.h"
#include "stack/frame/flow_log.h"
#include "stack/no_wire.h"

namespace bypass::test {
namespace {

// The addresses that the kernel is asked to bind, and its answers. It does not have the address.
struct Binds {
  static inline std::vector<std::uint16_t> asked;
  static inline bool all_taken = false;
  static int bind(int, const sockaddr* name, socklen_t) {
    const auto port = be16_to_host(reinterpret_cast<const sockaddr_in*>(name)->sin_port);
    asked.push_back(port);
    if (port != 0 && !all_taken) return 0;
    errno = EADDRINUSE;
    return -1;
  }
};

// The place above the program's descriptors, where our descriptors are kept.
struct Above {
  static constexpr int kBase = 600;
  static inline std::set<int> owned;
  static inline bool full = false;
  static int own(int fd) {
    const int high = own_copy(fd);
    if (high < 0) return fd;
    ::close(fd);
    return high;
  }
  static int own_copy(int fd) {
    const int high = full ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, kBase);
    if (high >= 0) owned.insert(high);
    return high;
  }
  static void disown(int fd) { owned.erase(fd); }
};

constexpr std::uint16_t kPeersPort = 4711;

class SteeringTest : public testing::Test {
 protected:
  void SetUp() override {
    share_interface(true);
    Binds::asked.clear();
    Binds::all_taken = false;
    kernel->bind = Binds::bind;
    Above::owned.clear();
    Above::full = false;
    socket::policy.own_descriptor = Above::own;
    socket::policy.own_copy = Above::own_copy;
    socket::policy.disown_descriptor = Above::disown;
    const auto made = world.peer().tcp().listen({{}, kPeersPort}, 512, {}, nullptr);
    ASSERT_TRUE(made.ok());
    listener = *made;
  }
  void TearDown() override {
    end_all();
    share_interface(false);
  }

  void share_interface(bool steered) {
    const Prefix own{IpAddress::from_v4(kOurs), 24};
    InterfaceConfig config;
    config.mac = world.port().mac();
    config.addresses = {&own, 1};
    config.steered = steered;
    const socket::Guard guard(world.shard());
    ASSERT_TRUE(world.shard().stack().set_interface(0, config).ok());
    world.shard().stack().network().flows().clear();
  }
  static sockaddr_in peer() {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = host_to_be16(kPeersPort);
    name.sin_addr.s_addr = host_to_be32(kPeers);
    return name;
  }
  std::uint64_t numbers_lost() const { return world.shard().stack().counters().numbers_lost; }
  /// A connection to the peer that does not answer.
  int connecting() {
    const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    EXPECT_EQ(calls.connect(fd, peer()), -EINPROGRESS);
    return fd;
  }

  /// On a busy machine a SYN may have timed out before the peer looks. Then another one is sent.
  void connect_and_close() {
    int fd = connecting();
    for (long events = 0; (events & POLLOUT) == 0 || (events & POLLERR) != 0; events = calls.poll_one(fd, POLLOUT)) {
      if ((events & POLLERR) != 0) {
        calls.close(fd);
        fd = connecting();
      }
      world.run_peer_once();
      (void)world.shard().poll();
    }
    calls.close(fd);
  }
  /// The peer resets its connections. Ports are given back when the devices have been told.
  void end_all() {
    if (listener != nullptr) world.peer().tcp().close_listener(world.peer_context(), *listener);
    listener = nullptr;
    while (socket::keeps_numbers()) {
      world.run_peer_once();
      (void)world.shard().poll();
    }
  }

  World& world = World::get();  // first: it makes the table that `kernel` copies
  Calls calls{true};
  tcp::Listener* listener = nullptr;
  KernelTable kernel;
};

TEST_F(SteeringTest, Connect_TakesANumberThatTheKernelHasBound) {
  const int fd = connecting();
  ASSERT_EQ(Binds::asked.size(), 1U);
  EXPECT_EQ(be16_to_host(calls.local_name(fd).sin_port), Binds::asked.front());
}

// connect(2) gives EADDRNOTAVAIL in a case where bind(2) gives EADDRINUSE.
TEST_F(SteeringTest, Connect_EveryNumberIsTaken_SaysNotAvailable) {
  Binds::all_taken = true;
  const int fd = calls.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  EXPECT_EQ(calls.connect(fd, peer()), -EADDRNOTAVAIL);
  EXPECT_EQ(Binds::asked.back(), 0) << "the kernel has been asked for any number";
}

// One free port among thousands of the kernel's cannot be found by trying.
TEST_F(SteeringTest, Connect_NumbersThatAreTriedAreTaken_TheKernelChooses) {
  kernel->bind = [](int fd, const sockaddr* name, socklen_t) {
    sockaddr_in here = *reinterpret_cast<const sockaddr_in*>(name);
    if (here.sin_port != 0) return errno = EADDRINUSE, -1;
    here.sin_addr.s_addr = host_to_be32(INADDR_LOOPBACK);
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here);
  };
  const int fd = connecting();
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length), 0);
  EXPECT_NE(bound.sin_port, 0);
  EXPECT_EQ(calls.local_name(fd).sin_port, bound.sin_port);
}

TEST_F(SteeringTest, Close_KeepsTheNumberUntilTheConnectionIsOver) {
  connect_and_close();
  ASSERT_EQ(Above::owned.size(), 1U);
  const int kept = *Above::owned.begin();
  EXPECT_GE(kept, Above::kBase);
  EXPECT_EQ(fcntl(kept, F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(socket::keeps_numbers());
  end_all();
  EXPECT_TRUE(Above::owned.empty());
  EXPECT_EQ(fcntl(kept, F_GETFD), -1);
}

TEST_F(SteeringTest, Close_MoreThanAreKept_GivesTheOldestBackAndCountsIt) {
  const std::uint64_t before = numbers_lost();
  for (int i = 0; i < 258; i++) connect_and_close();
  EXPECT_EQ(Above::owned.size(), 256U);
  EXPECT_EQ(numbers_lost(), before + 2);
}

// Descriptors below are the program's.
TEST_F(SteeringTest, Close_NoRoomAboveTheProgramsDescriptors_KeepsNothingAndCountsIt) {
  Above::full = true;
  const std::uint64_t before = numbers_lost();
  connect_and_close();
  EXPECT_FALSE(socket::keeps_numbers());
  EXPECT_TRUE(Above::owned.empty());
  EXPECT_EQ(numbers_lost(), before + 1);
}

// A device that is told of flows and does nothing with them.
class ToldPort final : public NoWire {
 public:
  ToldPort() : NoWire({.steering = true}) {}
  /// Flows of other connections, which earlier cases have left, are not recorded.
  std::set<std::uint16_t> about;
  /// "+80@1 -53@5": each has the local port and the last number but one of the address. "<" marks a flow of one remote
  /// end.
  std::string told() { return std::exchange(told_, {}); }

  bool steer(const FlowSpec& flow, bool add) override {
    if (!about.contains(flow.local.port)) return true;
    if (!told_.empty()) told_ += ' ';
    told_ += (add ? "+" : "-") + std::to_string(flow.local.port) + "@" +
             std::to_string(flow.local.address.v4() >> 8 & 255) + (flow.remote.port != 0 ? "<" : "");
    return true;
  }

 private:
  std::string told_;
};

// Listeners and bindings at every address have a rule for each address. Those at one address move with it.
TEST_F(SteeringTest, AddressesThatComeAndGo_TakeTheirFlowsAlong) {
  const Prefix old{IpAddress::from_v4(kOurs), 24}, other{IpAddress::from_v4(0x0a090501), 24};
  (void)connecting();
  const std::string number = std::to_string(Binds::asked.front());
  const socket::Guard guard(world.shard());
  Stack& stack = world.shard().stack();
  const auto listener_of_all = stack.tcp().listen({{}, 80}, 1, {}, nullptr);
  const auto binding = stack.udp().open({old.address, 53}, 1 << 16, {}, nullptr);
  ASSERT_TRUE(listener_of_all.ok() && binding.ok());
  ToldPort device;
  device.about = {80, 53, Binds::asked.front()};
  Context context;
  context.queues[0] = PortQueue(&device, 0, 0);
  context.ports = 1;
  InterfaceConfig config;
  config.mac = world.port().mac();
  config.steered = true;
  const auto change = [&](std::initializer_list<Prefix> addresses) {
    config.addresses = {addresses.begin(), addresses.size()};
    EXPECT_TRUE(socket::change_interface(stack, context, 0, config).ok());
    return device.told();
  };
  EXPECT_EQ(change({old, other}), "+80@0 +53@0 +80@5");  // first what had not been told, then the change
  EXPECT_EQ(change({other}), "-80@0 -" + number + "@0< -53@0");
  EXPECT_EQ(change({other}), "");
  EXPECT_EQ(change({old}), "-80@5 +80@0 +" + number + "@0< +53@0");
  stack.tcp().close_listener(context, **listener_of_all);
  stack.udp().close(context, **binding);
}

}  // namespace
}  // namespace bypass::test
