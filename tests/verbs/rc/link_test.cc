// RcLink keeps link.h's promises, also when its queue pair or its device fails.
#include "backends/verbs/rc/link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "fixture.h"

namespace bypass::verbs {
namespace {

class RcLinkTest : public testing::Test {
 protected:
  void SetUp() override { connect({}); }
  /// For tests that need several devices, one after another.
  void renew() {
    world.reset();  // there is one EngineVerbs at a time
    world = std::make_unique<RcWorld>();
    connect({});
  }
  void connect(const fastpath::LinkDeviceSpec& spec) {
    ASSERT_TRUE(world->open(spec)) << world->problem;
    ASSERT_TRUE(world->connect());
    for (std::size_t i = 0; i < 2; i++) {
      world->verbs.end(i).posted.clear();
      world->verbs.end(i).doorbells = 0;
    }
  }

  Write write(std::uint64_t to, std::size_t from, std::size_t length, bool notify = true) {
    Write made;
    made.to = to;
    made.from[0] = std::span(world->buffers[0]).subspan(from, length);
    made.notify = notify;
    made.immediate = next++;
    return made;
  }
  Write small(std::uint64_t to, std::uint8_t value, bool notify = true) {
    Write made;
    made.to = to;
    made.small[0] = std::byte{value};
    made.small_length = 1;
    made.notify = notify;
    made.immediate = next++;
    return made;
  }
  void post(const Write& one) { a().post({&one, 1}); }
  RcLink& a() { return world->link(0); }
  RcLink& b() { return world->link(1); }
  std::byte at_b(std::size_t offset) { return world->memory[1][offset]; }
  /// Both ends poll while time passes.
  std::vector<Arrival> run(Duration time = 1ms) {
    std::vector<Arrival> all;
    for (const Instant until = world->verbs.now() + time; world->verbs.now() < until;) {
      world->verbs.run_for(std::min(time, Duration{100us}));
      (void)poll_all(a());
      for (const Arrival& each : poll_all(b())) all.push_back(each);
    }
    return all;
  }
  static bool readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  }
  void expect_drained(RcLink& link) {
    (void)poll_all(link);
    EXPECT_EQ(link.state(), LinkState::kDrained);
    EXPECT_EQ(link.room(), 0U);
    EXPECT_EQ(poll_all(link).size(), 0U);
  }

  std::unique_ptr<RcWorld> world = std::make_unique<RcWorld>();
  std::uint32_t next = 0;
  std::list<std::vector<std::byte>> extra;
};

// --- Writing

TEST_F(RcLinkTest, Message_ComesAfterItsBytes_WithItsLength) {
  for (std::size_t i = 0; i < 5000; i++) world->buffers[0][100 + i] = static_cast<std::byte>(i * 7);
  post(write(1000, 100, 5000));
  const std::vector<Arrival> got = run();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].immediate, 0U);
  EXPECT_EQ(got[0].length, 5000U);
  EXPECT_TRUE(std::equal(&world->memory[1][1000], &world->memory[1][6000], &world->buffers[0][100]));
}

TEST_F(RcLinkTest, BothParts_LieBehindEachOther) {
  std::memset(world->buffers[0].data(), 1, 3000);
  std::memset(world->buffers[0].data() + 10'000, 2, 2000);
  Write two = write(0x1000, 0, 3000);
  two.from[1] = std::span(world->buffers[0]).subspan(10'000, 2000);
  post(two);
  ASSERT_EQ(run().size(), 1U);
  EXPECT_EQ(at_b(0x1000 + 2999), std::byte{1});
  EXPECT_EQ(at_b(0x1000 + 3000), std::byte{2});
  EXPECT_EQ(at_b(0x1000 + 4999), std::byte{2});
  EXPECT_EQ(at_b(0x1000 + 5000), std::byte{0});
}

TEST_F(RcLinkTest, WithoutNotice_TheBytesComeAlone) {
  post(small(200, 7, false));
  EXPECT_TRUE(run().empty());
  EXPECT_EQ(at_b(200), std::byte{7});
  EXPECT_EQ(world->verbs.end(0).posted[0].opcode, IBV_WR_RDMA_WRITE);
}

TEST_F(RcLinkTest, MessageWithoutBytes_HasLengthZero) {
  Write none;
  none.notify = true;
  none.immediate = 0xfedcba98;
  post(none);
  const auto got = run();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].immediate, 0xfedcba98U);
  EXPECT_EQ(got[0].length, 0U);
}

