// Links over shared memory: bytes that one end writes reach the other in order, once, and nowhere else. Also which
// process is at the other end.
#include "fastpath/shm/link.h"

#include <sys/wait.h>

#include <fstream>
#include <random>

#include "fastpath/shm/link_world.h"
#include "long_form.h"

namespace bypass::test {
namespace {

bool is_segment_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("bypass-connection") != std::string::npos) return true;
  return false;
}

class ShmLinkTest : public LeakFree {
 protected:
  void SetUp() override { ASSERT_TRUE(world->bring_up()); }
  void TearDown() override {
    world.reset();
    LeakFree::TearDown();
  }
  ShmLink& link(std::size_t i) { return world->link(i); }
  void post(std::size_t i, const Write& write) { link(i).post({&write, 1}); }

  std::unique_ptr<LinkWorld> world = std::make_unique<LinkWorld>();
  std::vector<std::byte> bytes = std::vector<std::byte>(ShmLink::kMostWrite, std::byte{7});
};

TEST_F(ShmLinkTest, WriteWithAMessage_LiesInTheMemoryWhenItIsPolled) {
  post(0, write_of(1000, std::span(bytes).first(100), 0x42));
  EXPECT_EQ(world->memory(1)[1000], std::byte{0x5a}) << "nobody has polled";
  const std::vector<Arrival> got = world->poll(1);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].immediate, 0x42U);
  EXPECT_EQ(got[0].length, 100U);
  EXPECT_EQ(world->memory(1)[999], std::byte{0x5a});
  EXPECT_EQ(world->memory(1)[1000], std::byte{7});
  EXPECT_EQ(world->memory(1)[1099], std::byte{7});
  EXPECT_EQ(world->memory(1)[1100], std::byte{0x5a});
}

TEST_F(ShmLinkTest, WriteWithoutAMessage_IsThereWhenALaterMessageIs) {
  Write small;
  small.to = 64;
  small.small_length = 8;
  small.small.fill(std::byte{3});
  post(0, small);
  post(0, write_of(0, {}, 0x1));
  const std::vector<Arrival> got = world->poll(1);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].length, 0U);
  EXPECT_EQ(world->memory(1)[71], std::byte{3});
}

// Writes of all sizes, which cross the ring's end many times.
TEST_F(ShmLinkTest, ManyWritesBothWays_ComeInOrderWithTheirBytes) {
  std::mt19937 random(1);
  std::array<std::uint32_t, 2> posted{}, polled{};
  std::array<std::vector<std::uint32_t>, 2> lengths;
  for (int round = 0; round < 3000; round++) {
    for (std::size_t i = 0; i < 2; i++) {
      for (std::size_t n = std::min<std::size_t>(random() % 5, link(i).room()); n > 0; n--) {
        const std::size_t length = random() % 3 == 0 ? random() % (ShmLink::kMostWrite + 1) : random() % 200;
        std::fill_n(bytes.begin(), length, static_cast<std::byte>(++posted[i]));
        Write write = write_of(100, std::span(bytes).first(length / 3), posted[i]);
        write.from[1] = std::span(bytes).subspan(length / 3, length - length / 3);
        lengths[i].push_back(static_cast<std::uint32_t>(length));
        post(i, write);
      }
      Arrival got;
      while (random() % 8 != 0 && link(1 - i).poll({&got, 1}) == 1) {
        ASSERT_EQ(got.immediate, ++polled[i]);
        ASSERT_EQ(got.length, lengths[i][got.immediate - 1]);
        const std::span<std::byte> place = world->memory(1 - i).subspan(100, got.length);
        ASSERT_TRUE(std::all_of(place.begin(), place.end(),
                                [&](std::byte b) { return b == static_cast<std::byte>(got.immediate); }));
      }
    }
  }
  EXPECT_GT(polled[0], 2000U);
  EXPECT_TRUE(world->guards_hold(0) && world->guards_hold(1));
}

