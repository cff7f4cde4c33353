// Many connections on one link: who has a lane, and what it is worth when memory is short.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fastpath/peer_world.h"

namespace bypass::fastpath::test {
namespace {

using Stage = PeerLink::Stage;
using Connection = PeerWorld::Connection;

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
    c.tcb[0]->options.send_buffer = buffer / 2;
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

}  // namespace
}  // namespace bypass::fastpath::test
