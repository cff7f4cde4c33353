// PeerLinks: links come, are used, die and come again, and connections never notice.
#include <gtest/gtest.h>

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

TEST(PeerLinks, WriterThatWaits_IsWokenUntilAllIsWritten) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  constexpr std::size_t kBytes = 3'000'000;
  const std::vector<std::byte> bytes(kBytes, std::byte{5});
  std::size_t sent = 0, arrived = 0;
  bool waits = false;
  const auto write_all = [&] {
    while (sent < kBytes) {
      const std::size_t n = world.write(c, 0, std::span(bytes).subspan(sent));
      sent += n;
      if (n != 0) continue;
      // What is pinned grows no more: a buffer that takes nothing must not look as if it did.
      EXPECT_EQ(world.links(0).framed().send_room(*c.tcb[0]), 0U);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(world.run_until([&] {
    const bool woken = (world.host(0).take_events(&c.user[0]) & kEventWritable) != 0;
    if (!waits || woken) waits = write_all();
    arrived += world.read(c, 1).size();
    return arrived == kBytes;
  }));
  EXPECT_EQ(arrived, kBytes);
}

// A program that stops where poll() finds too little room, before a write has failed, has asked by that.
TEST(PeerLinks, WriterThatStopsInTime_IsCalledForWhatItAskedFor) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  FramedTcp& framed = world.links(0).framed();
  const auto may_write = [&] { return framed.want_room(world.host(0).ctx(), *c.tcb[0]); };
  const std::vector<std::byte> bytes(Lane::kGatheredAhead, std::byte{5});
  std::size_t sent = 0, arrived = 0;
  int asks = 0;
  for (int round = 0; round < 5; round++) {
    world.stopped[1] = true;
    while (may_write()) sent += world.write(c, 0, bytes);
    asks += world.framed(c, 0)->lane.has_writes(world.yard.newest->end(0).writable_memory()) ? 1 : 0;
    world.stopped[1] = false;
    EXPECT_GE(framed.send_room(*c.tcb[0]), bytes.size()) << "none has failed";
    (void)world.host(0).take_events(&c.user[0]);
    EXPECT_TRUE(world.run_until([&] {
      arrived += world.read(c, 1).size();
      return (world.host(0).take_events(&c.user[0]) & kEventWritable) != 0;
    })) << round;
    EXPECT_TRUE(may_write()) << round;
  }
  EXPECT_GE(asks, 4) << "where it has not said so a moment before";
  EXPECT_TRUE(world.run_until([&] { return (arrived += world.read(c, 1).size()) == sent; }));
}

// It has told its peer that it waits. What that takes is in its memory before the message that calls it.
TEST(PeerLinks, WriterThatPolls_GoesOnBeforeItIsCalled) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.stopped[1] = true;
  const std::vector<std::byte> bytes(3'000'000, std::byte{5});
  while (world.write(c, 0, bytes) != 0) {
  }
  world.run_for(1ms);
  ASSERT_EQ(world.write(c, 0, bytes), 0U);
  world.host(0).take_events(&c.user[0]);

  const std::span<std::byte> memory = world.yard.newest->end(0).writable_memory();
  const auto credit = [&](std::uint64_t placed) {
    write_credit(memory.data() + world.framed(c, 0)->lane.local().credit, {placed, 0});
    world.run_for(10us);
  };
  const std::uint64_t before = read_credit(memory.data() + world.framed(c, 0)->lane.local().credit).placed;
  credit(before + (std::uint64_t{128} << 10));
  EXPECT_NE(world.host(0).take_events(&c.user[0]) & kEventWritable, 0);
  EXPECT_NE(world.write(c, 0, bytes), 0U);

  credit(before + (std::uint64_t{1} << 40));  // more than there was
  EXPECT_TRUE(c.tcb[0] == nullptr || c.tcb[0]->error == Error::kReset);
  EXPECT_EQ(world.links(0).poll(world.host(0).ctx()), 0U);  // no news for ever
}

