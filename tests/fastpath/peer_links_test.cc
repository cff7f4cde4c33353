// PeerLinks: links come, are used, die and come again, and connections never notice.
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

// The tag is the asker's to choose; its address is not. Nothing here has shown that it can use a link.
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
  world.links(0).drop_devices(world.host(0).ctx());
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

// A carrier that has said its last word is none any more, however long it is still there.
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

// The server writes, and ends, when its client leaves: each at any moment of the other's, while later connections take
// the lanes that have become free.
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

// A client that asks, gets an answer and resets may do so between the offer of a lane and its answer, as often as it
// likes: others must still find lanes.
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
  EXPECT_NE(link->haunted, kNever) << "no lane was lost: the test does not meet the moment";
  EXPECT_TRUE(world.run_until([&] { return link->haunted == kNever; }, 20s));
  world.run_for(1s);
  EXPECT_TRUE(world.reach_lane(world.open()));
}

// --- The end of a link

TEST(PeerLinks, PeerThatKnowsTheLinkNoMore_IsAskedForAnother) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.close(c, 0);
  world.close(c, 1);
  ASSERT_TRUE(world.run_until([&] { return world.link(1)->listed == 0; }, 1s));
  world.links(1).drop_devices(world.host(1).ctx());
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
  world.links(1).drop_devices(world.host(1).ctx());
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
  world.stopped[1] = true;  // whoever had the device is gone, and its memory of it with it
  EXPECT_NE(world.write(c, 0, std::vector<std::byte>(5000, std::byte{7})), 0U);
  world.run_for(5ms);
  world.yard.newest->kill();
  world.links(1).forget_devices();
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

// --- Many

TEST(PeerLinks, MoreConnectionsThanLanes_TheRestStaysOnTcp) {
  PeerWorld world;  // the least memory: few lanes
  std::vector<Connection*> all;
  const LinkLayout layout(LinkLayout::kLeast);
  for (std::uint32_t i = 0; i < layout.lanes() + 5; i++) all.push_back(&world.open());
  world.run_for(100ms);
  std::uint32_t on_lanes = 0;
  for (Connection* c : all) {
    EXPECT_TRUE(world.transfer(*c, 0, 2000));
    world.run_for(1ms);
    on_lanes += world.on_lane(*c) ? 1 : 0;
  }
  EXPECT_EQ(on_lanes, layout.lanes());
  const auto tells = [](const PeerWorld::Note& note) { return note.reason == Reason::kLanesTaken; };
  EXPECT_EQ(std::count_if(PeerWorld::notes.begin(), PeerWorld::notes.end(), tells), 1) << "who found none, once";
}

/// As many connections as there are lanes, all on them, and the rest beyond.
std::vector<Connection*> crowd(PeerWorld& world, std::uint32_t beyond) {
  std::vector<Connection*> all;
  const std::uint32_t lanes = LinkLayout(LinkLayout::kLeast).lanes();
  for (std::uint32_t i = 0; i < lanes + beyond; i++) {
    all.push_back(&world.open());
    if (i < lanes && !world.reach_lane(*all.back())) ADD_FAILURE() << i;
  }
  return all;
}

/// It says something now and then, for so many rounds of lanes being shared out.
void speak_for(PeerWorld& world, Connection& c, int rounds, std::size_t bytes) {
  for (int i = 0; i < rounds; i++) {
    EXPECT_TRUE(world.transfer(c, i % 2, bytes));
    world.run_for(510ms);
  }
}

TEST(PeerLinks, QuietConnections_GiveTheirLanesBack) {
  PeerWorld world;
  const std::vector<Connection*> all = crowd(world, 1);
  Connection& late = *all.back();
  speak_for(world, late, 4, 100);
  ASSERT_TRUE(world.reach_lane(late));
  std::vector<Connection*> without;
  for (Connection* c : all)
    if (!world.on_lane(*c)) without.push_back(c);
  ASSERT_FALSE(without.empty());
  EXPECT_LE(without.size(), 16U) << "no more than needed";
  // It speaks again, and has another one's.
  speak_for(world, *without[0], 4, 5000);
  EXPECT_TRUE(world.reach_lane(*without[0]));
  for (Connection* c : all) EXPECT_TRUE(world.transfer(*c, 0, 300)) << "and nothing is lost";
}

