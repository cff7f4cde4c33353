// Two ends that find each other, and processes that pretend to be one of them.
#include <fcntl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::MessageKind;
using shm::Rendezvous;
using State = Rendezvous::State;

// --- The two ends

class RendezvousFamilies : public ::testing::TestWithParam<Family> {};

TEST_P(RendezvousFamilies, BothEnds_AreProven_AndNoDescriptorStays) {
  const std::size_t before = open_descriptors();
  {
    const Connection connection(GetParam());
    Rendezvous client, server;
    EXPECT_EQ(client.begin(meeting_folder(), connection.client.get(), kStart, kDeadline), State::kWaiting);
    server.begin(meeting_folder(), connection.server.get(), kStart, kDeadline);
    settle(kStart, client, server);
    ASSERT_EQ(client.state(), State::kProven) << to_string(client.refusal());
    ASSERT_EQ(server.state(), State::kProven) << to_string(server.refusal());
    EXPECT_EQ(client.role(), shm::Role::kHost);  // it was there first
    EXPECT_EQ(server.role(), shm::Role::kGuest);
    EXPECT_EQ(open_descriptors(), before + 4);  // the connection's ends, and a channel's
  }
  EXPECT_EQ(open_descriptors(), before);
}
std::string family_name(const ::testing::TestParamInfo<Family>& each) {
  if (each.param == Family::kV4) return "v4";
  return each.param == Family::kV6 ? "v6" : "mapped";
}
INSTANTIATE_TEST_SUITE_P(All, RendezvousFamilies, ::testing::Values(Family::kV4, Family::kV6, Family::kMapped),
                         family_name);

class RendezvousTest : public LeakFree {
 protected:
  /// The server's end is ours, and is the host. The client's end comes to it.
  void host() { ASSERT_EQ(us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline), State::kWaiting); }

  std::unique_ptr<Connection> connection = std::make_unique<Connection>();
  Rendezvous us, peer;

  void TearDown() override {
    us = {}, peer = {};
    connection.reset();
    LeakFree::TearDown();
  }
};

TEST_F(RendezvousTest, Name_IsOneForBothEnds_AndFitsAnAddress) {
  const auto a = shm::rendezvous_name(shm::connection_end(connection->client.get()).value);
  const auto b = shm::rendezvous_name(shm::connection_end(connection->server.get()).value);
  EXPECT_EQ(a.view(), b.view());
  EXPECT_EQ(a.view().size(), 64U);
  EXPECT_TRUE(a.view().starts_with("meet-"));
  const Connection other;
  EXPECT_NE(a.view(), shm::rendezvous_name(shm::connection_end(other.client.get()).value).view());
}

TEST_F(RendezvousTest, NobodyComes_EndsAtTheDeadline) {
  host();
  EXPECT_EQ(us.next_timeout(), kDeadline);
  EXPECT_EQ(us.step(kDeadline - 1ns), State::kWaiting);
  EXPECT_EQ(us.step(kDeadline), State::kRefused);
  EXPECT_EQ(us.refusal(), Refusal::kTimedOut);
  EXPECT_EQ(us.descriptor(), -1);
}

TEST_F(RendezvousTest, WhatIsNoConnection_IsRefusedAtOnce) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  const Descriptor datagram(::socket(AF_INET, SOCK_DGRAM, 0));
  const Descriptor null(::open("/dev/null", O_RDONLY));
  for (const int fd : {listener.get(), datagram.get(), null.get(), -1}) {
    EXPECT_EQ(us.begin(meeting_folder(), fd, kStart, kDeadline), State::kRefused);
    EXPECT_EQ(us.refusal(), Refusal::kNotConnected);
  }
}

TEST_F(RendezvousTest, ConnectedToItself_IsRefused) {
  const Descriptor self(::socket(AF_INET, SOCK_STREAM, 0));
  Loopback own(Family::kV4);
  socklen_t bytes = own.bytes;
  ASSERT_EQ(::bind(self.get(), own.address(), own.bytes), 0);
  ASSERT_EQ(::getsockname(self.get(), own.address(), &bytes), 0);
  ASSERT_EQ(::connect(self.get(), own.address(), own.bytes), 0);
  EXPECT_EQ(us.begin(meeting_folder(), self.get(), kStart, kDeadline), State::kRefused);
  EXPECT_EQ(us.refusal(), Refusal::kSelfConnected);
}