// A link that takes few writes at a time lets a lane wait for its turn; room for its program may come meanwhile.
TEST(PeerLinks, WritersThatWaitForALinkWithLittleRoom_AreWokenUntilAllIsWritten) {
  PeerWorld world;
  world.yard.queue = 1;
  constexpr std::size_t kBytes = 2'000'000, kConnections = 8;
  const std::vector<std::byte> bytes(kBytes, std::byte{5});
  struct Transfer {
    Connection* c = nullptr;
    std::size_t sent = 0, arrived = 0;
    bool waits = false;
  };
  std::array<Transfer, kConnections> all;
  for (Transfer& each : all) {
    each.c = &world.open();
    ASSERT_TRUE(world.reach_lane(*each.c));
  }
  EXPECT_TRUE(world.run_until([&] {
    bool done = true;
    for (Transfer& each : all) {
      const bool woken = (world.host(0).take_events(&each.c->user[0]) & kEventWritable) != 0;
      each.waits = each.waits && !woken;
      while (!each.waits && each.sent < kBytes) {
        const std::size_t n = world.write(*each.c, 0, std::span(bytes).subspan(each.sent));
        each.sent += n;
        each.waits = n == 0;
      }
      each.arrived += world.read(*each.c, 1).size();
      done = done && each.arrived == kBytes;
    }
    return done;
  }));
  for (const Transfer& each : all) EXPECT_EQ(each.arrived, kBytes);
}

constexpr std::size_t kLittle = 64;

/// Writes that 1,000 little ones of the program's cost.
std::uint64_t cost_of_little_writes(PeerWorld& world, Connection& c) {
  const std::array<std::byte, kLittle> bytes{};
  const std::uint64_t before = world.yard.newest->posted();
  std::size_t arrived = 0;
  for (int i = 0; i < 1000; i++) {
    EXPECT_EQ(world.write(c, 0, bytes), kLittle);
    world.run_for(100ns);
    arrived += world.read(c, 1).size();
  }
  EXPECT_TRUE(world.run_until([&] { return (arrived += world.read(c, 1).size()) == 1000 * kLittle; }));
  return world.yard.newest->posted() - before;
}

TEST(PeerLinks, LittleWritesOneBehindTheOther_GoTogether) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  EXPECT_LT(cost_of_little_writes(world, c), 300U);
  c.tcb[0]->options.no_delay = true;  // unless the program forbids it
  EXPECT_GE(cost_of_little_writes(world, c), 1000U);
}

TEST(PeerLinks, LittleWritesOfADialogue_WaitForNothing) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  const std::array<std::byte, kLittle> bytes{};
  const std::uint64_t before = world.yard.newest->posted();
  for (std::size_t i = 0; i < 100; i++) {
    ASSERT_EQ(world.write(c, i % 2, bytes), kLittle);
    std::size_t arrived = 0;
    ASSERT_TRUE(world.run_until([&] { return (arrived += world.read(c, 1 - i % 2).size()) == kLittle; }));
  }
  EXPECT_LT(world.yard.newest->posted() - before, 110U);  // a few credits
}

// --- Short calls

TEST(PeerLinks, ShortCalls_CarryADialogue) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  std::array<std::byte, kLittle> bytes{};
  world.short_reads = world.short_writes = 0;
  for (std::size_t i = 0; i < 2000; i++) {
    bytes.fill(static_cast<std::byte>(i));
    ASSERT_EQ(world.write(c, i % 2, bytes), kLittle);
    std::string got;
    ASSERT_TRUE(world.run_until([&] { return (got += world.read(c, 1 - i % 2)).size() == kLittle; })) << i;
    ASSERT_EQ(got, std::string(kLittle, static_cast<char>(i)));
  }
  EXPECT_GT(world.short_writes, 800U) << "of about 1000 that were tried";
  EXPECT_GT(world.short_reads, 800U);
}

// A ring's bytes lie in two pieces where it wraps. What a call wants of the first is there at once; it is not told that
// there is nothing.
TEST(PeerLinks, ShortReads_WhereTheRingWraps) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  const Lane& lane = world.framed(c, 1)->lane;
  const std::uint64_t capacity = lane.ring().capacity();
  const auto consumed = [&] { return lane.ring().position(lane.ring().consumed()); };
  ASSERT_TRUE(world.transfer(c, 0, capacity - consumed() - 100));
  ASSERT_EQ(consumed(), capacity - 100);
  const std::vector<std::byte> bytes(300, std::byte{9});
  world.makes_short_calls = false;
  ASSERT_EQ(world.write(c, 0, bytes), 300U);
  ASSERT_TRUE(world.run_until([&] { return lane.parts().bytes() == 300; }));
  const PeerLinks::Usual usual = world.links(1).usual(*c.tcb[1]);
  ASSERT_TRUE(usual);
  EXPECT_EQ(PeerLinks::readable_at_once(usual, 64)->size(), 64U);
  EXPECT_EQ(PeerLinks::readable_at_once(usual, 100)->size(), 100U);
  EXPECT_EQ(PeerLinks::readable_at_once(usual, 101), std::nullopt) << "it would be told less than there is";
  ASSERT_FALSE(world.read(c, 1).empty());
  EXPECT_TRUE(PeerLinks::readable_at_once(usual, 64)->empty());
}