TEST_F(RcLinkTest, Batch_OneDoorbell_InOrder_FewCompletions) {
  std::vector<Write> batch;
  for (unsigned i = 0; i < 32; i++) batch.push_back(small(100, static_cast<std::uint8_t>(i)));
  a().post(batch);
  EXPECT_EQ(world->verbs.end(0).doorbells, 1U);
  const auto& posted = world->verbs.end(0).posted;
  EXPECT_EQ(std::count_if(posted.begin(), posted.end(),
                          [](const auto& each) { return (each.flags & IBV_SEND_SIGNALED) != 0; }),
            1);
  const auto got = run();
  ASSERT_EQ(got.size(), 32U);
  for (std::uint32_t i = 0; i < 32; i++) EXPECT_EQ(got[i].immediate, i);
  EXPECT_EQ(at_b(100), std::byte{31});
}

// A program that only writes. Acknowledgements and credits are still received.
TEST_F(RcLinkTest, SenderThatDoesNotPoll_LooksAfterSoManyRequests_OrBytes) {
  const std::size_t& polls = world->verbs.end(0).polls;
  const std::size_t before = polls;
  for (std::uint32_t i = 1; i < RcLink::kLookEvery; i++) post(small(100, 1));
  EXPECT_EQ(polls, before);
  post(small(100, 1));
  EXPECT_EQ(polls, before + 1);

  constexpr std::size_t kPart = RcLink::kLookEveryBytes / 4;
  for (int i = 1; i < 4; i++) post(write(1000, 100, kPart));
  EXPECT_EQ(polls, before + 1);
  post(write(1000, 100, kPart));
  EXPECT_EQ(polls, before + 2);
  post(write(1000, 100, kPart));  // counted anew
  EXPECT_EQ(polls, before + 2);
  EXPECT_EQ(run().size(), RcLink::kLookEvery + 5);
}

TEST_F(RcLinkTest, SmallWrites_TravelInsideTheirRequest_FromAnywhere) {
  std::vector<std::byte> elsewhere(4096, std::byte{9});
  Write inside;
  inside.to = 64;
  inside.from[0] = std::span(elsewhere).first(220);
  post(inside);
  std::fill(elsewhere.begin(), elsewhere.end(), std::byte{1});  // it was copied
  post(write(4096, 0, 221));
  (void)run();
  const auto& posted = world->verbs.end(0).posted;
  EXPECT_NE(posted[0].flags & IBV_SEND_INLINE, 0U);
  EXPECT_EQ(posted[1].flags & IBV_SEND_INLINE, 0U);
  EXPECT_EQ(at_b(64 + 219), std::byte{9});
  EXPECT_EQ(a().state(), LinkState::kUp);
}

TEST_F(RcLinkTest, RangesBesideEachOther_AreOneWritesPieces) {
  const auto range = std::span<const std::byte>(world->buffers[0]);
  world->devices[0]->remove_memory(range);
  const char* problem = nullptr;
  ASSERT_TRUE(world->devices[0]->add_memory(range.first(4096), problem));
  ASSERT_TRUE(world->devices[0]->add_memory(range.subspan(4096), problem));
  post(write(100, 4000, 1000));
  EXPECT_EQ(run().size(), 1U);
  EXPECT_EQ(world->verbs.end(0).posted[0].pieces, 2);
}

