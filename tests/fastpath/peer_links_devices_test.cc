// PeerLinks with several devices: which of them makes the link to whom, and who is framed at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "fastpath/link/reported_once.h"
#include "fastpath/peer_world.h"

namespace bypass::fastpath::test {
namespace {

using Stage = PeerLink::Stage;
using Connection = PeerWorld::Connection;

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

/// What either host has said of why it makes no links, whichever was first.
void expect_notes(std::vector<std::tuple<IpAddress, Mover, Reason>> expected) {
  std::vector<std::tuple<IpAddress, Mover, Reason>> notes;
  for (const PeerWorld::Note& note : PeerWorld::notes) {
    EXPECT_EQ(note.stage, Stage::kRefused);
    notes.emplace_back(note.peer, note.mover, note.reason);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(notes.begin(), notes.end());
  EXPECT_EQ(notes, expected);
}

/// Connections from host 0 to host 1, which have devices as `capabilities` say.
void open_some(PeerWorld& world, std::array<std::uint8_t, 2> capabilities) {
  for (std::size_t i = 0; i < 2; i++) {
    world.has_cables[i] = (capabilities[i] & kCapRoce) != 0;
    world.links(i).owner().drop_devices(world.host(i).ctx()), world.begin_ownership(i);
  }
  for (int i = 0; i < 3; i++) EXPECT_FALSE(FramedTcp::has(*world.open().tcb[0]));
  world.run_for(1ms);
}

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
  // That another host shares no memory is no news to who knows it.
  expect_notes({{two.world.host(1).address(), Mover::kShm, Reason::kNotOffered},
                {{}, Mover::kRc, Reason::kNotHere},
                {{}, Mover::kRc, Reason::kNotHere}});
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

TEST(PeerLinksDevices, PeerWithoutAnyDevice_IsNotedOnce) {
  for (std::size_t poor = 0; poor < 2; poor++) {
    std::array<std::uint8_t, 2> capabilities{kCapRoce, kCapRoce};
    capabilities[poor] = 0;
    PeerWorld world(1, LinkLayout::kLeast, kTwoHosts, capabilities);
    open_some(world, capabilities);
    // Who has one has no shared memory, and hears nothing; who has none knows that much.
    expect_notes({{world.host(poor).address(), Mover::kRc, Reason::kNotOffered},
                  {{}, Mover::kShm, Reason::kNotHere},
                  {{}, Mover::kRc, Reason::kNotHere},
                  {{}, Mover::kShm, Reason::kNotHere}});
  }
}

TEST(PeerLinksDevices, ClientWithoutRdma_OffersSharedMemory_IsNotedByWhoHasRdma) {
  PeerWorld world(1, LinkLayout::kLeast, kTwoHosts, {kCapShm, PeerWorld::kBoth});
  CableYard near;
  near.mover = Mover::kShm;
  SimDevice client(near, 0), server(near, 1);
  world.prefer(0, client), world.prefer(1, server);
  open_some(world, {kCapShm, PeerWorld::kBoth});
  expect_notes({{world.host(0).address(), Mover::kRc, Reason::kNotThere},
                {{}, Mover::kRc, Reason::kNotHere},
                {world.host(1).address(), Mover::kShm, Reason::kNotOffered}});
}

TEST(PeerLinksDevices, OnSharedMemory_NobodyMissesRdma) {
  TwoDevices two(kOneHost);
  two.world.has_cables[1] = false;
  two.prefer(0), two.prefer(1);
  ASSERT_TRUE(two.reach_lane(two.world.open()));
  ASSERT_EQ(PeerWorld::notes.size(), 2U);
  for (const PeerWorld::Note& note : PeerWorld::notes) EXPECT_EQ(note.stage, Stage::kUp);
}

TEST(PeerLinksDevices, NoDeviceAtEitherEnd_IsNotedByBoth) {
  PeerWorld world(1, LinkLayout::kLeast, kTwoHosts, {0, 0});
  open_some(world, {0, 0});
  expect_notes({{{}, Mover::kRc, Reason::kNotHere},
                {{}, Mover::kShm, Reason::kNotHere},
                {{}, Mover::kRc, Reason::kNotHere},
                {{}, Mover::kShm, Reason::kNotHere}});
}

TEST(PeerLinksDevices, NeighbourWithAnotherRunDirectory_IsPlainTcpAndNotedOnce) {
  TwoDevices two(kTwoDirectories);
  two.world.has_cables = {false, false};
  two.prefer(0), two.prefer(1);
  for (int i = 0; i < 3; i++) EXPECT_FALSE(FramedTcp::has(*two.world.open().tcb[0]));
  two.world.run_for(1ms);
  expect_notes({{two.world.host(0).address(), Mover::kShm, Reason::kElsewhere},
                {two.world.host(1).address(), Mover::kShm, Reason::kNotOffered},
                {{}, Mover::kRc, Reason::kNotHere},
                {{}, Mover::kRc, Reason::kNotHere}});
}

TEST(ReportedOnce, EachPeerOnce_ManyTogether) {
  ReportedOnce told;
  const auto add = [&told](unsigned last, Mover mover = Mover::kRc, Reason why = Reason::kNotOffered) {
    return told.add({IpAddress::from_v4(0x0a090000 + last), 0, mover, why});
  };
  for (unsigned i = 1; i <= ReportedOnce::kMostPeers; i++) {
    EXPECT_EQ(add(i), IpAddress::from_v4(0x0a090000 + i));
    EXPECT_FALSE(add(i));
  }
  EXPECT_EQ(add(200), IpAddress()) << "one line for all others";
  EXPECT_FALSE(add(200));
  EXPECT_FALSE(add(201));
  EXPECT_TRUE(add(200, Mover::kShm)) << "of another mover";
  EXPECT_TRUE(add(200, Mover::kRc, Reason::kNotThere)) << "of another reason";
}

TEST(ReportedOnce, NobodyInParticular_IsToldOfEachPort) {
  ReportedOnce told;
  for (std::uint16_t port = 0; port < 16; port++) {
    EXPECT_EQ(told.add({{}, port, Mover::kRc, Reason::kNotHere}), IpAddress());
    EXPECT_FALSE(told.add({{}, port, Mover::kRc, Reason::kNotHere}));
  }
}

TEST(PeerLinksDevices, HostThatDoesNotKnowWhereItIs_SharesNothing) {
  TwoDevices two({0, 0});
  two.world.has_cables = {false, false};
  two.prefer(0), two.prefer(1);
  EXPECT_FALSE(FramedTcp::has(*two.world.open().tcb[0]));
}

}  // namespace
}  // namespace bypass::fastpath::test
