// What the kernel says about processes: other users, other namespaces, deaths.
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <functional>
#include <memory>

#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::MessageKind;
using shm::Pairing;
using State = Pairing::State;

/// A child that does one thing and reports it through its end of a socket pair.
class Child {
 public:
  explicit Child(const std::function<void(shm::Channel& parent)>& act) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    shm::Channel theirs{Descriptor(ends[1])};
    parent_ = shm::Channel(Descriptor(ends[0]));
    pid_ = ::fork();
    if (pid_ != 0) return;
    parent_.close();
    act(theirs);
    ::_exit(0);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  shm::Channel& channel() { return parent_; }
  /// Waits for the child's next packet; false: the child has gone.
  bool wait() {
    std::array<std::byte, 64> room;
    pollfd item{parent_.descriptor(), POLLIN, 0};
    EXPECT_EQ(::poll(&item, 1, 30000), 1);
    last_ = parent_.receive(room);
    return last_.kind == shm::Channel::Received::Kind::kPacket;
  }
  shm::Channel::Received& last() { return last_; }
  void say() { parent_.send(kWord); }
  void kill() { ::kill(pid_, SIGKILL); }
  int end() {
    int status = 0;
    parent_.close();
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

  static constexpr std::array<std::byte, 2> kWord{};

 private:
  pid_t pid_ = -1;
  shm::Channel parent_;
  shm::Channel::Received last_;
};

bool wait_for_word(shm::Channel& parent) {
  std::array<std::byte, 64> room;
  pollfd item{parent.descriptor(), POLLIN, 0};
  return ::poll(&item, 1, 30000) == 1 && parent.receive(room).kind == shm::Channel::Received::Kind::kPacket;
}

class ProcessTest : public LeakFree {
 protected:
  void TearDown() override {
    us = {};
    connection.reset();
    LeakFree::TearDown();
  }

  std::unique_ptr<Connection> connection = std::make_unique<Connection>();
  Pairing us;
};

void become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(1);
}

// --- Deaths

/// The process of the other end dies after that many steps, as the guest or as the host.
class ProcessDeath : public ::testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(ProcessDeath, AtAnyStep_EndsOurs_AndTheConnection_AndNothingStays) {
  const auto [is_host, steps] = GetParam();
  const std::size_t before = open_descriptors();
  {
    auto connection = std::make_unique<Connection>();
    Pairing us;
    if (!is_host) us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
    Child child([&, n = steps](shm::Channel& parent) {
      us = {};
      connection->server.reset();
      Pairing own;
      own.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
      for (int i = 0; i < n; i++) {
        parent.send(Child::kWord);
        if (!wait_for_word(parent)) ::_exit(1);
        own.step(kStart);
      }
      ::kill(::getpid(), SIGKILL);
    });
    for (int i = 0; i < steps; i++) {
      ASSERT_TRUE(child.wait());
      if (is_host && i == 0) us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
      us.step(kStart);
      child.say();
    }
    EXPECT_FALSE(child.wait());
    EXPECT_EQ(WTERMSIG(child.end()), SIGKILL);
    connection->client.reset();
    if (is_host && steps == 0) us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
    settle(kStart, us);
    if (us.state() == State::kPaired) {
      shm::Channel channel = us.take_channel();
      std::array<std::byte, 64> room;
      EXPECT_EQ(channel.receive(room).kind, shm::Channel::Received::Kind::kGone);
    } else {
      EXPECT_TRUE(us.refusal() == Refusal::kTimedOut || us.refusal() == Refusal::kPeerGone ||
                  us.refusal() == Refusal::kNotConnected)
          << to_string(us.refusal());
    }
    char byte = 0;  // the client's end resets when its last descriptor is closed
    EXPECT_EQ(::recv(connection->server.get(), &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
  EXPECT_EQ(open_descriptors(), before);
}
INSTANTIATE_TEST_SUITE_P(All, ProcessDeath, ::testing::Combine(::testing::Bool(), ::testing::Range(0, 6)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param) ? "Host" : "Guest") +
                                  std::to_string(std::get<1>(each.param));
                         });

TEST_F(ProcessTest, PeerDiesWhilePaired_ItsMemoryStaysReadable_AndTheChannelTells) {
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  Child child([&](shm::Channel& parent) {
    us = {};
    connection->server.reset();
    Pairing own;
    own.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
    while (own.state() == State::kWaiting) {
      parent.send(Child::kWord);
      if (!wait_for_word(parent)) ::_exit(1);
      own.step(kStart);
    }
    const shm::Segment segment = own.take_segment();
    shm::Producer producer;
    producer.room(segment.outgoing(), 1).part[0][0] = std::byte{42};
    (void)producer.publish(segment.outgoing(), 1);
    ::kill(::getpid(), SIGKILL);
  });
  while (child.wait()) us.step(kStart), child.say();
  child.end();
  us.step(kStart);
  ASSERT_EQ(us.state(), State::kPaired) << to_string(us.refusal());
  const shm::Segment segment = us.take_segment();
  shm::Consumer consumer;
  const auto there = consumer.peek(segment.incoming());
  ASSERT_EQ(there.size(), 1U);
  EXPECT_EQ(there.part[0][0], std::byte{42});
  shm::Channel channel = us.take_channel();
  std::array<std::byte, 64> room;
  EXPECT_EQ(channel.receive(room).kind, shm::Channel::Received::Kind::kGone);
}

// --- Other users

/// A run directory that it must not be. What follows holds there, too.
class OpenFolder {
 public:
  OpenFolder() { set(0777); }
  ~OpenFolder() { set(0700); }
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