TEST_F(RendezvousTest, HalfClosed_IsRefusedByWhatTheKernelsTableSays) {
  ASSERT_EQ(::shutdown(connection->client.get(), SHUT_WR), 0);
  host();
  shm::Channel guest = visit(connection->server.get());
  us.step(kStart);
  EXPECT_EQ(hear(guest).kind, MessageKind::kWelcome);
  shm::say_end(guest, MessageKind::kProof, connection->client.get());
  us.step(kStart);
  EXPECT_EQ(hear(guest).reason, Refusal::kNotConnected);
}

TEST_F(RendezvousTest, TheOtherEnd_IsInTheKernelsTable) {
  EXPECT_TRUE(shm::other_end_is_here(connection->client.get()));
  EXPECT_TRUE(shm::other_end_is_here(connection->server.get()));
  EXPECT_FALSE(shm::other_end_is_here(STDIN_FILENO));
}

TEST_F(RendezvousTest, HostHasBoundButDoesNotListenYet_GuestComesAgain) {
  const Squatter slow(connection->server.get(), SOCK_SEQPACKET, false);
  EXPECT_EQ(us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline), State::kWaiting);
  EXPECT_EQ(us.descriptor(), -1);
  const Instant again = us.next_timeout();
  EXPECT_LT(again, kStart + 1ms);
  ASSERT_EQ(::listen(slow.get(), 1), 0);
  EXPECT_EQ(us.step(again), State::kWaiting);
  EXPECT_NE(us.descriptor(), -1);
  EXPECT_TRUE(accept_one(slow).is_open());
}

TEST_F(RendezvousTest, HostDiesBeforeItSpeaks_TheGuestTakesItsPlace) {
  peer.begin(meeting_folder(), connection->client.get(), kStart, kDeadline);
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  peer = {};
  Instant now = kStart;
  for (; now < kStart + 1s; now += 1ms) us.step(now);
  ASSERT_EQ(us.state(), State::kWaiting);
  peer.begin(meeting_folder(), connection->client.get(), now, kDeadline);
  settle(now, us, peer);
  EXPECT_EQ(us.state(), State::kProven);
  EXPECT_EQ(us.role(), shm::Role::kHost);
  EXPECT_EQ(peer.state(), State::kProven);
}

// --- A process that comes to our name

TEST_F(RendezvousTest, SilentStranger_MakesRoomForTheOtherEnd) {
  host();
  const shm::Channel stranger = visit(connection->server.get());
  EXPECT_EQ(us.step(kStart), State::kWaiting);
  EXPECT_EQ(us.next_timeout(), kStart + Rendezvous::kGuestPatience);
  peer.begin(meeting_folder(), connection->client.get(), kStart, kDeadline);
  const Instant end = settle(kStart, us, peer);
  EXPECT_LE(end, kStart + Rendezvous::kGuestPatience + 2ms);
  EXPECT_EQ(us.state(), State::kProven);
  EXPECT_EQ(peer.state(), State::kProven);
}

TEST_F(RendezvousTest, GuestThatIsTooLate_ComesAgain) {
  host();
  peer.begin(meeting_folder(), connection->client.get(), kStart, kDeadline);
  EXPECT_EQ(us.step(kStart), State::kWaiting);  // it is welcome, and is not running
  const Instant late = kStart + Rendezvous::kGuestPatience;
  EXPECT_EQ(us.step(late), State::kWaiting);
  settle(late, us, peer);
  EXPECT_EQ(us.state(), State::kProven);
  EXPECT_EQ(peer.state(), State::kProven);
}

TEST_F(RendezvousTest, StrangersWithoutEnd_CostABoundedTime) {
  host();
  std::vector<shm::Channel> strangers;
  Instant now = kStart;
  for (; us.step(now) == State::kWaiting; now += 1ms)
    if (strangers.size() < 2 * Rendezvous::kMostGuests && us.descriptor() != -1)
      if (shm::Channel next = visit(connection->server.get()); next.is_open()) strangers.push_back(std::move(next));
  EXPECT_EQ(us.refusal(), Refusal::kTooManyStrangers);
  EXPECT_LE(now, kStart + Rendezvous::kMostGuests * (Rendezvous::kGuestPatience + 1ms));
}

/// What another process may send instead of a proof, and what it is answered.
struct Forgery {
  const char* name;
  Refusal expected;
  /// `kind`: what is due, the guest's kProof or the host's kWelcome.
  std::function<void(const Connection& connection, shm::Channel& to, MessageKind kind)> send;
};