/// Writes once, and again only when it is told of room, as a program does: how often it tried, for how much.
struct Patient {
  Patient(PeerWorld& w, Connection& c, std::size_t side, std::size_t bytes) : world(w), of(c), end(side), want(bytes) {
    (void)world.host(end).take_events(&of.user[end]);
    write();
  }
  void write() {
    attempts++;
    written = world.write(of, end, std::vector<std::byte>(want));
  }
  bool run(Duration limit) {
    return world.run_until(
        [this] {
          if (written == 0 && (world.host(end).take_events(&of.user[end]) & kEventWritable) != 0) write();
          return written != 0;
        },
        limit);
  }
  PeerWorld& world;
  Connection& of;
  std::size_t end, want, written = 0;
  int attempts = 0;
};

/// So many bytes of memory are left at host 0, beside what is in use.
void leave(PeerWorld& world, std::ptrdiff_t bytes) {
  Memory& memory = world.host(0).memory();
  memory.set_budget(memory.stats().used_bytes + static_cast<std::size_t>(bytes));
}

/// On no lane, as its peer is not on libbypass.
Connection& open_plain(PeerWorld& world) {
  const Hooks* const hooks = std::exchange(world.host(0).ctx().hooks, nullptr);
  Connection& plain = world.open();
  world.host(0).ctx().hooks = hooks;
  return plain;
}

TEST(PeerLinks, NoMemoryForAWriter_QuietConnectionsGiveTheirRingsBack) {
  for (const bool framed : {false, true}) {
    PeerWorld world;
    Connection& quiet = world.open();
    ASSERT_TRUE(world.reach_lane(quiet));
    EXPECT_TRUE(world.transfer(quiet, 0, 100));
    Connection& sleeper = framed ? world.open() : open_plain(world);
    world.run_for(5ms);
    leave(world, -65536);  // a part of what the quiet one's ring takes
    EXPECT_NE(quiet.tcb[0]->ring.block(), nullptr);
    Patient writer(world, sleeper, 0, 100);
    EXPECT_EQ(writer.written, 0U);
    EXPECT_TRUE(writer.run(3s));
    EXPECT_LE(writer.attempts, 2);
    EXPECT_EQ(quiet.tcb[0]->ring.block(), nullptr);
    EXPECT_FALSE(world.on_lane(quiet));
    EXPECT_TRUE(world.transfer(quiet, 1, 3000));
    // Another round, and there is enough: who speaks is on a lane again.
    world.host(0).memory().set_budget(std::size_t{1} << 30);
    world.run_for(1200ms);
    EXPECT_TRUE(world.reach_lane(quiet));
  }
}

TEST(PeerLinks, LittleMemoryForALane_WriterIsNotWokenInVain) {
  for (const std::size_t want : {100U, 100'000U}) {
    PeerWorld world;
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    world.run_for(2ms);
    leave(world, 0);
    Patient writer(world, c, 0, want);
    EXPECT_EQ(writer.written, 0U);
    leave(world, 8192);
    EXPECT_TRUE(writer.run(100ms)) << want;
    EXPECT_LE(writer.attempts, 2) << want;
  }
}

TEST(PeerLinks, MemoryComesBack_LanesRingIsAsLargeAsEver) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.run_for(2ms);
  leave(world, 0);
  Patient writer(world, c, 0, 100);
  EXPECT_EQ(writer.written, 0U);
  world.host(0).memory().set_budget(std::size_t{1} << 30);
  EXPECT_TRUE(writer.run(100ms));
  world.run_for(1ms);
  EXPECT_EQ(world.read(c, 1).size(), 100U);
  EXPECT_TRUE(world.transfer(c, 0, 1000));
  ASSERT_TRUE(world.on_lane(c));
  EXPECT_EQ(c.tcb[0]->ring.capacity(), world.links(0).framed().ring_bytes(*c.tcb[0], *world.framed(c, 0)));
}