/// At host 1, since the last time.
std::uint16_t events_of(PeerWorld& world, Connection& c) {
  world.host(1).poll(world.world().now());
  return world.host(1).take_events(&c.user[1]);
}

// One connection looks, and another's bytes come: their reader is told of them.
TEST(PeerLinks, ShortReads_OthersHearOfTheirs) {
  PeerWorld world;
  Connection& c = world.open();
  Connection& d = world.open();
  ASSERT_TRUE(world.reach_lane(c) && world.reach_lane(d));
  const std::vector<std::byte> bytes(500, std::byte{1});
  world.makes_short_calls = false;
  ASSERT_EQ(world.write(c, 0, bytes), 500U);
  ASSERT_EQ(world.write(d, 0, bytes), 500U);
  world.stopped[1] = true;
  world.run_for(100us);
  auto& ctx = world.host(1).ctx();
  (void)events_of(world, d);
  const PeerLinks::Usual usual = world.links(1).usual(*c.tcb[1]);
  ASSERT_TRUE(usual);
  PeerLinks::Glance found = PeerLinks::Glance::kNothing;
  for (int i = 0; i < 4 && found != PeerLinks::Glance::kOther; i++) {
    found = world.links(1).glance(usual);
    if (found == PeerLinks::Glance::kOther) world.links(1).finish_glance(ctx, usual);
  }
  EXPECT_EQ(found, PeerLinks::Glance::kOther);
  EXPECT_NE(events_of(world, d) & kEventReadable, 0);
  EXPECT_EQ(world.framed(d, 1)->lane.parts().bytes(), 500U);
  EXPECT_EQ(world.framed(c, 1)->lane.parts().bytes(), 500U);
}

// Fewer bytes are read than came: those that wait for the rest are told.
TEST(PeerLinks, ShortRead_OfAPart_IsToldOfTheRest) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  const std::vector<std::byte> bytes(500, std::byte{1});
  world.makes_short_calls = false;
  ASSERT_EQ(world.write(c, 0, bytes), 500U);
  world.stopped[1] = true;
  world.run_for(100us);
  (void)events_of(world, c);
  auto& ctx = world.host(1).ctx();
  const PeerLinks::Usual usual = world.links(1).usual(*c.tcb[1]);
  ASSERT_TRUE(usual);
  ASSERT_EQ(world.links(1).glance(usual), PeerLinks::Glance::kBytes);
  EXPECT_EQ(events_of(world, c) & kEventReadable, 0);
  if (!world.links(1).consume_at_once(usual, 200)) world.links(1).take_turn(ctx, usual);
  EXPECT_NE(events_of(world, c) & kEventReadable, 0);
  if (!world.links(1).consume_at_once(usual, 200)) world.links(1).take_turn(ctx, usual);
  EXPECT_EQ(events_of(world, c) & kEventReadable, 0) << "no news";
}

// What has left over the lane is no longer unsent: TCP_NOTSENT_LOWAT keeps nobody from writing.
TEST(PeerLinks, ShortWrites_CountNoMoreAsUnsent) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  c.tcb[0]->options.not_sent_low_water = 5000;
  ASSERT_TRUE(world.transfer(c, 0, 1)) << "which takes a send ring";
  const std::vector<std::byte> bytes(2000, std::byte{1});
  auto& ctx = world.host(0).ctx();
  for (int i = 0; i < 20; i++) {
    const PeerLinks::Usual usual = world.links(0).usual(*c.tcb[0]);
    ASSERT_TRUE(usual);
    ASSERT_TRUE(world.links(0).may_write_at_once(usual, bytes.size())) << i;
    const auto room = world.host(0).tcp().reserve(*c.tcb[0], bytes.size());
    ASSERT_TRUE(room.ok() && room->size() >= bytes.size());
    world.host(0).tcp().commit(ctx, *c.tcb[0], bytes.size(), false);
    world.links(0).write_at_once(usual, bytes.size());
    EXPECT_NE(world.links(0).framed().send_room(*c.tcb[0]), 0U) << i;
  }
}