void claim(shm::Channel& to, MessageKind kind, int number) {
  shm::Message proof = message_of(kind);
  proof.number = number;
  to.send(bytes_of(proof));
}

const std::vector<Forgery>& forgeries() {
  static const std::vector<Forgery> all = {
      {"NoNumber", Refusal::kNoProof,
       [](const Connection&, shm::Channel& to, MessageKind kind) { shm::say(to, kind); }},
      {"NotOpen", Refusal::kWrongConnection,
       [](const Connection&, shm::Channel& to, MessageKind kind) { claim(to, kind, 1'000'000); }},
      {"Null", Refusal::kWrongConnection,
       [](const Connection&, shm::Channel& to, MessageKind kind) {
         const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
         claim(to, kind, null.get());
       }},
      {"AnotherConnectionsEnd", Refusal::kWrongConnection,
       [](const Connection&, shm::Channel& to, MessageKind kind) {
         const Connection other;
         claim(to, kind, other.client.get());
       }},
      {"OurOwnEnd", Refusal::kWrongConnection,
       [](const Connection& connection, shm::Channel& to, MessageKind kind) {
         claim(to, kind, connection.server.get());
       }},
      {"Unix", Refusal::kWrongConnection,
       [](const Connection&, shm::Channel& to, MessageKind kind) { claim(to, kind, to.descriptor()); }},
      {"FirstByteAlone", Refusal::kBadMessage,
       [](const Connection&, shm::Channel& to, MessageKind kind) {
         const shm::Message proof = message_of(kind);
         to.send(bytes_of(proof).first(1));
       }},
      {"Empty", Refusal::kPeerGone, [](const Connection&, shm::Channel& to, MessageKind) { to.send({}); }},
      {"TooLong", Refusal::kBadMessage,
       [](const Connection&, shm::Channel& to, MessageKind) {
         const std::array<std::byte, 1000> zeros{};
         to.send(zeros);
       }},
      {"AMessageOutOfTurn", Refusal::kBadMessage,
       [](const Connection&, shm::Channel& to, MessageKind) { shm::say(to, MessageKind::kSegment); }},
      {"AnotherVersion", Refusal::kOtherVersion,
       [](const Connection&, shm::Channel& to, MessageKind kind) {
         shm::Message newer = message_of(kind);
         newer.version++;
         to.send(bytes_of(newer));
       }},
  };
  return all;
}

class RendezvousForgery : public ::testing::TestWithParam<Forgery> {};