TEST_F(ShmLinkTest, FullRing_HasNoRoomUntilTheReaderHasRead) {
  std::uint32_t posted = 0;
  while (link(0).room() != 0) post(0, write_of(0, bytes, ++posted));
  EXPECT_GE(posted, fastpath::LinkEnd::kBatch);
  EXPECT_EQ(link(0).state(), LinkState::kUp);
  EXPECT_EQ(world->poll(1).size(), posted);
  EXPECT_GE(link(0).room(), fastpath::LinkEnd::kBatch) << "a full batch finds room";
}

// --- Sleeping

TEST_F(ShmLinkTest, OnlyWhoSaysThatHeSleeps_IsWokenAndOnce) {
  ASSERT_FALSE(link(1).arm());
  EXPECT_FALSE(is_readable(link(1).wait_descriptor()));
  post(0, write_of(0, {}, 1));
  EXPECT_TRUE(is_readable(link(1).wait_descriptor()));
  post(0, write_of(0, {}, 2));
  EXPECT_TRUE(link(1).arm()) << "messages are there, and the one wake-up is taken";
  EXPECT_FALSE(is_readable(link(1).wait_descriptor()));
  EXPECT_EQ(world->poll(1).size(), 2U);
}

// Two threads: the one that sleeps has armed the link. The other polls, or falls asleep as well and finds something.
TEST_F(ShmLinkTest, WhoPollsBesideASleeper_TakesNoWakeUpFromHim) {
  ASSERT_FALSE(link(1).arm());
  post(0, write_of(0, {}, 1));
  world->devices[1]->attend();
  EXPECT_EQ(world->poll(1).size(), 1U);
  EXPECT_TRUE(is_readable(link(1).wait_descriptor())) << "until the next arm()";
  post(0, write_of(0, {}, 2));
  EXPECT_TRUE(link(1).arm());
  EXPECT_EQ(world->poll(1).size(), 1U);
  post(0, write_of(0, {}, 3));
  EXPECT_TRUE(is_readable(link(1).wait_descriptor()));
}

TEST_F(ShmLinkTest, WhoWaitsForRoom_IsWokenWhenThereIsPlenty) {
  std::uint32_t posted = 0;
  while (link(0).room() != 0) post(0, write_of(0, bytes, ++posted));
  ASSERT_FALSE(link(0).arm());
  Arrival got;
  ASSERT_EQ(link(1).poll({&got, 1}), 1U);
  world->poll(1);
  EXPECT_TRUE(is_readable(link(0).wait_descriptor()));
  EXPECT_GE(link(0).room(), fastpath::LinkEnd::kBatch);
  EXPECT_FALSE(link(0).arm());
  EXPECT_FALSE(is_readable(link(0).wait_descriptor()));
}

TEST_F(ShmLinkTest, RoomThatCameMeanwhile_IsNotSleptThrough) {
  std::uint32_t posted = 0;
  while (link(0).room() != 0) post(0, write_of(0, bytes, ++posted));
  world->poll(1);
  EXPECT_TRUE(link(0).arm());
}

// --- The end

TEST_F(ShmLinkTest, PeerGoes_WhatItWroteCountsAndThenNoMore) {
  post(0, write_of(0, std::span(bytes).first(50), 1));
  post(0, write_of(0, std::span(bytes).first(50), 2));
  ASSERT_FALSE(link(0).arm());
  world->devices[0]->close(world->setups[0]);
  EXPECT_TRUE(is_readable(link(1).wait_descriptor()));
  world->devices[1]->attend();
  EXPECT_EQ(link(1).state(), LinkState::kFailed);
  EXPECT_EQ(link(1).room(), 0U);
  EXPECT_EQ(world->poll(1).size(), 2U);
  EXPECT_EQ(link(1).state(), LinkState::kDrained);
}

TEST_F(ShmLinkTest, PeerGoesWhileWeFallAsleep_ArmSaysSo) {
  world->devices[0]->close(world->setups[0]);
  EXPECT_TRUE(link(1).arm());
  EXPECT_EQ(link(1).state(), LinkState::kDrained);
}