TEST_F(RcLinkTest, Room_ShrinksAndComesBack) {
  const std::size_t all = a().room();
  EXPECT_EQ(all, 512U - 2) << "the full packet and the ping have not asked for a completion";
  std::vector<Write> batch;
  while (batch.size() < all) batch.push_back(small(100, 1, false));
  a().post(batch);
  EXPECT_EQ(a().room(), 0U);
  (void)run(10ms);
  EXPECT_GE(a().room(), 512U - RcLink::kSignalEvery);
  EXPECT_EQ(a().state(), LinkState::kUp);
}

// More messages than receives are posted at a time, as credits allow.
TEST_F(RcLinkTest, Receives_AreKeptPosted) {
  std::size_t got = 0;
  for (int round = 0; round < 40; round++) {
    std::vector<Write> batch;
    for (int i = 0; i < 200; i++) batch.push_back(small(100, 1));
    a().post(batch);
    got += run().size();
  }
  EXPECT_EQ(got, 8000U);
  EXPECT_EQ(world->verbs.end(1).engine->counters().tx_rnr_nak, 0U);
}

TEST_F(RcLinkTest, AWholeWindowAtOnce_FindsReceives) {
  for (int round = 0; round < 3; round++) {
    std::vector<Write> batch;
    for (int i = 0; i < 480; i++) batch.push_back(small(100, 1));
    a().post(batch);
    for (int i = 0; i < 36; i++) batch.push_back(small(100, 1));  // 512 and the uncounted ones
    world->verbs.run_for(1ms);
    (void)poll_all(a());
    a().post(std::span(batch).last(36));
    world->verbs.run_for(1ms);
    (void)poll_all(a());
    EXPECT_EQ(poll_all(b()).size(), 516U);
  }
  EXPECT_EQ(world->verbs.end(1).engine->counters().tx_rnr_nak, 0U);
}

// --- Waiting

TEST_F(RcLinkTest, Armed_AMessageWakes) {
  EXPECT_FALSE(b().arm());
  EXPECT_FALSE(readable(b().wait_descriptor()));
  post(small(100, 1));
  world->verbs.run_for(1ms);
  EXPECT_TRUE(readable(b().wait_descriptor()));
  EXPECT_TRUE(b().arm()) << "it is there already";
  EXPECT_FALSE(readable(b().wait_descriptor()));
  EXPECT_EQ(poll_all(b()).size(), 1U);
  EXPECT_FALSE(b().arm());
}

TEST_F(RcLinkTest, ArmedTooLate_TheMessageIsSeenAllTheSame) {
  post(small(100, 1));
  world->verbs.run_for(1ms);
  EXPECT_TRUE(b().arm());
  EXPECT_TRUE(b().arm()) << "as long as it has not been polled";
  EXPECT_EQ(poll_all(b()).size(), 1U);
}

TEST_F(RcLinkTest, Armed_BytesWithoutAMessage_WakeNobody) {
  EXPECT_FALSE(b().arm());
  post(small(100, 1, false));
  world->verbs.run_for(1ms);
  EXPECT_FALSE(readable(b().wait_descriptor()));
}

TEST_F(RcLinkTest, Armed_OwnCompletionsWakeOnlyWhoWaitsForRoom) {
  std::vector<Write> batch;
  for (int i = 0; i < 100; i++) batch.push_back(small(100, 1, false));
  a().post(batch);
  EXPECT_FALSE(a().arm());
  world->verbs.run_for(1ms);
  EXPECT_FALSE(readable(a().wait_descriptor()));
  (void)poll_all(a());
  batch.clear();
  while (batch.size() < a().room()) batch.push_back(small(100, 1, false));
  a().post(batch);
  ASSERT_EQ(a().room(), 0U);
  EXPECT_FALSE(a().arm());
  world->verbs.run_for(1ms);
  EXPECT_TRUE(readable(a().wait_descriptor()));
  (void)poll_all(a());
  EXPECT_GT(a().room(), 0U);
}

// Only the device knows what it may have to send again.
TEST_F(RcLinkTest, LastOfALane_IsToldOnceItIsDone) {
  Write last = small(100, 1);
  last.last_of = 7;
  post(write(1000, 0, 4096));
  post(last);
  post(small(100, 2));
  EXPECT_TRUE(poll_all(a()).empty());
  EXPECT_FALSE(a().arm());  // and it wakes the sleeper
  world->verbs.run_for(1ms);
  EXPECT_TRUE(readable(a().wait_descriptor()));
  const auto told = poll_all(a());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].done_of, 7);
  EXPECT_EQ(run().size(), 3U);
}