 private:
  static void set(mode_t mode) { EXPECT_EQ(::fchmod(meeting_folder(), mode), 0); }
};

void expect_refused_guest(Connection& connection, Pairing& us) {
  us.begin(meeting_folder(), connection.server.get(), kSizes, kStart, kDeadline);
  Child child([&](shm::Channel&) {
    us = {};
    become_nobody();
    Pairing own;
    own.begin(meeting_folder(), connection.client.get(), kSizes, kStart, kDeadline);
    const bool refused = own.state() == State::kRefused && own.refusal() == Refusal::kOtherUser;
    ::_exit(refused && !visit(connection.server.get()).is_open() ? 0 : 1);
  });
  EXPECT_EQ(child.end(), 0);
  us.step(kDeadline);
  EXPECT_EQ(us.refusal(), Refusal::kTimedOut);
}

TEST_F(ProcessTest, AnotherUsersGuest_DoesNotReachTheName_ThoughItHasTheEnd) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can be another user";
  expect_refused_guest(*connection, us);
}

TEST_F(ProcessTest, AnotherUsersGuest_DoesNotReachTheName_InAnOpenFolderEither) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can be another user";
  const OpenFolder open;
  expect_refused_guest(*connection, us);
}

TEST_F(ProcessTest, AnotherUserHasTheName_NothingIsGivenToIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can be another user";
  const OpenFolder open;
  Child child([&](shm::Channel& parent) {
    become_nobody();
    const Squatter name(connection->server.get());
    parent.send(Child::kWord);
    wait_for_word(parent);
    shm::Channel guest = accept_one(name);
    std::array<std::byte, 64> room;
    const bool silent = guest.receive(room).kind == shm::Channel::Received::Kind::kGone;
    ::unlinkat(meeting_folder(), shm::rendezvous_name(shm::connection_end(connection->server.get()).value).text.data(),
               0);
    ::_exit(silent ? 0 : 1);
  });
  ASSERT_TRUE(child.wait());
  EXPECT_EQ(us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline), State::kRefused);
  EXPECT_EQ(us.refusal(), Refusal::kOtherUser);
  child.say();
  EXPECT_EQ(child.end(), 0);
}

// --- The same user with fewer rights

/// As root of a container: the user stays, and every capability goes.
void give_capabilities_up() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) ::_exit(3);
}

/// As a container without a root of its own, with the host's network and the directory. SO_PEERCRED says our user.
void enter_namespaces() {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(7);
}

/// The other process may be in the way. It gets neither a descriptor nor memory. `become`: what it does first.
void expect_squatter_is_given_nothing(std::unique_ptr<Connection>& connection, Pairing& us, void (*become)()) {
  const auto name = shm::rendezvous_name(shm::connection_end(connection->server.get()).value);
  Child squatter([&](shm::Channel& parent) {
    connection.reset();
    become();
    shm::NamedListener listener;
    if (listener.open(meeting_folder(), name.view(), 1) != 0) ::_exit(4);
    parent.send(Child::kWord);
    if (!wait_for_word(parent)) ::_exit(5);
    shm::Channel guest(Descriptor(listener.accept()));
    guest.take_descriptors(true);
    for (const int number : {3, 4, 5, 6, 7, 8}) {
      shm::Message welcome = message_of(MessageKind::kWelcome);
      welcome.number = number;
      guest.send(bytes_of(welcome));
    }
    parent.send(Child::kWord);
    std::array<std::byte, 64> room;
    bool given = false;
    pollfd said{guest.descriptor(), POLLIN, 0};
    while (::poll(&said, 1, 30000) == 1) {
      const shm::Channel::Received received = guest.receive(room);
      if (received.kind == shm::Channel::Received::Kind::kGone) break;
      given = given || received.descriptor.is_open() || received.many;
    }
    ::_exit(given ? 6 : 0);
  });
  ASSERT_TRUE(squatter.wait());
  us.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  squatter.say();
  ASSERT_TRUE(squatter.wait());
  us.step(kStart);
  EXPECT_EQ(us.refusal(), Refusal::kWrongConnection) << to_string(us.refusal());
  EXPECT_EQ(squatter.end(), 0);
}

