// PeerLinks: links come up, are used, die and come up again. Connections never notice.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fastpath/peer_world.h"

namespace bypass::fastpath::test {
namespace {

using Stage = PeerLink::Stage;
using Connection = PeerWorld::Connection;

// --- The layout of a link's memory

TEST(LinkLayout, NothingOverlaps) {
  for (std::uint32_t bytes = LinkLayout::kLeast; bytes <= LinkLayout::kMost; bytes *= 2) {
    const LinkLayout layout(bytes);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges{{0, sizeof(LinkBlock)}};
    for (std::uint32_t i = 0; i < layout.lanes(); i++) {
      const LaneAddress at = layout.address(i);
      EXPECT_EQ(at.lane, i);
      EXPECT_EQ(LinkLayout::kRingLog2[layout.size_of(i)], at.ring_log2);
      ranges.emplace_back(at.ring, at.ring + (std::uint64_t{1} << at.ring_log2));
      ranges.emplace_back(at.credit, at.credit + sizeof(CreditBlock));
    }
    std::sort(ranges.begin(), ranges.end());
    EXPECT_LE(ranges.back().second, bytes);
    for (std::size_t i = 1; i < ranges.size(); i++) ASSERT_LE(ranges[i - 1].second, ranges[i].first) << bytes;
  }
}

TEST(LinkLayout, LargestLink_HasLanesForTenThousand) {
  EXPECT_GE(LinkLayout(LinkLayout::kMost).lanes(), 10'000U);
  EXPECT_LT(LinkLayout(LinkLayout::kMost).lanes(), kNoLane);
}

// --- The first link

TEST(PeerLinks, FirstConnection_GetsALinkAndALane) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  EXPECT_EQ(world.link(0)->stage, Stage::kUp);
  EXPECT_TRUE(world.link(1)->asked_by_peer);
  EXPECT_TRUE(world.transfer(c, 0, 300'000));
  EXPECT_TRUE(world.transfer(c, 1, 300'000));
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_made, 1U);
  EXPECT_EQ(world.links(0).link_of(*c.tcb[0]), world.link(0));
}

TEST(PeerLinks, BytesFlow_WhileTheLinkIsBeingMade) {
  PeerWorld world;
  world.yard.silent = true;
  Connection& c = world.open();
  EXPECT_TRUE(world.transfer(c, 0, 100'000));
  EXPECT_TRUE(world.transfer(c, 1, 100'000));
  EXPECT_FALSE(world.on_lane(c));
}

TEST(PeerLinks, LaterConnections_ShareTheLink) {
  PeerWorld world;
  Connection& first = world.open();
  ASSERT_TRUE(world.run_until([&] { return world.on_lane(first); }, 1s));
  for (int i = 0; i < 20; i++) {
    Connection& c = world.open();
    EXPECT_TRUE(world.reach_lane(c));
    EXPECT_TRUE(world.transfer(c, i % 2, 20'000));
  }
  EXPECT_EQ(world.links(0).table().count(Mover::kRc).links_made, 1U);
  EXPECT_EQ(world.links(1).table().count(Mover::kRc).links_made, 1U);
}

TEST(PeerLinks, RefusedLink_IsAskedForAgainLater) {
  PeerWorld world;
  world.yard.refuses = true;
  Connection& c = world.open();
  EXPECT_TRUE(world.transfer(c, 0, 20'000));
  EXPECT_TRUE(world.run_until([&] { return world.link(0) == nullptr; }, 100ms));
  EXPECT_EQ(world.links(0).table().links[0].stage, Stage::kRefused);
  EXPECT_EQ(world.links(0).table().links[0].reason, Reason::kPolicy);
  world.yard.refuses = false;
  world.run_for(1s);
  EXPECT_TRUE(world.transfer(c, 0, 20'000));
  EXPECT_TRUE(world.reach_lane(c));
}

// The asker chooses the tag, but not its address. Nothing here has shown that it can use a link.
TEST(PeerLinks, RequestsOfOneAddress_TakeLittle) {
  PeerWorld world(1, 0);
  world.yard.silent = true;
  Connection& c = world.open();
  ASSERT_TRUE(FramedTcp::has(*c.tcb[1]));
  Framed& framed = FramedTcp::of(*c.tcb[1]);
  const auto ask = [&](std::uint32_t id) {
    std::visit([id](auto& handshake) { const_cast<SynOption&>(handshake.peer()).tag = id; }, framed.handshake);
    world.yard.cables[id] = nullptr;
    std::array<std::byte, kMaxLinkBody> body{};
    Record record{.type = RecordType::kLinkReq, .link = id};
    record.length = static_cast<std::uint32_t>(encode(LinkHead{.link = id, .mover = Mover::kRc}, body));
    world.links(1).on_link_record(world.host(1).ctx(), *c.tcb[1], framed, record, std::span(body).first(record.length));
  };
  for (std::uint32_t id = 1000; id < 1040; id++) ask(id);
  std::uint32_t with_memory = 0;
  std::size_t least = 0;
  for (const PeerLink& link : world.links(1).table().links) {
    with_memory += link.memory != nullptr ? 1 : 0;
    least += link.bytes == LinkLayout::kLeast ? 1 : 0;
  }
  EXPECT_EQ(with_memory, 4U);
  EXPECT_GE(least, 2U) << "behind the first two, the least";
}

TEST(PeerLinks, PeerWithoutLinks_IsPlain) {
  PeerWorld world;
  world.host(1).ctx().hooks = nullptr;
  Connection& c = world.open();
  EXPECT_FALSE(FramedTcp::has(*c.tcb[0]));
  EXPECT_TRUE(world.transfer(c, 0, 50'000));
}

TEST(PeerLinks, ProcessWithoutDevice_IsPlain) {
  PeerWorld world;
  world.links(0).owner().drop_devices(world.host(0).ctx());
  Connection& c = world.open();
  EXPECT_FALSE(FramedTcp::has(*c.tcb[0]));
  EXPECT_FALSE(FramedTcp::has(*c.tcb[1]));
}

TEST(PeerLinks, CarrierEnds_AnotherConnectionCarriesTheRest) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.run_until([&] { return world.link(0) != nullptr; }, 100ms));
  world.close(c, 0);
  world.close(c, 1);
  world.run_for(5ms);
  ASSERT_NE(world.link(0), nullptr);
  EXPECT_NE(world.link(0)->stage, Stage::kUp);
  Connection& d = world.open();
  EXPECT_TRUE(world.reach_lane(d));
  EXPECT_EQ(world.links(1).table().count(Mover::kRc).links_made, 1U);
}

TEST(PeerLinks, CarrierEndsAtAnyMoment_OthersAreCarried) {
  for (int moment = 0; moment < 400; moment++) {
    for (const std::size_t first : {0U, 1U}) {
      PeerWorld world;
      Connection& c = world.open();
      Connection& d = world.open();
      world.run_for(moment * 1us);
      world.close(c, first);
      (void)world.transfer(d, 0, 10);
      world.close(c, 1 - first);
      EXPECT_TRUE(world.reach_lane(d)) << moment << " us, " << first;
    }
  }
}

// A carrier that has sent its last record is no carrier any more, however long it stays.
TEST(PeerLinks, CarrierHasEndedItsStream_AnotherSpeaksForTheLink) {
  for (int moment = 0; moment < 1600; moment += 40) {
    for (const std::size_t first : {0U, 1U}) {
      PeerWorld world;
      world.yard.proof = moment * 7 % 1000 * 1us;
      world.world().wire().set_impairment({.delay = 200us});
      Connection& c = world.open();
      Connection& d = world.open();
      world.run_for(moment * 1us);
      world.close(c, first);
      world.close(c, 1 - first);
      EXPECT_TRUE(world.reach_lane(d)) << moment << " us, " << first;
    }
  }
}

// --- Lanes of connections that are gone

TEST(PeerLinks, AnswerThatNobodyReads_GivesItsLaneBack) {
  PeerWorld world;
  Connection& c = world.open();
  Connection& other = world.open();
  ASSERT_TRUE(world.reach_lane(c) && world.reach_lane(other));
  const std::array<std::byte, 100> bytes{};
  world.shutdown(c, 0);
  world.run_for(1ms);
  EXPECT_EQ(world.write(c, 1, bytes), bytes.size());
  world.close(c, 1);
  world.run_for(1ms);
  world.close(c, 0);
  EXPECT_TRUE(world.run_until([&] { return world.link(0)->listed == 1 && world.link(1)->listed == 1; }));
  EXPECT_EQ(world.link(0)->first_ghost, kNoLane);
}

// The server writes and ends when its client leaves. Each can do so at any moment of the other's end. Meanwhile later
// connections take the lanes that have become free.
TEST(PeerLinks, ClientsThatLeaveWhileTheyAreWrittenTo_HarmNoOther) {
  const std::array<std::byte, 3000> bytes{};
  std::uint64_t links_lost = 0;
  unsigned others_lost = 0, places_lost = 0;
  for (int moment = 0; moment < 120; moment++) {
    PeerWorld world;
    world.world().wire().set_impairment({.delay = moment / 10 * 250ns});
    ASSERT_TRUE(world.reach_lane(world.open()));
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    (void)world.write(c, 0, std::span(bytes).first(1));
    world.close(c, 0);
    ASSERT_TRUE(world.run_until([&] { return !world.read(c, 1).empty(); }, 1s)) << moment;
    std::vector<Connection*> others{&world.connect()};
    (void)world.write(c, 1, bytes);
    if (moment % 2 != 0) world.run_for(moment % 10 * 500ns);
    world.close(c, 1);
    for (int i = 0; i < 10; i++) {
      world.run_for(400ns);
      others.push_back(&world.connect());
    }
    for (Connection* other : others) world.accept(*other);
    for (Connection* other : others)
      if (!world.transfer(*other, 0, 100) || !world.transfer(*other, 1, 100)) others_lost++;
    for (Connection* other : others) world.close(*other, 0), world.close(*other, 1);
    world.run_for(1ms);
    for (std::size_t side = 0; side < 2; side++) {
      links_lost += world.links(side).table().count(Mover::kRc).links_failed;
      if (world.link(side) != nullptr && world.link(side)->listed != 1) places_lost++;
    }
  }
  EXPECT_EQ(links_lost, 0U);
  EXPECT_EQ(others_lost, 0U);
  EXPECT_EQ(places_lost, 0U);
}

// A client asks, gets an answer and resets, as often as it likes, between the offer of a lane and its answer. Others
// must still find lanes.
TEST(PeerLinks, ManyResetWhileALaneIsOffered_OthersFindLanesAgain) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  const PeerLink* const link = world.link(0);
  for (int i = 0; i < 2000 && link->stage == Stage::kUp && link->listed < link->lanes; i++) {
    Connection& d = world.open();
    ASSERT_TRUE(world.transfer(d, 0, 10));
    (void)world.write(d, 1, std::array{std::byte{1}});
    ASSERT_TRUE(world.run_until([&] { return !world.framed(d, 0)->lane.detached(); }, 20ms));
    world.abort(d, 0);
    world.run_for(200us);
  }
  EXPECT_NE(link->many_ghosts_since, kNever) << "no lane was lost: the test does not meet the moment";
  EXPECT_TRUE(world.run_until([&] { return link->many_ghosts_since == kNever; }, 20s));
  world.run_for(1s);
  EXPECT_TRUE(world.reach_lane(world.open()));
}

// --- A family

TEST(PeerLinks, AnotherProcessWrites_OwnerIsToBeCalled) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  PeerLinks::Config config;
  config.random = [] { return std::uint64_t{5}; };
  // A forked child has the same objects and no device.
  auto& table = const_cast<PeerTable&>(world.links(0).table());
  LaneTable lanes{table.links[0]};
  EXPECT_TRUE(world.links(0).owner().flush(world.host(0).ctx()));
  table.links[0].end.enqueue(FramedTcp::of(*c.tcb[0]).place, lanes);
  EXPECT_TRUE(table.links[0].end.has_queue());
  world.links(0).owner().forget_devices();
  EXPECT_FALSE(world.links(0).owner().flush(world.host(0).ctx()));
}

// Between the bytes in the send ring and those that the lane knows of.
TEST(PeerLinks, DeathInsideAWrite_WhatIsWrittenIsSentOnce) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  Host& host = world.host(0);
  const std::vector<std::byte> bytes(700, std::byte{'a'});
  const auto room = host.tcp().reserve(*c.tcb[0], bytes.size());
  ASSERT_TRUE(room.ok() && room->part[0].size() == bytes.size());
  std::copy(bytes.begin(), bytes.end(), room->part[0].begin());
  host.tcp().commit(host.ctx(), *c.tcb[0], bytes.size(), false);
  host.memory().begin_rebuild();
  host.stack().rebuild(host.ctx());
  world.links(0).rebuild();
  host.memory().finish_rebuild();
  EXPECT_NE(world.write(c, 0, std::vector<std::byte>(300, std::byte{'b'})), 0U);
  std::string got;
  EXPECT_TRUE(world.run_until([&] { return (got += world.read(c, 1)).size() == 1000; }, 5s));
  EXPECT_EQ(got, std::string(700, 'a') + std::string(300, 'b'));
}

TEST(PeerLinks, DeathInsideTheLock_ConnectionsGoOnOverTcp) {
  PeerWorld world;
  Connection& c = world.open();
  Connection& d = world.open();
  ASSERT_TRUE(world.reach_lane(c) && world.reach_lane(d));
  EXPECT_NE(world.write(c, 0, std::vector<std::byte>(5000, std::byte{7})), 0U);
  Host& host = world.host(1);
  host.memory().begin_rebuild();
  host.stack().rebuild(host.ctx());
  world.links(1).rebuild();
  host.memory().finish_rebuild();
  std::string got;
  EXPECT_TRUE(world.run_until([&] { return (got += world.read(c, 1)).size() == 5000; }, 5s));
  EXPECT_TRUE(world.transfer(d, 1, 40'000));
  world.run_for(5s);
  EXPECT_TRUE(world.transfer(c, 0, 40'000));
  EXPECT_TRUE(world.transfer(d, 0, 40'000));
}

}  // namespace
}  // namespace bypass::fastpath::test