TEST_F(RcLinkTest, LastOfALaneWhenTheLinkDies_IsNotTold) {
  Write last = small(100, 1);
  last.last_of = 7;
  world->verbs.break_pair(1);
  post(last);
  world->verbs.run_for(1s);
  EXPECT_TRUE(poll_all(a()).empty());
  expect_drained(a());
}

TEST_F(RcLinkTest, Armed_TheEndWakes) {
  EXPECT_FALSE(b().arm());
  world->verbs.break_pair(1);
  world->verbs.run_for(1us);
  EXPECT_TRUE(readable(b().wait_descriptor()));
  EXPECT_TRUE(b().arm());
  expect_drained(b());
}

TEST_F(RcLinkTest, ArmingRefused_NobodySleeps) {
  world->verbs.end(1).errors.arm = EIO;
  EXPECT_TRUE(b().arm());
}

// --- The end

TEST_F(RcLinkTest, Fail_DrainsHere_AndThePeerFindsOut) {
  a().fail();
  a().fail();
  EXPECT_EQ(a().state(), LinkState::kFailed);
  expect_drained(a());
  const Write late = small(300, 5);
  a().post({&late, 1});
  const Write theirs = small(400, 6);
  b().post({&theirs, 1});
  (void)run(1s);
  EXPECT_EQ(at_b(300), std::byte{0});
  expect_drained(b());
}

// Bytes that arrived before the end count, and the link is drained after it.
TEST_F(RcLinkTest, MessagesBeforeTheEnd_Count) {
  for (int i = 0; i < 50; i++) post(small(100, 1));
  world->verbs.run_for(1ms);
  b().fail();
  EXPECT_EQ(b().state(), LinkState::kFailed);
  std::array<Arrival, 50> some;
  std::size_t got = 0;
  for (int i = 0; i < 100 && b().state() != LinkState::kDrained; i++) got += b().poll(std::span(some).first(7));
  EXPECT_EQ(got, 50U);
  EXPECT_EQ(b().state(), LinkState::kDrained);
}

// Devices flush the two queues in no particular order.
TEST_F(RcLinkTest, ReceivesComeLast_TheyAreAwaited) {
  for (int i = 0; i < 5; i++) post(small(100, 1));
  world->verbs.run_for(1ms);
  world->verbs.end(1).hold = EngineVerbs::End::Hold::kReceives;
  b().fail();
  EXPECT_EQ(poll_all(b()).size(), 0U);
  EXPECT_EQ(b().state(), LinkState::kFailed);
  world->verbs.end(1).hold = EngineVerbs::End::Hold::kNothing;
  EXPECT_EQ(poll_all(b()).size(), 5U);
  expect_drained(b());
}

TEST_F(RcLinkTest, SendsComeLast_TheirBuffersAreTheDevicesUntilThen) {
  post(write(100, 0, 4096));
  world->verbs.end(0).hold = EngineVerbs::End::Hold::kSends;
  a().fail();
  (void)poll_all(a());
  EXPECT_EQ(a().state(), LinkState::kFailed);
  world->verbs.end(0).hold = EngineVerbs::End::Hold::kNothing;
  expect_drained(a());
}

// Some writes under way have changed memory and their message has not come. Never the other way round.
TEST_F(RcLinkTest, MessagesWhileItEnds_AreAPrefix) {
  for (unsigned cut = 0; cut < 60; cut += 3) {
    renew();
    for (unsigned i = 0; i < 40; i++) post(small(1000 + i, 1));
    world->verbs.run_for(Duration{cut * 300});
    world->verbs.break_pair(1);
    const auto got = run();
    for (std::size_t i = 0; i < got.size(); i++) {
      EXPECT_EQ(got[i].immediate, got[0].immediate + i);
      EXPECT_EQ(at_b(1000 + i), std::byte{1});
    }
    EXPECT_EQ(b().state(), LinkState::kDrained);
  }
}