TEST_P(RendezvousForgery, BroughtByAGuest_IsRefusedWithItsReason_AndTheOtherEndStillComes) {
  const std::size_t before = open_descriptors();
  {
    const Connection connection;
    Rendezvous us, peer;
    us.begin(meeting_folder(), connection.server.get(), kStart, kDeadline);
    shm::Channel stranger = visit(connection.server.get());
    us.step(kStart);
    EXPECT_EQ(hear(stranger).kind, MessageKind::kWelcome);
    GetParam().send(connection, stranger, MessageKind::kProof);
    EXPECT_EQ(us.step(kStart), State::kWaiting);
    const shm::Message answer = hear(stranger);
    EXPECT_EQ(answer.kind, MessageKind::kRefused);
    EXPECT_STREQ(to_string(answer.reason), to_string(GetParam().expected));
    peer.begin(meeting_folder(), connection.client.get(), kStart, kDeadline);
    settle(kStart, us, peer);
    EXPECT_EQ(us.state(), State::kProven);
    EXPECT_EQ(peer.state(), State::kProven);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(RendezvousForgery, SaidBySomebodyWithTheName_IsRefused) {
  const std::size_t before = open_descriptors();
  {
    const Connection connection;
    const Squatter name(connection.server.get());
    Rendezvous us;
    us.begin(meeting_folder(), connection.server.get(), kStart, kDeadline);
    shm::Channel host = accept_one(name);
    GetParam().send(connection, host, MessageKind::kWelcome);
    const bool gone = GetParam().expected == Refusal::kPeerGone;  // it looks for another host
    EXPECT_EQ(us.step(kStart), gone ? State::kWaiting : State::kRefused);
    if (!gone) {
      EXPECT_STREQ(to_string(us.refusal()), to_string(GetParam().expected));
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}
INSTANTIATE_TEST_SUITE_P(All, RendezvousForgery, ::testing::ValuesIn(forgeries()),
                         [](const auto& each) { return std::string(each.param.name); });

// --- A process that has our name

TEST_F(RendezvousTest, NameTaken_ByOneWhoDoesNotListenOrOfAnotherKind_EndsAtTheDeadline) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM}) {
    const Squatter name(connection->server.get(), type, type == SOCK_STREAM);
    us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
    unsigned tries = 0;
    while (us.state() == State::kWaiting && tries < 10000) us.step(us.next_timeout()), tries++;
    EXPECT_EQ(us.refusal(), Refusal::kTimedOut);
    EXPECT_LT(tries, 600U);  // every 20 ms
  }
}

TEST_F(RendezvousTest, NameTaken_ByASilentOne_EndsAtTheDeadline) {
  const Squatter name(connection->server.get());
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  EXPECT_EQ(us.next_timeout(), kDeadline);
  us.step(kDeadline);
  EXPECT_EQ(us.refusal(), Refusal::kTimedOut);
}

TEST_F(RendezvousTest, NameTaken_ByOneWhoHangsUp_IsTriedAFewTimes) {
  const Squatter name(connection->server.get());
  ASSERT_EQ(::fcntl(name.get(), F_SETFL, O_NONBLOCK), 0);
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  unsigned hosts = 0;
  for (Instant now = kStart; us.step(now) == State::kWaiting; now += 20ms) hosts += accept_one(name).is_open();
  EXPECT_EQ(us.refusal(), Refusal::kPeerGone);
  EXPECT_EQ(hosts, 8U);
}

/// The process that has the name says that it has the other end. It has the end of another connection.
TEST_F(RendezvousTest, NothingIsSaid_ToAHostWithoutTheEnd) {
  const Squatter name(connection->server.get());
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  shm::Channel host = accept_one(name);
  const Connection other;
  shm::say_end(host, MessageKind::kWelcome, other.client.get());
  us.step(kStart);
  EXPECT_EQ(us.refusal(), Refusal::kWrongConnection);
  EXPECT_EQ(hear(host).kind, MessageKind::kRefused);
}

/// A descriptor cannot come where it is not allowed. Before Linux 6.16 it is closed and refused.
TEST_F(RendezvousTest, ProofWithADescriptor_IsNone) {
  host();
  shm::Channel guest = visit(connection->server.get());
  us.step(kStart);
  EXPECT_EQ(hear(guest).kind, MessageKind::kWelcome);
  shm::Message proof = message_of(MessageKind::kProof);
  proof.number = connection->client.get();
  const std::array<int, 1> passed = {connection->client.get()};
  const bool sent = send_many(guest, bytes_of(proof), passed);
  us.step(kStart);
  EXPECT_EQ(us.state(), State::kWaiting);
  if (sent) {
    EXPECT_EQ(hear(guest).reason, Refusal::kTooManyDescriptors);
  }
}

TEST_F(RendezvousTest, NoProofIsGiven_BeforeTheHostHasSpoken) {
  const Squatter name(connection->server.get());
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  shm::Channel host = accept_one(name);
  us.step(kStart);
  std::array<std::byte, 64> room;
  EXPECT_EQ(host.receive(room).kind, shm::Channel::Received::Kind::kNothing);
  shm::say(host, MessageKind::kProof);
  us.step(kStart);
  EXPECT_EQ(us.refusal(), Refusal::kBadMessage);
}

TEST_F(RendezvousTest, Refused_TheGuestHasTheHostsReason) {
  const Squatter name(connection->server.get());
  us.begin(meeting_folder(), connection->server.get(), kStart, kDeadline);
  shm::Channel host = accept_one(name);
  shm::say(host, MessageKind::kRefused, Refusal::kNoResources);
  us.step(kStart);
  EXPECT_EQ(us.state(), State::kRefused);
  EXPECT_EQ(us.refusal(), Refusal::kNoResources);
}

TEST_F(RendezvousTest, NoNumberIsFree_IsARefusal) {
  host();
  rlimit limit{}, none{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const shm::Channel stranger = visit(connection->server.get());
  none = {0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  us.step(kStart);
  const State guest = peer.begin(meeting_folder(), connection->client.get(), kStart, kDeadline);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(us.refusal(), Refusal::kNoResources);
  EXPECT_EQ(guest, State::kRefused);
  EXPECT_EQ(peer.refusal(), Refusal::kNoResources);
}

}  // namespace
}  // namespace bypass::test