TEST_F(ShmLinkTest, Failed_TakesWhatHasComeAndNothingLater) {
  post(0, write_of(0, std::span(bytes).first(10), 1));
  link(1).fail();
  post(0, write_of(500, std::span(bytes).first(10), 2));
  const std::vector<Arrival> got = world->poll(1);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].immediate, 1U);
  EXPECT_EQ(link(1).state(), LinkState::kDrained);
  EXPECT_EQ(world->memory(1)[500], std::byte{0x5a});
  world->devices[0]->attend();
  EXPECT_NE(link(0).state(), LinkState::kUp) << "the peer finds out by itself";
}

TEST_F(ShmLinkTest, GivenUp_NothingCountsAnyMore) {
  post(0, write_of(0, std::span(bytes).first(10), 1));
  link(1).fail();
  world->setups[1]->give_up();
  EXPECT_EQ(link(1).state(), LinkState::kDrained);
  EXPECT_TRUE(world->poll(1).empty());
}

TEST_F(ShmLinkTest, ForkedChild_KeepsNothingAndEndsNothing) {
  ASSERT_TRUE(is_segment_mapped());
  const pid_t child = ::fork();
  if (child == 0) {
    const std::size_t descriptors = open_descriptors();
    for (std::size_t i = 0; i < 2; i++) world->devices[i]->abandon();
    const bool mapped = is_segment_mapped();
    world->devices = {};
    ::_exit(mapped ? 1 : open_descriptors() != descriptors ? 2 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  post(0, write_of(0, {}, 1));
  EXPECT_EQ(world->poll(1).size(), 1U);
}

// --- A peer that breaks the rules

class ShmHostileTest : public LeakFree {
 protected:
  void TearDown() override {
    hand.reset();
    world.reset();
    LeakFree::TearDown();
  }
  std::unique_ptr<LinkWorld> world = std::make_unique<LinkWorld>();
  std::unique_ptr<Hand> hand = std::make_unique<Hand>(*world);
};

TEST_F(ShmHostileTest, WriteInsideItsMemory_IsTaken) {
  ASSERT_TRUE(hand->bring_up());
  const std::vector<std::byte> bytes(10, std::byte{1});
  hand->put({.to = LinkWorld::kMemory - 10, .length = 10 | Hand::kNotify, .immediate = 5}, bytes);
  hand->tell(hand->produced);
  EXPECT_EQ(world->poll(0).size(), 1U);
  EXPECT_EQ(world->link(0).state(), LinkState::kUp);
}

TEST_F(ShmHostileTest, WritesThatReachFurther_EndTheLinkAndChangeNothing) {
  const std::uint32_t most = ShmLink::kMostWrite;
  for (const Hand::Header& bad : {
           Hand::Header{.to = LinkWorld::kMemory, .length = 1}, Hand::Header{.to = LinkWorld::kMemory + 1, .length = 0},
           Hand::Header{.to = LinkWorld::kMemory - 1, .length = 2}, Hand::Header{.to = UINT64_MAX, .length = 2},
           Hand::Header{.to = UINT64_MAX - 15, .length = 32}, Hand::Header{.to = 0, .length = most + 1},
           Hand::Header{.to = 0, .length = 0x7fffffff}, Hand::Header{.to = 0, .length = 17},  // more than was announced
       }) {
    SCOPED_TRACE(bad.to);
    hand.reset();
    world = std::make_unique<LinkWorld>();
    hand = std::make_unique<Hand>(*world);
    ASSERT_TRUE(hand->bring_up());
    const std::vector<std::byte> before(world->memory(0).begin(), world->memory(0).end());
    hand->put({.to = 8, .length = Hand::kNotify, .immediate = 1});
    hand->put(bad, std::vector<std::byte>(16, std::byte{1}));
    hand->tell(hand->produced);
    EXPECT_EQ(world->poll(0).size(), 1U) << "the one in front of it";
    EXPECT_EQ(world->link(0).state(), LinkState::kDrained);
    EXPECT_TRUE(world->guards_hold(0));
    EXPECT_TRUE(std::equal(before.begin(), before.end(), world->memory(0).begin()));
  }
}

TEST_F(ShmHostileTest, IndicesThatCannotBe_EndTheLink) {
  const auto indices = {std::uint64_t{8}, std::uint64_t{0}, 2 * ShmLink::kRing, UINT64_MAX};
  for (const std::uint64_t index : indices) {
    SCOPED_TRACE(index);
    hand.reset();
    world = std::make_unique<LinkWorld>();
    hand = std::make_unique<Hand>(*world);
    ASSERT_TRUE(hand->bring_up());
    hand->tell(index == 8 ? hand->produced + 8 : index);
    world->poll(0);
    EXPECT_EQ(world->link(0).state(), LinkState::kDrained);
  }
}

TEST_F(ShmHostileTest, ClaimsToHaveReadWhatWasNotWritten_EndsTheLink) {
  ASSERT_TRUE(hand->bring_up());
  hand->segment.outgoing().own->consumed.store(ShmLink::kRing);
  std::size_t posted = 0;
  const std::vector<std::byte> bytes(ShmLink::kMostWrite);
  for (; posted < 100 && world->link(0).room() != 0; posted++) {
    const Write write = write_of(0, bytes, 1);
    world->link(0).post({&write, 1});
  }
  EXPECT_LT(posted, 100U);
  world->poll(0);
  EXPECT_EQ(world->link(0).state(), LinkState::kDrained);
}

TEST_F(ShmHostileTest, SharedMemory_CannotBeCutShort) {
  ASSERT_TRUE(hand->bring_up());
  EXPECT_EQ(::ftruncate(hand->file.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST_F(ShmHostileTest, SaysAnythingOnTheChannel_EndsTheLink) {
  ASSERT_TRUE(hand->bring_up());
  const std::array<std::byte, 8> words{};
  hand->channel.send(words);
  world->link(0).arm();
  EXPECT_EQ(world->link(0).state(), LinkState::kDrained);
}

TEST_F(ShmHostileTest, ManyWakeUps_CostABoundedTime) {
  ASSERT_TRUE(hand->bring_up());
  for (int i = 0; i < 200; i++) hand->channel.wake();
  EXPECT_FALSE(world->link(0).arm());
  EXPECT_EQ(world->link(0).state(), LinkState::kUp);
  EXPECT_TRUE(is_readable(world->link(0).wait_descriptor()));
}

// Whatever the shared memory contains, bytes that it may not write stay unchanged. (Runs under AddressSanitizer as
// well.)
TEST_F(ShmHostileTest, ScribblesOverEverything_ReachesNothingElse) {
  const int rounds = bypass::test::long_form() ? 20'000 : 300;
  std::size_t failed = 0;
  for (int round = 0; round < rounds; round++) {
    SCOPED_TRACE(round);
    std::mt19937_64 random(static_cast<std::uint64_t>(round));
    hand.reset();
    world = std::make_unique<LinkWorld>();
    hand = std::make_unique<Hand>(*world);
    ASSERT_TRUE(hand->bring_up());
    const shm::RingView ring = hand->segment.outgoing();
    const std::uint64_t begin = hand->produced;
    for (std::uint64_t at = begin; at < begin + 4096; at += 8) {
      // Values near the limits, so that some are accepted.
      const std::uint64_t value = random() >> (random() % 64);
      std::memcpy(ring.bytes + at, &value, sizeof value);
    }
    hand->tell(begin + (random() % 5 == 0 ? random() : random() % 256 * 16));
    if (random() % 4 == 0) ring.own->consumed.store(random() >> (random() % 64));
    if (random() % 4 == 0) ring.own->bytes_wanted.store(static_cast<std::uint32_t>(random()));
    const Write write = write_of(0, {}, 1);
    if (world->link(0).room() != 0) world->link(0).post({&write, 1});
    world->poll(0);
    world->link(0).arm();
    ASSERT_TRUE(world->guards_hold(0));
    failed += world->link(0).state() != LinkState::kUp ? 1 : 0;
  }
  EXPECT_GT(failed, 0U);
}

}  // namespace
}  // namespace bypass::test