TEST_F(ProcessTest, RootWithoutCapabilitiesHasTheName_IsGivenNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone has capabilities to give up";
  expect_squatter_is_given_nothing(connection, us, give_capabilities_up);
}

TEST_F(ProcessTest, RootOfOtherNamespacesHasTheName_IsGivenNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone makes them everywhere";
  expect_squatter_is_given_nothing(connection, us, enter_namespaces);
}

/// The process has the connection's other end by right. But it may not trace the host, so the host shares no memory
/// with it.
TEST_F(ProcessTest, HostWithMoreRights_IsRefusedByTheGuest) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone has capabilities to give up";
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  Child child([&](shm::Channel& parent) {
    us = {};
    connection->server.reset();
    give_capabilities_up();
    Pairing own;
    own.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
    parent.send(Child::kWord);
    wait_for_word(parent);
    own.step(kStart);
    ::_exit(own.refusal() == Refusal::kOtherRights ? 0 : 1);
  });
  ASSERT_TRUE(child.wait());
  us.step(kStart);
  child.say();
  EXPECT_EQ(child.end(), 0);
  us.step(kStart);
  us.step(kDeadline);
  EXPECT_EQ(us.state(), State::kRefused);
}

TEST_F(ProcessTest, KilledHost_LeavesANameThatMakesRoom) {
  const auto name = shm::rendezvous_name(shm::connection_end(connection->server.get()).value);
  Child child([&](shm::Channel& parent) {
    shm::NamedListener listener;
    if (listener.open(meeting_folder(), name.view(), 1) != 0) ::_exit(1);
    parent.send(Child::kWord);
    wait_for_word(parent);
  });
  ASSERT_TRUE(child.wait());
  child.kill();
  child.end();
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(meeting_folder(), std::string(name.view()).c_str(), long_ago, AT_SYMLINK_NOFOLLOW), 0);
  Pairing peer;
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  peer.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  settle(kStart, us, peer);
  EXPECT_EQ(us.state(), State::kPaired) << to_string(us.refusal());
  EXPECT_EQ(peer.state(), State::kPaired);
  us = {}, peer = {};
  EXPECT_FALSE(std::filesystem::exists(the_meeting_folder().path() / name.view()));
}

// --- Another network namespace

void enter_new_network() {
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (::unshare(CLONE_NEWNET) != 0) ::_exit(1);
  const Descriptor control(::socket(AF_INET, SOCK_DGRAM, 0));
  if (::ioctl(control.get(), SIOCSIFFLAGS, &loopback) != 0) ::_exit(1);
}

std::uint16_t port_of(int fd) {
  return shm::connection_end(fd).value.local.port;
}

TEST_F(ProcessTest, TheSameNamesInAnotherNetworkNamespace_AreNoProof) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can make a network namespace";
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  Child child([&](shm::Channel& parent) {
    us = {};
    enter_new_network();
    const Connection twin(Family::kV4, port_of(connection->client.get()), port_of(connection->server.get()));
    parent.send(Child::kWord, twin.client.get());
    wait_for_word(parent);
  });
  ASSERT_TRUE(child.wait());
  const Descriptor twin = std::move(child.last().descriptor);
  ASSERT_TRUE(twin.is_open());
  const auto here = shm::connection_end(connection->client.get()).value, there = shm::connection_end(twin.get()).value;
  ASSERT_EQ(there.local, here.local);
  ASSERT_EQ(there.remote, here.remote);
  ASSERT_NE(there.network, here.network);
  shm::Channel stranger = visit(connection->server.get());
  us.step(kStart);
  EXPECT_EQ(hear(stranger).kind, MessageKind::kWelcome);
  shm::say_end(stranger, MessageKind::kProof, twin.get());
  us.step(kStart);
  EXPECT_EQ(hear(stranger).reason, Refusal::kWrongConnection);
}

TEST_F(ProcessTest, ProcessHasLeftTheConnectionsNamespace_IsARefusal) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can make a network namespace";
  Child child([&](shm::Channel&) {
    enter_new_network();  // both ends are still sockets of the old one
    Pairing own, other;
    own.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kStart + 100ms);
    other.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kStart + 100ms);
    settle(kStart, own, other);
    if (shm::other_end_is_here(connection->client.get())) ::_exit(2);
    ::_exit(own.refusal() == Refusal::kOtherNamespace && other.refusal() == Refusal::kOtherNamespace ? 0 : 1);
  });
  EXPECT_EQ(child.end(), 0);
}

}  // namespace
}  // namespace bypass::test
