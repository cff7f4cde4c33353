// A connection's life between two managers, and each way in which it ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/cm/two_managers.h"

namespace bypass::cm::test {
namespace {

using namespace std::chrono_literals;

std::size_t times(const World& world, Message message) {
  return static_cast<std::size_t>(std::count(world.sent.begin(), world.sent.end(), message));
}

class ConnectionOf : public ::testing::TestWithParam<bool> {};

TEST_P(ConnectionOf, CarriesNumbersAndDataBothWays) {
  World world;
  const bool v6 = GetParam();
  const IdNumber listener = world.b().make_listener(7, kSpaceTcp, v6);
  const IdNumber client = world.a().make_routed(7, kSpaceTcp, v6);
  ASSERT_EQ(world.a().manager().connect(client, with_data(17, "hello"), world.now), 0);
  world.run_for({});
  const Happened request = world.b().expect(Event::kConnectRequest);
  EXPECT_EQ(request.listener, listener);
  EXPECT_EQ(request.parameters.qpn, 17U);
  EXPECT_EQ(request.parameters.data_bytes, 56U);
  EXPECT_TRUE(begins_with(request.parameters, "hello"));
  // What one end reads the other one answers.
  EXPECT_EQ(request.parameters.responder_resources, 5);
  EXPECT_EQ(request.parameters.initiator_depth, 3);
  const Id& passive = *world.b().manager().find(request.id);
  EXPECT_EQ(passive.destination.address, ip(0, v6));
  EXPECT_EQ(passive.destination.port, world.a().manager().find(client)->source.port);
  EXPECT_EQ(passive.source, (Endpoint{ip(1, v6), 7}));

  const Parameters answer = with_data(34, "welcome");
  ASSERT_EQ(world.b().manager().accept(request.id, &answer, world.now), 0);
  world.run_for({});
  const Happened response = world.a().expect(Event::kConnectResponse);
  EXPECT_EQ(response.parameters.qpn, 34U);
  EXPECT_EQ(response.parameters.data_bytes, 196U);
  EXPECT_TRUE(begins_with(response.parameters, "welcome"));
  // The PSN that an end tells is the one from which its peer sends (12.7.31).
  const Id& active = *world.a().manager().find(client);
  EXPECT_EQ(active.peer_psn, passive.own_psn);
  EXPECT_EQ(passive.peer_psn, active.own_psn);
  EXPECT_TRUE(world.b().is_quiet());
  ASSERT_EQ(world.a().manager().accept(client, nullptr, world.now), 0);
  world.run_for({});
  world.b().expect(Event::kEstablished);
  EXPECT_EQ(world.a().manager().next_timeout(), kNever);
  EXPECT_EQ(world.b().manager().next_timeout(), kNever);
}

INSTANTIATE_TEST_SUITE_P(Family, ConnectionOf, ::testing::Bool());

TEST(Connection, EndsAtBothEndsWithTimeWait) {
  World world;
  IdNumber a = 0, b = 0;
  world.connect(a, b);
  ASSERT_EQ(world.a().manager().disconnect(a, world.now), 0);
  world.run_for(1ms);
  world.b().expect(Event::kDisconnected);
  EXPECT_TRUE(world.a().is_quiet());  // until the peer's program answers
  ASSERT_EQ(world.b().manager().disconnect(b, world.now), 0);
  world.run_for(1ms);
  world.a().expect(Event::kDisconnected);
  world.run_for(1s);
  world.a().expect(Event::kTimewaitExit);
  world.b().expect(Event::kTimewaitExit);
  EXPECT_EQ(world.a().manager().disconnect(a, world.now), 0);
  EXPECT_TRUE(world.a().is_quiet());
}

TEST(Connection, EndsIfAnIdIsDestroyed) {
  World world;
  IdNumber a = 0, b = 0;
  world.connect(a, b);
  EXPECT_EQ(world.a().manager().destroy(a, world.now), 0);
  world.run_for(1ms);
  world.b().expect(Event::kDisconnected);
  EXPECT_EQ(world.b().manager().destroy(b, world.now), 0);
  EXPECT_EQ(world.a().manager().destroy(a, world.now), ENOENT);
  EXPECT_EQ(world.a().manager().count(), 0U);
  EXPECT_EQ(world.b().manager().count(), 1U);  // the listener
  EXPECT_EQ(world.b().manager().next_timeout(), kNever);
}

TEST(Connection, IsRefusedWithoutAListener) {
  World world;
  const IdNumber client = world.a().make_routed(7);
  ASSERT_EQ(world.a().manager().connect(client, with_data(17), world.now), 0);
  world.run_for(1ms);
  EXPECT_EQ(world.a().expect(Event::kRejected).status, 8);
  EXPECT_EQ(world.a().manager().connect(client, with_data(17), world.now), EINVAL);
}

TEST(Connection, IsRefusedByTheProgramWithItsData) {
  World world;
  world.b().make_listener(7);
  const IdNumber client = world.a().make_routed(7);
  world.a().manager().connect(client, with_data(17), world.now);
  world.run_for(1ms);
  const IdNumber passive = world.b().expect(Event::kConnectRequest).id;
  const Parameters no = with_data(0, "not today");
  ASSERT_EQ(world.b().manager().reject(passive, {no.data.data(), no.data_bytes}, 0, world.now), 0);
  world.run_for(1ms);
  const Happened rejected = world.a().expect(Event::kRejected);
  EXPECT_EQ(rejected.status, 28);
  EXPECT_EQ(rejected.parameters.data_bytes, 148U);
  EXPECT_TRUE(begins_with(rejected.parameters, "not today"));
  EXPECT_EQ(world.b().manager().accept(passive, &no, world.now), EINVAL);
}

TEST(Connection, SurvivesTheLossOfEachMessageOnce) {
  for (const Message lost :
       {Message::kRequest, Message::kReply, Message::kReady, Message::kDisconnectRequest, Message::kDisconnectReply}) {
    World world;
    bool done = false;
    world.passes = [&](Message message) { return message != lost || std::exchange(done, true); };
    world.b().make_listener(7);
    const IdNumber client = world.a().make_routed(7);
    world.a().manager().connect(client, with_data(17), world.now);
    world.run_for(5s);
    const IdNumber passive = world.b().expect(Event::kConnectRequest).id;
    const Parameters answer = with_data(34);
    ASSERT_EQ(world.b().manager().accept(passive, &answer, world.now), 0);
    world.run_for(5s);
    world.a().expect(Event::kConnectResponse);
    ASSERT_EQ(world.a().manager().accept(client, nullptr, world.now), 0);
    world.run_for(80s);  // the answer is repeated late: its first repetition was answered with a plea for time
    world.b().expect(Event::kEstablished);
    ASSERT_EQ(world.a().manager().disconnect(client, world.now), 0);
    world.run_for(5s);
    world.b().expect(Event::kDisconnected);
    ASSERT_EQ(world.b().manager().disconnect(passive, world.now), 0);
    world.run_for(10s);
    world.a().expect(Event::kDisconnected);
    EXPECT_TRUE(done);
  }
}

TEST(Connection, IsUnreachableAfterSixteenRequests) {
  World world;
  world.passes = [](Message) { return false; };
  const IdNumber client = world.a().make_routed(7);
  world.a().manager().connect(client, with_data(17), world.now);
  world.run_for(70s);
  EXPECT_TRUE(world.a().is_quiet());
  world.run_for(5s);
  EXPECT_EQ(world.a().expect(Event::kUnreachable).status, -ETIMEDOUT);
  EXPECT_EQ(times(world, Message::kRequest), 16U);
  EXPECT_EQ(world.a().manager().next_timeout(), kNever);
}

// The peer's manager is alive, and asks for more time than the requests would take.
TEST(Connection, WaitsForAProgramThatThinks) {
  World world;
  world.b().make_listener(7);
  const IdNumber client = world.a().make_routed(7);
  world.a().manager().connect(client, with_data(17), world.now);
  world.run_for(300s);
  const IdNumber passive = world.b().expect(Event::kConnectRequest).id;
  EXPECT_TRUE(world.b().is_quiet());  // repetitions are the same request
  EXPECT_GT(times(world, Message::kProlong), 0U);
  EXPECT_LT(times(world, Message::kRequest), 16U);
  const Parameters answer = with_data(34);
  ASSERT_EQ(world.b().manager().accept(passive, &answer, world.now), 0);
  world.run_for(1ms);
  world.a().expect(Event::kConnectResponse);
}

TEST(Connection, AnAnswerThatNobodyConfirmsEndsToo) {
  World world;
  world.b().make_listener(7);
  const IdNumber client = world.a().make_routed(7);
  world.a().manager().connect(client, with_data(17), world.now);
  world.run_for(1ms);
  const IdNumber passive = world.b().expect(Event::kConnectRequest).id;
  world.passes = [](Message) { return false; };
  const Parameters answer = with_data(34);
  world.b().manager().accept(passive, &answer, world.now);
  world.run_for(80s);
  EXPECT_EQ(world.b().expect(Event::kUnreachable).status, -ETIMEDOUT);
}

TEST(Connection, AQuickPeersFirstPacketIsAsGoodAsItsMessage) {
  World world;
  world.b().make_listener(7);
  const IdNumber client = world.a().make_routed(7);
  world.a().manager().connect(client, with_data(17), world.now);
  world.run_for(1ms);
  const IdNumber passive = world.b().expect(Event::kConnectRequest).id;
  const Parameters answer = with_data(34);
  world.b().manager().accept(passive, &answer, world.now);
  EXPECT_EQ(world.b().manager().note_established(passive, world.now), 0);
  world.b().expect(Event::kEstablished);
  EXPECT_EQ(world.b().manager().note_established(passive, world.now), EISCONN);
}

// A process that was killed comes again with the same queue pair number.
TEST(Connection, ANewOneEndsItsPredecessor) {
  World world;
  IdNumber a = 0, b = 0;
  world.connect(a, b);
  const IdNumber again = world.a().make_routed(7);
  world.a().manager().connect(again, with_data(17), world.now);
  world.run_for(1ms);
  EXPECT_EQ(world.b().expect(Event::kDisconnected).id, b);
  EXPECT_NE(world.b().expect(Event::kConnectRequest).id, b);
}

TEST(Connection, EndsInEachStateIfThePeerIsLost) {
  World world;
  IdNumber a = 0, b = 0;
  world.connect(a, b);
  world.a().manager().on_peer_lost(0, world.now);
  world.a().expect(Event::kDisconnected);
  const IdNumber second = world.a().make_routed(7);
  world.a().manager().connect(second, with_data(18), world.now);
  world.run_for(1ms);
  const IdNumber requested = world.b().expect(Event::kConnectRequest).id;
  world.b().manager().on_peer_lost(0, world.now);
  EXPECT_EQ(world.b().expect(Event::kDisconnected).id, b);
  EXPECT_EQ(world.b().expect(Event::kRejected).id, requested);
  const Parameters answer = with_data(34);
  EXPECT_EQ(world.b().manager().accept(requested, &answer, world.now), EINVAL);
  world.run_for(1s);
  world.b().expect(Event::kTimewaitExit);
  EXPECT_EQ(world.b().manager().next_timeout(), kNever);
}

TEST(Connection, TheBacklogBoundsWhatAPeerCanTake) {
  World world;
  world.b().make_listener(7);
  world.b().room = 2;
  for (std::uint32_t i = 0; i < 4; i++) {
    const IdNumber client = world.a().make_routed(7);
    world.a().manager().connect(client, with_data(17 + i), world.now);
  }
  world.run_for(1ms);
  EXPECT_EQ(world.b().manager().count(), 3U);
  world.b().room = 1;
  world.run_for(5s);  // the requests come again
  EXPECT_EQ(world.b().manager().count(), 4U);
}

// Only the peer itself, by both numbers, may speak of a connection.
TEST(Connection, OthersCannotEndIt) {
  World world;
  IdNumber a = 0, b = 0;
  world.connect(a, b);
  const Id& id = *world.b().manager().find(b);
  const MadHead head{1, Message::kDisconnectRequest, id.remote, id.local};
  const Mad mad = make_disconnect_request(head, id.qpn);
  world.b().manager().on_mad(0, IpAddress::from_v4(0x0a090003), ip(1), mad, world.now);
  EXPECT_EQ(id.state, State::kEstablished);
  world.b().manager().on_mad(0, ip(0), ip(1), make_disconnect_request(head, id.qpn + 1), world.now);
  EXPECT_EQ(id.state, State::kEstablished);
  MadHead other = head;
  other.local++;
  world.b().manager().on_mad(0, ip(0), ip(1), make_disconnect_request(other, id.qpn), world.now);
  EXPECT_EQ(id.state, State::kEstablished);
  world.b().manager().on_mad(0, ip(0), ip(1), mad, world.now);
  EXPECT_EQ(id.state, State::kDisconnectReceived);
}

}  // namespace
}  // namespace bypass::cm::test
