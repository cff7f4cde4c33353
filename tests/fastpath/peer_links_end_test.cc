// Links, and connections on them, that end: what goes on, what comes back, and that nothing is left.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fastpath/peer_world.h"

namespace bypass::fastpath::test {
namespace {

using Stage = PeerLink::Stage;
using Connection = PeerWorld::Connection;

// --- The end of a link

TEST(PeerLinks, PeerThatKnowsTheLinkNoMore_IsAskedForAnother) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.close(c, 0);
  world.close(c, 1);
  ASSERT_TRUE(world.run_until([&] { return world.link(1)->listed == 0; }, 1s));
  world.links(1).owner().drop_devices(world.host(1).ctx());
  world.begin_ownership(1);
  ASSERT_EQ(world.link(0)->stage, Stage::kUp);
  Connection& d = world.open();
  EXPECT_TRUE(world.transfer(d, 0, 10'000));
  world.run_for(1s);
  EXPECT_TRUE(world.reach_lane(d));
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_made, 2U);
}

TEST(PeerLinks, DeadLink_ConnectionsGoOnAndGetAnother) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  int kills = 0, turns = 0;
  const bool all = world.transfer(c, 0, 2'000'000, [&] {
    if (++turns % 100 == 50 && world.on_lane(c)) world.yard.newest->kill(), kills++;
  });
  EXPECT_TRUE(all);
  EXPECT_GE(kills, 1);
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_failed, static_cast<std::uint64_t>(kills));
  world.run_for(30s);
  EXPECT_TRUE(world.reach_lane(c));
  EXPECT_TRUE(world.transfer(c, 1, 50'000));
}

TEST(PeerLinks, FailedByHand_BothEndsComeBack) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  for (int i = 0; i < 5; i++) {
    EXPECT_EQ(world.links(i % 2).fail_all(), 1U);
    EXPECT_TRUE(world.transfer(c, 0, 30'000));
    EXPECT_TRUE(world.transfer(c, 1, 30'000));
    world.run_for(20s);
    EXPECT_TRUE(world.reach_lane(c)) << i;
  }
}

TEST(PeerLinks, OwnerGoes_ConnectionsGoOnOverTcp) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  EXPECT_NE(world.write(c, 0, std::vector<std::byte>(5000, std::byte{7})), 0U);
  world.links(1).owner().drop_devices(world.host(1).ctx());
  std::string got;
  EXPECT_TRUE(world.run_until([&] { return (got += world.read(c, 1)).size() == 5000; }, 5s));
  EXPECT_TRUE(world.transfer(c, 0, 40'000));
  EXPECT_TRUE(world.transfer(c, 1, 40'000));
  EXPECT_FALSE(world.on_lane(c));
}

TEST(PeerLinks, OwnerDiesUnseen_NextOwnerSaysSo) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.stopped[1] = true;  // the one that had the device is gone, and its memory of it with it
  EXPECT_NE(world.write(c, 0, std::vector<std::byte>(5000, std::byte{7})), 0U);
  world.run_for(5ms);
  world.yard.newest->kill();
  world.links(1).owner().forget_devices();
  world.begin_ownership(1);
  world.stopped[1] = false;
  std::string got;
  EXPECT_TRUE(world.run_until([&] { return (got += world.read(c, 1)).size() == 5000; }, 5s));
  EXPECT_TRUE(world.transfer(c, 1, 40'000));
  world.run_for(5s);
  EXPECT_TRUE(world.reach_lane(c));
}

// --- The end of a connection

TEST(PeerLinks, ClosedInOrder_LeavesNothing) {
  PeerWorld world;
  for (int i = 0; i < 40; i++) {
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c)) << i;
    EXPECT_TRUE(world.transfer(c, 0, 3000));
    world.close(c, i % 2);
    EXPECT_TRUE(
        world.run_until([&] { return world.links((i + 1) % 2).framed().peer_has_ended(*c.tcb[1 - i % 2]); }, 1s));
    world.close(c, 1 - i % 2);
    world.run_for(10ms);
  }
  world.run_for(2s);
  EXPECT_EQ(world.link(0)->listed, 0U);
  EXPECT_EQ(world.link(1)->listed, 0U);
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_failed, 0U);
}

TEST(PeerLinks, Aborted_PeerSeesItAndLaneIsFreed) {
  PeerWorld world;
  for (int i = 0; i < 20; i++) {
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c)) << i;
    EXPECT_NE(world.write(c, 0, std::vector<std::byte>(3000, std::byte{1})), 0U);
    world.abort(c, i % 2);
    const std::size_t other = 1 - i % 2;
    EXPECT_TRUE(world.run_until([&] { return c.tcb[other]->state == tcp::State::kClosed; }, 1s));
    EXPECT_EQ(c.tcb[other]->error, Error::kReset);
    world.close(c, other);
    world.run_for(10ms);
  }
  world.run_for(1s);
  EXPECT_EQ(world.link(0)->listed, 0U);
  EXPECT_EQ(world.link(1)->listed, 0U);
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_failed, 0U);
}

// A peer that keeps its acknowledgements back and says all the same that it has everything: the device may still send
// the bytes again, and another connection's must not lie there by then.
TEST(PeerLinks, DeviceHasNotDone_SendRingStaysWhereItIs) {
  for (const bool aborts : {false, true}) {
    PeerWorld world;
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    ASSERT_TRUE(world.transfer(c, 0, 3000));
    const std::size_t before = world.host(0).memory().stats().used_bytes;
    sim::SimLink& device = world.yard.newest->end(0);
    device.hold_completions(true);
    aborts ? world.abort(c, 0) : world.close(c, 0);
    world.run_for(10ms);
    aborts ? world.close(c, 1) : world.abort(c, 1);
    world.run_for(5s);
    EXPECT_EQ(world.link(0)->listed, 1U) << aborts;
    EXPECT_EQ(world.link(1)->listed, 0U) << aborts;
    const std::size_t held = world.host(0).memory().stats().used_bytes;
    device.hold_completions(false);
    EXPECT_TRUE(world.run_until([&] { return world.link(0)->listed == 0; }, 1s)) << aborts;
    EXPECT_LT(world.host(0).memory().stats().used_bytes, held) << aborts;
    EXPECT_LE(world.host(0).memory().stats().used_bytes, before) << aborts;
    EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_failed, 0U);
  }
}

}  // namespace
}  // namespace bypass::fastpath::test