TEST_F(RcLinkTest, PeerIsGone_RetriesEnd_Drained) {
  world->devices[1]->close(world->setups[1]);
  world->setups[1] = nullptr;
  post(small(100, 1));
  world->verbs.run_for(1s);
  expect_drained(a());
}

TEST_F(RcLinkTest, WriteOutsideThePeersMemory_EndsBoth_ChangesNothing) {
  post(small(RcWorld::kMemory, 1));
  (void)run(10ms);
  expect_drained(a());
  expect_drained(b());
}

TEST_F(RcLinkTest, BytesThatAreNotRegistered_EndIt_BeforeTheDeviceSeesThem) {
  std::vector<std::byte> elsewhere(4096);
  Write strange;
  strange.from[0] = elsewhere;
  const std::array<Write, 3> batch{small(100, 1), strange, small(101, 1)};
  a().post(batch);
  EXPECT_EQ(world->verbs.end(0).posted.size(), 1U + 1U) << "the first, and the last request of all";
  expect_drained(a());
}

TEST_F(RcLinkTest, RequestRefused_EndsIt) {
  world->verbs.end(0).refuse_sends_after = 2;
  std::vector<Write> batch;
  for (int i = 0; i < 5; i++) batch.push_back(small(100, 1));
  a().post(batch);
  EXPECT_EQ(a().state(), LinkState::kFailed);
  expect_drained(a());  // also without the last request: the queue pair is gone
}

TEST_F(RcLinkTest, ReceivesRefused_EndsIt) {
  world->verbs.end(1).refuse_receives_after = 10;
  for (int i = 0; i < 64; i++) post(small(100, 1));
  EXPECT_EQ(run().size(), 64U);
  expect_drained(b());
}

TEST_F(RcLinkTest, QueuePairCannotBeEnded_ItGoes) {
  for (int i = 0; i < 5; i++) post(small(100, 1));
  world->verbs.run_for(1ms);
  world->verbs.end(1).errors.to_err = EIO;
  b().fail();
  EXPECT_EQ(b().state(), LinkState::kFailed);
  EXPECT_EQ(poll_all(b()).size(), 5U) << "what has been told counts";
  expect_drained(b());
}

TEST_F(RcLinkTest, CompletionQueueBroken_ItGoes) {
  world->verbs.end(1).poll_fails = true;
  expect_drained(b());
}

TEST_F(RcLinkTest, DeviceIsSilent_GivenUp_Drained) {
  world->verbs.end(0).silent = true;
  a().fail();
  (void)poll_all(a());
  EXPECT_EQ(a().state(), LinkState::kFailed) << "it waits";
  world->setups[0]->give_up();
  expect_drained(a());
}

// --- Events

TEST_F(RcLinkTest, QueuePairEvents_EndIt) {
  for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    renew();
    world->verbs.report(0, type);
    EXPECT_TRUE(readable(world->devices[0]->descriptor()));
    world->devices[0]->attend();
    EXPECT_FALSE(readable(world->devices[0]->descriptor()));
    expect_drained(a());
  }
}

TEST_F(RcLinkTest, CompletionQueueOverrun_ItGoes) {
  world->verbs.report(0, IBV_EVENT_CQ_ERR);
  world->verbs.end(0).silent = true;
  world->devices[0]->attend();
  expect_drained(a());
}

TEST_F(RcLinkTest, PortWithoutLink_EndsIt_AnotherPortDoesNot) {
  world->verbs.report(0, IBV_EVENT_PORT_ERR, 2);
  world->verbs.report(0, IBV_EVENT_PORT_ACTIVE);
  world->devices[0]->attend();
  EXPECT_EQ(a().state(), LinkState::kUp);
  world->verbs.report(0, IBV_EVENT_PORT_ERR, 1);
  world->devices[0]->attend();
  expect_drained(a());
}