// Links fail under short calls, at any moment of a dialogue: every byte arrives once.
TEST(PeerLinks, ShortCalls_OverLinksThatFail) {
  for (int moment = 0; moment < 60; moment++) {
    PeerWorld world(static_cast<std::uint64_t>(moment) + 1);
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    int turns = 0;
    const auto meanwhile = [&] {
      if (++turns % 50 == moment % 50 && world.yard.newest != nullptr) world.yard.newest->kill();
    };
    EXPECT_TRUE(world.transfer(c, 0, 60'000, meanwhile)) << moment;
    EXPECT_TRUE(world.transfer(c, 1, 60'000, meanwhile)) << moment;
  }
}

// Who has ended its direction waits for no room, however full its buffer is.
TEST(PeerLinks, WriterEndsWithAFullBuffer_AllArrivesAndThenTheEnd) {
  for (const std::size_t queue : {1U, 64U}) {
    PeerWorld world;
    world.yard.queue = queue;
    Connection& c = world.open();
    ASSERT_TRUE(world.reach_lane(c));
    const std::vector<std::byte> bytes(3'000'000, std::byte{5});
    std::size_t sent = 0, arrived = 0;
    for (std::size_t n = 1; n != 0; sent += n) n = world.write(c, 0, std::span(bytes).subspan(sent));
    EXPECT_LT(sent, bytes.size());
    world.shutdown(c, 0);
    EXPECT_TRUE(world.run_until([&] {
      arrived += world.read(c, 1).size();
      return arrived == sent && world.links(1).framed().at_eof(*c.tcb[1]);
    })) << queue;
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

// --- Several devices

constexpr std::array<std::uint32_t, 2> kOneHost{0x70001, 0x70001}, kTwoHosts{0x70001, 0x80001},
    kTwoDirectories{0x70001, 0x70002};

/// Shared memory, simulated, in front of the cables that PeerWorld has.
struct TwoDevices {
  explicit TwoDevices(std::array<std::uint32_t, 2> places) : world(1, LinkLayout::kLeast, places) {
    near.seed = 77;
    near.mover = Mover::kShm;
  }
  void prefer(std::size_t i) { world.prefer(i, devices[i]); }
  /// Turns of the world, in which the other yard has its own.
  bool run_until(const std::function<bool()>& done, Duration limit) {
    return world.run_until(
        [&] {
          near.advance(world.world().now());
          return done();
        },
        limit);
  }
  bool reach_lane(Connection& c) {
    for (int i = 0; i < 200 && !world.on_lane(c); i++) {
      if (!world.transfer(c, i % 2, 100, [this] { near.advance(world.world().now()); })) return false;
      run_until([] { return false; }, 100us);
    }
    return world.on_lane(c);
  }

  CableYard near;
  std::array<SimDevice, 2> devices{SimDevice(near, 0), SimDevice(near, 1)};
  PeerWorld world;
};

TEST(PeerLinksDevices, FirstThatCan_MakesTheLink) {
  TwoDevices two(kOneHost);
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  ASSERT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.link(0)->mover, Mover::kShm);
  EXPECT_EQ(two.world.link(1)->mover, Mover::kShm);
  EXPECT_EQ(two.world.yard.newest, nullptr) << "the other one was not asked";
}

TEST(PeerLinksDevices, FirstRefuses_SecondIsTakenAtOnce) {
  TwoDevices two(kOneHost);
  two.near.refuses = true;
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  EXPECT_TRUE(
      two.run_until([&] { return two.world.link(0) != nullptr && two.world.link(0)->stage == Stage::kUp; }, 20ms))
      << "no pause lies between them";
  ASSERT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.link(0)->mover, Mover::kRc);
  EXPECT_EQ(two.world.link(1)->mover, Mover::kRc);
  EXPECT_EQ(two.devices[0].setups(), 0U);
  EXPECT_EQ(two.devices[1].setups(), 0U);
}

TEST(PeerLinksDevices, PeerHasNotTheFirst_DeclinesAndSecondIsTaken) {
  TwoDevices two(kOneHost);
  two.prefer(0);
  Connection& c = two.world.open();
  EXPECT_TRUE(
      two.run_until([&] { return two.world.link(0) != nullptr && two.world.link(0)->stage == Stage::kUp; }, 20ms));
  ASSERT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.link(0)->mover, Mover::kRc);
  EXPECT_EQ(two.devices[0].setups(), 0U);
}

TEST(PeerLinksDevices, BothRefuse_StaysOnTcpAndIsAskedLater) {
  TwoDevices two(kOneHost);
  two.near.refuses = two.world.yard.refuses = true;
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  EXPECT_TRUE(two.world.transfer(c, 0, 50'000));
  EXPECT_TRUE(two.run_until([&] { return two.world.link(0) == nullptr; }, 100ms));
  EXPECT_EQ(two.devices[0].setups(), 0U);
  EXPECT_EQ(two.world.device(0).setups(), 0U);
  two.near.refuses = false;
  two.run_until([] { return false; }, 1s);
  ASSERT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.link(0)->mover, Mover::kShm);
}

TEST(PeerLinksDevices, LinkOfTheSecondFails_AnotherIsMadeSoon) {
  TwoDevices two(kOneHost);
  two.near.refuses = true;
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  ASSERT_TRUE(two.reach_lane(c));
  two.world.yard.newest->kill();
  EXPECT_TRUE(two.world.transfer(c, 0, 30'000));
  two.run_until([] { return false; }, 1s);
  EXPECT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.links(0).table().count(Mover::kRc).links_made, 2U);
}

// --- Which connections are framed at all

TEST(PeerLinksDevices, PeerOnAnotherHost_IsNotAskedForSharedMemory) {
  TwoDevices two(kTwoHosts);
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  ASSERT_TRUE(two.reach_lane(c));
  EXPECT_EQ(two.world.link(0)->mover, Mover::kRc);
  EXPECT_EQ(two.near.newest, nullptr);
}

TEST(PeerLinksDevices, OnlySharedMemoryAndAnotherHost_IsPlainTcpFromTheFirstByte) {
  TwoDevices two(kTwoHosts);
  two.world.has_cables = {false, false};
  two.prefer(0), two.prefer(1);
  Connection& c = two.world.open();
  EXPECT_FALSE(FramedTcp::has(*c.tcb[0]));
  EXPECT_FALSE(FramedTcp::has(*c.tcb[1]));
  EXPECT_TRUE(two.world.transfer(c, 0, 50'000));
  EXPECT_TRUE(PeerWorld::notes.empty()) << "that another host shares no memory is no news";
}

TEST(PeerLinksDevices, OneEndHasOnlySharedMemory_AnotherHost_IsPlainTcp) {
  for (std::size_t poor = 0; poor < 2; poor++) {
    TwoDevices two(kTwoHosts);
    two.world.has_cables[poor] = false;
    two.prefer(0), two.prefer(1);
    Connection& c = two.world.open();
    EXPECT_TRUE(two.world.transfer(c, 0, 50'000));
    EXPECT_TRUE(two.world.transfer(c, 1, 50'000));
    EXPECT_EQ(two.world.link(0), nullptr) << poor;
  }
}

TEST(PeerLinksDevices, PeerWithoutRdma_IsNotedOnceByWhoHasIt) {
  for (std::size_t poor = 0; poor < 2; poor++) {
    std::array<std::uint8_t, 2> capabilities{PeerWorld::kBoth, PeerWorld::kBoth};
    capabilities[poor] = kCapShm;
    PeerWorld world(1, LinkLayout::kLeast, kTwoHosts, capabilities);
    world.has_cables[poor] = false;
    for (std::size_t i = 0; i < 2; i++) world.links(i).drop_devices(world.host(i).ctx()), world.begin_ownership(i);
    for (int i = 0; i < 3; i++) EXPECT_FALSE(FramedTcp::has(*world.open().tcb[0]));
    world.run_for(1ms);
    ASSERT_EQ(PeerWorld::notes.size(), 1U) << poor;
    const PeerWorld::Note& note = PeerWorld::notes[0];
    EXPECT_EQ(note.peer, world.host(poor).address());
    EXPECT_EQ(note.mover, Mover::kRc);
    EXPECT_EQ(note.reason, Reason::kNotOffered);
  }
}

TEST(PeerLinksDevices, NeighbourWithAnotherRunDirectory_IsPlainTcpAndNotedOnce) {
  TwoDevices two(kTwoDirectories);
  two.world.has_cables = {false, false};
  two.prefer(0), two.prefer(1);
  for (int i = 0; i < 3; i++) EXPECT_FALSE(FramedTcp::has(*two.world.open().tcb[0]));
  ASSERT_EQ(PeerWorld::notes.size(), 1U);
  EXPECT_EQ(PeerWorld::notes[0].peer, two.world.host(0).address());
  EXPECT_EQ(PeerWorld::notes[0].mover, Mover::kShm);
  EXPECT_EQ(PeerWorld::notes[0].stage, Stage::kRefused);
  EXPECT_EQ(PeerWorld::notes[0].reason, Reason::kElsewhere);
}

TEST(PeerLinksDevices, HostThatDoesNotKnowWhereItIs_SharesNothing) {
  TwoDevices two({0, 0});
  two.world.has_cables = {false, false};
  two.prefer(0), two.prefer(1);
  EXPECT_FALSE(FramedTcp::has(*two.world.open().tcb[0]));
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