TEST(PeerLinks, WritesThatGetLessThanTheyWant_CostNobodyItsLane) {
  PeerWorld world;
  Connection& quiet = world.open();
  ASSERT_TRUE(world.reach_lane(quiet));
  Connection& writer = open_plain(world);
  world.run_for(5ms);
  leave(world, 400'000);
  for (int i = 0; i < 60; i++) {
    (void)world.write(writer, 0, std::vector<std::byte>(600'000));
    world.run_until([&] { return world.read(writer, 1).empty() && false; }, 50ms);
  }
  EXPECT_EQ(world.host(0).counters().tcp_memory_waits, 0U);
  EXPECT_TRUE(world.on_lane(quiet));
}

TEST(PeerLinks, LaneWithoutWords_HoldsNoSendRing) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  for (std::size_t side = 0; side < 2; side++) {
    EXPECT_EQ(c.tcb[side]->ring.block(), nullptr);
    EXPECT_TRUE(world.transfer(c, side, 100'000));
    EXPECT_NE(c.tcb[side]->ring.block(), nullptr) << "kept from one word to the next";
    EXPECT_TRUE(world.transfer(c, side, 10));
  }
  EXPECT_TRUE(world.on_lane(c));
}

TEST(PeerLinks, LaneWithoutWords_LosesItsLink) {
  PeerWorld world;
  for (std::size_t side = 0; side < 2; side++) {
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    ASSERT_EQ(c.tcb[side]->ring.block(), nullptr);
    EXPECT_EQ(world.links(side).fail_all(), 1U);
    EXPECT_TRUE(world.transfer(c, side, 50'000));
    EXPECT_TRUE(world.transfer(c, 1 - side, 50'000));
    world.run_for(20s);
  }
}

// A large write, or a file's bytes, are copied without the lock; the lane may come meanwhile.
TEST(PeerLinks, LaneComesWhileAWriteIsCopied_ItsRingStaysWhereItIs) {
  PeerWorld world;
  Connection& c = world.open();
  FramedTcp& framed = world.links(0).framed();
  auto& ctx = world.host(0).ctx();
  constexpr std::size_t kBytes = 3000;
  const auto room = framed.reserve(ctx, *c.tcb[0], kBytes);
  ASSERT_TRUE(room.ok());
  ASSERT_EQ(room->part[0].size(), kBytes);
  ASSERT_NE(world.framed(c, 0)->lane.tx_path(), TxPath::kLane);
  ASSERT_TRUE(world.run_until([&] { return world.on_lane(c); }));
  std::fill_n(room->part[0].data(), kBytes, std::byte{7});
  framed.commit(ctx, *c.tcb[0], kBytes, false);
  EXPECT_TRUE(c.tcb[0]->ring.pinned()) << "from here on writes refer to it";
  const void* const block = c.tcb[0]->ring.block();
  const auto more = framed.reserve(ctx, *c.tcb[0], 100'000);
  EXPECT_EQ(c.tcb[0]->ring.block(), block);
  if (more.ok()) framed.commit(ctx, *c.tcb[0], 0, false);
  std::string got;
  EXPECT_TRUE(world.run_until([&] { return (got += world.read(c, 1)).size() == kBytes; }));
  EXPECT_EQ(got, std::string(kBytes, 7));
}

// It waits by TCP's acknowledgements, and then by the peer's word.
TEST(PeerLinks, WriterThatWaitsAsTheLaneComes_IsWoken) {
  for (const std::uint32_t buffer : {16'000U, 64'000U, 150'000U}) {
    PeerWorld world;
    Connection& c = world.open();
    c.tcb[0]->options.send_buffer = buffer;
    const std::vector<std::byte> bytes(buffer * 2, std::byte{5});
    std::size_t sent = 0, arrived = 0;
    while (const std::size_t n = world.write(c, 0, std::span(bytes).subspan(sent))) sent += n;
    ASSERT_LT(sent, bytes.size());
    world.host(0).take_events(&c.user[0]);
    EXPECT_TRUE(world.run_until([&] {
      arrived += world.read(c, 1).size();
      return (world.host(0).take_events(&c.user[0]) & kEventWritable) != 0;
    })) << buffer;
    EXPECT_TRUE(world.run_until([&] { return (arrived += world.read(c, 1).size()) == sent; })) << buffer;
  }
}

TEST(PeerLinks, ConnectionsThatAllSpeak_KeepTheirLanes) {
  PeerWorld world;
  const std::vector<Connection*> all = crowd(world, 4);
  std::vector<Connection*> with;
  for (Connection* c : all)
    if (world.on_lane(*c)) with.push_back(c);
  const std::uint64_t returns = world.links(0).table().count(Mover::kRc).returns;
  for (int i = 0; i < 12; i++) {
    for (Connection* c : all) EXPECT_TRUE(world.transfer(*c, i % 2, 50));
    world.run_for(100ms);
  }
  for (Connection* c : with) EXPECT_TRUE(world.on_lane(*c));
  // What was asked of the peer in vain is no more than once a round.
  EXPECT_LE(world.links(0).table().count(Mover::kRc).returns - returns, 8U);
}

TEST(PeerLinks, BusyConnection_GetsALargerRingOnceOneIsFree) {
  PeerWorld world;
  const std::vector<Connection*> all = crowd(world, 0);
  const LinkLayout layout(LinkLayout::kLeast);
  Connection& busy = *all.back();
  const auto ring = [&] { return layout.size_of(world.framed(busy, 1)->place); };
  ASSERT_EQ(ring(), LinkLayout::kSizes - 1);
  speak_for(world, busy, 6, 160'000);
  EXPECT_TRUE(world.reach_lane(busy));
  EXPECT_LT(ring(), LinkLayout::kSizes - 1);
  for (Connection* c : all) EXPECT_TRUE(world.transfer(*c, 0, 300));
}

// There is no larger ring than its own: others gain nothing for it by leaving theirs.
TEST(PeerLinks, BusyConnectionInTheLargestRing_LeavesOthersAlone) {
  PeerWorld world;
  std::vector<Connection*> all;
  for (int i = 0; i < 8; i++) all.push_back(&world.open());
  for (Connection* c : all) ASSERT_TRUE(world.reach_lane(*c));
  Connection& busy = *all.front();
  const LinkLayout layout(LinkLayout::kLeast);
  const auto size_of = [&](Connection& c) { return layout.size_of(world.framed(c, 1)->place); };
  ASSERT_EQ(layout.first(size_of(busy)), 0U);
  ASSERT_LT(size_of(busy), size_of(*all.back()));
  for (int round = 0; round < 3; round++) {
    EXPECT_TRUE(world.transfer(busy, 0, 9'000'000));
    world.run_for(510ms);
  }
  for (Connection* c : all) EXPECT_TRUE(world.on_lane(*c));
}

// --- A family

TEST(PeerLinks, AnotherProcessWrites_OwnerIsToBeCalled) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  PeerLinks::Config config;
  config.random = [] { return std::uint64_t{5}; };
  // What a forked child has: the same objects, and no device.
  auto& table = const_cast<PeerTable&>(world.links(0).table());
  LaneTable lanes{table.links[0]};
  EXPECT_TRUE(world.links(0).flush(world.host(0).ctx()));
  table.links[0].end.enqueue(FramedTcp::of(*c.tcb[0]).place, lanes);
  EXPECT_TRUE(table.links[0].end.has_queue());
  world.links(0).forget_devices();
  EXPECT_FALSE(world.links(0).flush(world.host(0).ctx()));
}

// Between what the send ring has and what the lane knows of.
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