TEST_F(RcLinkTest, DeviceIsGone_AllGoes) {
  world->verbs.report(0, IBV_EVENT_DEVICE_FATAL);
  world->verbs.end(0).silent = true;
  world->devices[0]->attend();
  EXPECT_TRUE(world->devices[0]->lost());
  EXPECT_FALSE(readable(world->devices[0]->descriptor())) << "nobody is woken for ever";
  expect_drained(a());
}

// Links end, and the device is not looked for before the last of them is closed. Then it is looked for, and links are
// made anew, with the memory that was added before and meanwhile.
TEST_F(RcLinkTest, DeviceThatWasLost_MakesLinksAgainOnceItIsBack) {
  RcDevice& device = *world->devices[0];
  const auto close_both = [&] {
    for (std::size_t i = 0; i < 2; i++) world->devices[i]->close(std::exchange(world->setups[i], nullptr));
  };
  for (int round = 0; round < 3; round++) {
    world->verbs.take_away(0);
    world->verbs.end(0).silent = true;
    device.attend();
    ASSERT_TRUE(device.lost());
    expect_drained(a());
    b().fail();
    (void)run();
    EXPECT_EQ(world->verbs.end(0).alive > 1, true) << "a link is there still";
    close_both();
    device.attend();
    device.attend();
    EXPECT_TRUE(device.lost()) << "it is not there";
    EXPECT_EQ(world->verbs.end(0).alive, 0) << "nothing of the old one is left";
    EXPECT_EQ(device.request(9, world->memory[0], world->verbs.end(1).address(), world->verbs.now()), nullptr);
    const char* problem = nullptr;
    std::vector<std::byte>& more = extra.emplace_back(10'000, static_cast<std::byte>(round + 1));
    ASSERT_TRUE(device.add_memory(more, problem));
    world->verbs.bring_back(0);
    for (int i = 0; i < 3 && device.lost(); i++) device.attend();
    ASSERT_FALSE(device.lost());
    ASSERT_TRUE(world->connect()) << round;
    std::memset(world->buffers[0].data(), 7, 1000);
    post(write(2000, 0, 1000));
    Write from_new;
    from_new.to = 5000;
    from_new.from[0] = std::span<const std::byte>(more).first(3000);
    from_new.notify = true;
    post(from_new);
    ASSERT_EQ(run().size(), 2U);
    EXPECT_EQ(at_b(2999), std::byte{7});
    EXPECT_EQ(at_b(7999), static_cast<std::byte>(round + 1));
  }
}

// The device's own thread looks. A thread that ends the device does not wait for it.
TEST_F(RcLinkTest, DeviceThatWasLost_IsLookedForByItsThread) {
  for (const bool comes_back : {true, false}) {
    renew();
    RcDevice& device = *world->devices[0];
    ASSERT_TRUE(device.start_thread(world->problem));
    world->verbs.take_away(0);
    world->verbs.end(0).silent = true;
    device.attend();
    ASSERT_TRUE(device.lost());
    expect_drained(a());
    device.close(std::exchange(world->setups[0], nullptr));
    const auto wait = [&](auto done) {
      const auto limit = std::chrono::steady_clock::now() + 20s;
      while (!done() && std::chrono::steady_clock::now() < limit) {
        pollfd item{device.descriptor(), POLLIN, 0};
        (void)::poll(&item, 1, 10);
        device.attend();
      }
      return done();
    };
    ASSERT_TRUE(wait([&] { return device.gone(world->memory[0]); }));
    device.attend();  // the thread looks from here on
    if (!comes_back) continue;
    world->verbs.bring_back(0);
    EXPECT_TRUE(wait([&] { return !device.lost(); }));
  }
}

TEST_F(RcLinkTest, ReadyWithAReason_EndsALinkThatIsUp) {
  std::array<std::byte, fastpath::kLinkHeadBytes> body;
  encode(fastpath::LinkHead{.link = 7, .reason = Reason::kPolicy}, body);
  world->setups[1]->on_record(RecordType::kLinkReady, body);
  expect_drained(b());
}

}  // namespace
}  // namespace bypass::verbs
