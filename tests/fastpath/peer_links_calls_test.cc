// PeerLinks: a program's calls. Writers that wait are called, little writes go together, and short calls find what long
// ones would.
#include <gtest/gtest.h>

#include "fastpath/peer_world.h"

namespace bypass::fastpath::test {
namespace {

using Connection = PeerWorld::Connection;

// --- Writers

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

// At the write all of it is still to be sent; what is left of it once whole segments have left is what is held.
TEST(PeerLinks, CorkedTailOfALongWrite_IsHeldFor200MillisecondsAtMost) {
  PeerWorld world;
  Connection& c = world.open();
  ASSERT_TRUE(world.reach_lane(c));
  world.run_for(50ms);  // nothing is to be told the peer, whose timer would look at the cork, too
  tcp::Options options = world.host(0).tcp().options(*c.tcb[0]);
  options.cork = true;
  world.links(0).framed().set_options(world.host(0).ctx(), *c.tcb[0], options);
  const std::size_t segment = c.tcb[0]->mss;
  const std::vector<std::byte> bytes(2 * segment + 10, std::byte{5});
  ASSERT_EQ(world.write(c, 0, bytes), bytes.size());
  world.run_for(150ms);
  EXPECT_EQ(world.read(c, 1).size(), 2 * segment);
  world.run_for(300ms);
  EXPECT_EQ(world.read(c, 1).size(), 10U);
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
  EXPECT_EQ(world.links(0).owner().poll(world.host(0).ctx()), 0U);  // no news for ever
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
  const ShortPath path = world.links(1).short_calls().path_of(*c.tcb[1]);
  ASSERT_TRUE(path);
  EXPECT_EQ(ShortCalls::readable(path, 64)->size(), 64U);
  EXPECT_EQ(ShortCalls::readable(path, 100)->size(), 100U);
  EXPECT_EQ(ShortCalls::readable(path, 101), std::nullopt) << "it would be told less than there is";
  ASSERT_FALSE(world.read(c, 1).empty());
  EXPECT_TRUE(ShortCalls::readable(path, 64)->empty());
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
  const ShortPath path = world.links(1).short_calls().path_of(*c.tcb[1]);
  ASSERT_TRUE(path);
  ShortCalls::Glance found = ShortCalls::Glance::kNothing;
  for (int i = 0; i < 4 && found != ShortCalls::Glance::kOther; i++) {
    found = world.links(1).short_calls().glance(path);
    if (found == ShortCalls::Glance::kOther) world.links(1).short_calls().finish_glance(ctx, path);
  }
  EXPECT_EQ(found, ShortCalls::Glance::kOther);
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
  const ShortPath path = world.links(1).short_calls().path_of(*c.tcb[1]);
  ASSERT_TRUE(path);
  ASSERT_EQ(world.links(1).short_calls().glance(path), ShortCalls::Glance::kBytes);
  EXPECT_EQ(events_of(world, c) & kEventReadable, 0);
  if (!world.links(1).short_calls().consume(path, 200)) world.links(1).short_calls().take_turn(ctx, path);
  EXPECT_NE(events_of(world, c) & kEventReadable, 0);
  if (!world.links(1).short_calls().consume(path, 200)) world.links(1).short_calls().take_turn(ctx, path);
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
    const ShortPath path = world.links(0).short_calls().path_of(*c.tcb[0]);
    ASSERT_TRUE(path);
    ASSERT_TRUE(world.links(0).short_calls().may_write(path, bytes.size())) << i;
    const auto room = world.host(0).tcp().reserve(*c.tcb[0], bytes.size());
    ASSERT_TRUE(room.ok() && room->size() >= bytes.size());
    world.host(0).tcp().commit(ctx, *c.tcb[0], bytes.size(), false);
    world.links(0).short_calls().write(path, bytes.size());
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

}  // namespace
}  // namespace bypass::fastpath::test
