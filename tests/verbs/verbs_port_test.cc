// VerbsPort over a device that fails when it is told to, with the extended calls and without.
#include "backends/verbs/verbs_port.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "fixture.h"
#include "stack/frame/arrival.h"

namespace bypass::verbs {
namespace {

enum class Calls { kPlain, kExtended };

class VerbsPortTest : public PortFixture, public testing::WithParamInterface<Calls> {
 protected:
  [[nodiscard]] static bool extended() { return GetParam() == Calls::kExtended; }
  void SetUp() override {
    PortFixture::SetUp();
    device.can.extended_queues = device.can.extended_requests = extended();
    open();
    await_link(LinkState::kUp);
  }
};
INSTANTIATE_TEST_SUITE_P(Both, VerbsPortTest, testing::Values(Calls::kPlain, Calls::kExtended),
                         [](const auto& of) { return of.param == Calls::kPlain ? "Plain" : "Extended"; });

TEST_P(VerbsPortTest, Frames_ManyTimesTheQueuesDepth_PassInOrder) {
  EXPECT_EQ(device.has_extended_queues(), extended());
  std::size_t expected = 0;
  for (int round = 0; round < 40; round++) {
    ASSERT_EQ(port->send(0, frames(30, "out")), 30U);
    device.send_all();
    for (int i = 0; i < 30; i++) ASSERT_TRUE(device.arrive("in" + std::to_string(expected + i)));
    for (const std::string& text : received()) EXPECT_EQ(text, "in" + std::to_string(expected++));
  }
  EXPECT_EQ(expected, 1200U);
  ASSERT_EQ(device.sent.size(), 1200U);
  EXPECT_EQ(device.sent.back(), "out29");
  EXPECT_EQ(port->stats().tx_frames, 1200U);
  expect_no_buffer_lost();
}

TEST_P(VerbsPortTest, Receive_FewerThanHaveCome_LeavesTheRest) {
  for (int i = 0; i < 10; i++) ASSERT_TRUE(device.arrive("in" + std::to_string(i)));
  std::vector<Packet*> four(4);
  ASSERT_EQ(port->receive(0, four), 4U);
  port->free(four);
  const std::vector<std::string> rest = received();
  ASSERT_EQ(rest.size(), 6U);
  EXPECT_EQ(rest.front(), "in4");
}

TEST_P(VerbsPortTest, Send_ABatch_OneDoorbellAndOneCompletion) {
  ASSERT_EQ(port->send(0, frames(30, "out")), 30U);
  EXPECT_EQ(device.doorbells(), 1U);
  for (const FakeDevice::Send& each : device.posted()) EXPECT_EQ(each.is_signaled(), &each == &device.posted().back());
}

// A list has as many requests as a card fetches at once. A list for each frame would ring the doorbell for each.
TEST_P(VerbsPortTest, Receive_RequestsArePostedInLists) {
  constexpr std::size_t kList = 64, kDepth = 128;  // a quarter of the buffers
  EXPECT_EQ(device.receives(), kDepth);
  EXPECT_EQ(device.receive_lists(), kDepth / kList);
  for (std::size_t i = 0; i < kList - 1; i++) ASSERT_TRUE(device.arrive("in"));
  while (!received().empty()) {
  }
  EXPECT_EQ(device.receive_lists(), kDepth / kList);
  ASSERT_TRUE(device.arrive("in"));
  EXPECT_EQ(received().size(), 1U);
  EXPECT_EQ(device.receive_lists(), kDepth / kList + 1);
  EXPECT_EQ(device.receives(), kDepth);
  expect_no_buffer_lost();
}

// Whatever frames pass, and also when the queue pair begins anew.
TEST_P(VerbsPortTest, Memory_IsRegisteredOnce) {
  for (int round = 0; round < 10; round++) {
    ASSERT_EQ(port->send(0, frames(20, "out")), 20U);
    device.send_all();
    for (int i = 0; i < 20; i++) ASSERT_TRUE(device.arrive("in"));
    EXPECT_EQ(received().size(), 20U);
  }
  device.fail();
  for (int look = 0; look < 4; look++) (void)received();
  EXPECT_EQ(port->stats().reopened, 1U);
  EXPECT_EQ(device.registrations(), 1);
}

TEST_P(VerbsPortTest, Send_QueueFull_TakesAPrefix) {
  const std::vector<Packet*> many = frames(200, "out");
  const std::size_t taken = port->send(0, many);
  EXPECT_EQ(taken, 128U);  // a quarter of the buffers
  EXPECT_EQ(port->stats().tx_full, 1U);
  device.send_all();
  EXPECT_EQ(port->send(0, std::span{many}.subspan(taken)), many.size() - taken);
  device.send_all();
  EXPECT_EQ(device.sent.size(), 200U);
  (void)received();
  expect_no_buffer_lost();
}

// A list's beginning has been taken, and nothing will tell of it; what is built call by call is posted whole or not at
// all.
TEST_P(VerbsPortTest, Send_RefusedInTheMiddle_LosesTheRestAndGoesOn) {
  device.refuse_send_after = 3;
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  EXPECT_EQ(port->stats().tx_frames, extended() ? 0U : 3U);
  EXPECT_EQ(port->stats().tx_dropped, extended() ? 10U : 7U);
  device.refuse_send_after.reset();
  (void)received();  // repairs
  EXPECT_EQ(port->stats().reopened, extended() ? 0U : 1U);
  expect_no_buffer_lost();
  ASSERT_EQ(port->send(0, frames(1, "again")), 1U);
  device.send_all();
  EXPECT_EQ(device.sent.back(), "again0");
  (void)received();
  expect_no_buffer_lost();
}

// The device may still read any of them, until the queue pair is reset.
TEST_P(VerbsPortTest, Send_RefusedAndNobodySaysWhere_KeepsAllUntilTheRepair) {
  if (extended()) return;  // all or nothing there
  const std::uint64_t free_before = port->stats().buffers_free;
  device.refuse_send_after = 3;
  device.names_refused = false;
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  EXPECT_EQ(port->stats().buffers_free, free_before - 10);
  device.refuse_send_after.reset();
  (void)received();
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
  ASSERT_EQ(port->send(0, frames(1, "again")), 1U);
  device.send_all();
  EXPECT_EQ(device.sent.back(), "again0");
}

TEST_P(VerbsPortTest, Receive_RefusedAndNobodySaysWhere_IsRepaired) {
  device.names_refused = false;
  device.refuse_receives = true;
  for (std::size_t i = 0; i < 64; i++) ASSERT_TRUE(device.arrive("in"));
  (void)received();  // a new list would be posted
  const std::uint64_t free_before = port->stats().buffers_free;
  device.refuse_receives = false;
  (void)received();
  EXPECT_EQ(port->stats().reopened, 1U);
  EXPECT_GE(port->stats().buffers_free + device.receives(), free_before);
  expect_no_buffer_lost();
  ASSERT_TRUE(device.arrive("again"));
  EXPECT_EQ(received(), std::vector<std::string>{"again"});
}

TEST_P(VerbsPortTest, Send_RefusedAtOnce_LosesItWithoutARepair) {
  device.refuse_send_after = 0;
  ASSERT_EQ(port->send(0, frames(1, "out")), 1U);
  device.refuse_send_after.reset();
  (void)received();
  EXPECT_EQ(port->stats().tx_dropped, 1U);
  EXPECT_EQ(port->stats().reopened, 0U);
  expect_no_buffer_lost();
}

TEST_P(VerbsPortTest, Send_InMorePiecesThanARequestHolds_LosesThatFrameAlone) {
  std::vector<Packet*> some = frames(4, "out");
  Packet* const second = some.back();
  some.pop_back();
  some[1]->next_segment = second;  // without large segments a request has room for one
  some[1]->frame_len += second->len;
  ASSERT_EQ(port->send(0, some), 3U);
  device.send_all();
  EXPECT_EQ(device.sent, (std::vector<std::string>{"out0", "out2"}));
  EXPECT_EQ(port->stats().tx_dropped, 1U);
  (void)received();
  EXPECT_EQ(port->stats().reopened, 0U);
  expect_no_buffer_lost();
}

TEST_P(VerbsPortTest, Failure_CompletionsLeftBehind_SpeakOfNothingAnyMore) {
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  for (int i = 0; i < 5; i++) ASSERT_TRUE(device.arrive("before"));
  device.fail();
  for (int look = 0; look < 4; look++) (void)received();
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
  for (int i = 0; i < 50; i++) ASSERT_TRUE(device.arrive("after" + std::to_string(i)));
  const std::vector<std::string> texts = received();
  ASSERT_EQ(texts.size(), 50U);
  for (std::size_t i = 0; i < texts.size(); i++) EXPECT_EQ(texts[i], "after" + std::to_string(i));
  EXPECT_EQ(port->stats().rx_dropped, 0U);
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
}

TEST_P(VerbsPortTest, Failure_ToldByAnEventAlone_IsRepaired) {
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  device.report(IBV_EVENT_QP_FATAL);
  while (port->stats().reopened == 0) (void)received();
  expect_no_buffer_lost();
  EXPECT_EQ(port->link(), LinkState::kUp);
  ASSERT_TRUE(device.arrive("again"));
  EXPECT_EQ(received(), std::vector<std::string>{"again"});
}

TEST_P(VerbsPortTest, Armed_AFrameMakesTheDescriptorReadable) {
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  while (!port->arm(0)) (void)received();
  EXPECT_EQ(poll(&item, 1, 0), 0);
  ASSERT_TRUE(device.arrive("one"));
  EXPECT_EQ(poll(&item, 1, 0), 1);
  port->disarm(0);
  EXPECT_EQ(poll(&item, 1, 0), 0);
  EXPECT_EQ(received(), std::vector<std::string>{"one"});
}

// It wakes no sleeper. The look between arm() and the sleep finds it.
TEST_P(VerbsPortTest, Armed_AFrameFromBeforeIsSeenByTheLookBeforeTheSleep) {
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  for (int round = 0; round < 3; round++) {
    ASSERT_TRUE(device.arrive("before"));
    (void)port->arm(0);
    EXPECT_EQ(poll(&item, 1, 0), 0);
    EXPECT_EQ(received(), std::vector<std::string>{"before"});
    ASSERT_TRUE(device.arrive("after"));
    EXPECT_EQ(poll(&item, 1, 0), 1);
    port->disarm(0);
    EXPECT_EQ(received(), std::vector<std::string>{"after"});
  }
}

TEST_P(VerbsPortTest, Armed_AFailureMakesTheDescriptorReadable) {
  while (!port->arm(0)) (void)received();
  device.fail();
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 0), 1);
  port->disarm(0);
  (void)received();
  while (!port->arm(0)) (void)received();
  ASSERT_TRUE(device.arrive("again"));
  EXPECT_EQ(poll(&item, 1, 0), 1);
}

TEST_P(VerbsPortTest, Closed_NoDescriptorStaysOwned) {
  const int channel = device.channel();
  EXPECT_TRUE(PlainHost::owned().contains(channel));
  port.reset();
  EXPECT_FALSE(PlainHost::owned().contains(channel));
  EXPECT_EQ(device.alive(), 0);
}

// A card's port also says "disabled" if there is no carrier. That is no reason to leave it to another process.
TEST_P(VerbsPortTest, NoCarrier_IsNotForbidden) {
  device.carrier = false;
  device.report(IBV_EVENT_PORT_ERR);
  await_link(LinkState::kDown);
  (void)port->arm(0);
  EXPECT_FALSE(port->forbidden());
  device.carrier = true;
  device.report(IBV_EVENT_PORT_ACTIVE);
  await_link(LinkState::kUp);
}

// --- What the device does for us

class OffloadsTest : public VerbsPortTest {
 protected:
  void SetUp() override {
    device.can.checksums = true;
    device.can.max_tso = 65536;
    device.can.inline_bytes = 64;
    VerbsPortTest::SetUp();
  }

  // TCP headers and that much payload, in buffers of at most `room` bytes.
  Packet* large(std::uint32_t payload, std::uint32_t room) const {
    Packet* const head = frames(1, std::string(53, 'h')).front();  // … and a digit
    head->flags = kTxTso | kTxIpChecksum | kTxL4Checksum;
    head->l2_len = 14, head->l3_len = 20, head->l4_len = 20;
    head->tso_mss = 1448;
    for (Packet* last = head; payload > 0; last = last->next_segment) {
      const std::uint32_t here = std::min(payload, room);
      Packet* const next = frames(1, "").front();
      std::memset(next->data, 'p', here);
      next->len = here;
      last->next_segment = next;
      head->frame_len += here;
      payload -= here;
    }
    return head;
  }
};
INSTANTIATE_TEST_SUITE_P(Both, OffloadsTest, testing::Values(Calls::kPlain, Calls::kExtended),
                         [](const auto& of) { return of.param == Calls::kPlain ? "Plain" : "Extended"; });

TEST_P(OffloadsTest, Caps_AreTheDevices) {
  EXPECT_TRUE(port->caps().tso);
  EXPECT_EQ(port->caps().tso_max_bytes, kLargestTsoPayload);
  EXPECT_TRUE(port->caps().tx_l4_checksum && port->caps().tx_ip_checksum && port->caps().rx_checksum);
}

TEST_P(OffloadsTest, LargeSegment_HeadersApartAndEveryPieceOnce) {
  Packet* const frame = large(20'000, 8192);
  ASSERT_EQ(port->send(0, {&frame, 1}), 1U);
  ASSERT_EQ(device.sends(), 1U);
  const FakeDevice::Send& posted = device.posted().front();
  EXPECT_TRUE(posted.large);
  EXPECT_EQ(posted.headers, std::string(53, 'h') + "0");
  EXPECT_EQ(posted.mss, 1448);
  EXPECT_EQ(posted.flags, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM);
  ASSERT_EQ(posted.pieces.size(), 3U);  // nothing of the head is left
  EXPECT_EQ(posted.pieces[0], std::string(8192, 'p'));
  EXPECT_EQ(posted.pieces[2], std::string(20'000 - 2 * 8192, 'p'));
  device.send_all();
  (void)received();
  expect_no_buffer_lost();
}

TEST_P(OffloadsTest, LargestSegment_FitsAndOneInMorePiecesIsLost) {
  Packet* both[] = {large(kLargestTsoPayload, 8192), large(SendQueue::kMostSegments + 1, 1)};
  ASSERT_EQ(port->send(0, both), 2U);
  ASSERT_EQ(device.sends(), 1U);
  EXPECT_EQ(device.posted().front().bytes().size(), 54 + kLargestTsoPayload);
  EXPECT_EQ(port->stats().tx_dropped, 1U);
  device.send_all();
  (void)received();
  expect_no_buffer_lost();
}

TEST_P(OffloadsTest, SmallFrame_IsCopiedIntoTheRequest) {
  std::vector<Packet*> some = frames(4, "a");
  Packet* const tail = some.back();
  some.pop_back();
  some[1]->next_segment = tail;  // in two pieces
  some[1]->frame_len += tail->len;
  some[2]->len = some[2]->frame_len = 65;
  ASSERT_EQ(port->send(0, some), 3U);
  EXPECT_EQ(device.posted()[0].flags & IBV_SEND_INLINE, IBV_SEND_INLINE);
  EXPECT_EQ(device.posted()[1].flags & IBV_SEND_INLINE, IBV_SEND_INLINE);
  EXPECT_EQ(device.posted()[1].bytes(), "a1a3");
  EXPECT_EQ(device.posted()[2].flags & IBV_SEND_INLINE, 0U);
}

TEST_P(OffloadsTest, Checksums_AskedForByTheFramesThatWantThem) {
  std::vector<Packet*> some = frames(2, "a");
  some[1]->flags = kTxL4Checksum;
  ASSERT_EQ(port->send(0, some), 2U);
  EXPECT_EQ(device.posted()[0].flags & IBV_SEND_IP_CSUM, 0U);
  EXPECT_EQ(device.posted()[1].flags & IBV_SEND_IP_CSUM, IBV_SEND_IP_CSUM);
}

TEST_P(OffloadsTest, ReceivedChecksums_GoodOnlyWhereTheDeviceSaysSo) {
  ASSERT_TRUE(device.arrive("unknown"));
  ASSERT_TRUE(device.arrive("good", true));
  std::vector<Packet*> two(2);
  ASSERT_EQ(port->receive(0, two), 2U);
  EXPECT_EQ(two[0]->flags, 0);
  EXPECT_EQ(two[1]->flags, kRxIpChecksumGood | kRxL4ChecksumGood);
  port->free(two);
}

// --- What the device does not have

class AbilitiesTest : public PortFixture {};

TEST_F(AbilitiesTest, Mtu_IsTheWiresWhereTheDeviceTellsIt) {
  constexpr std::uint32_t kBuffer = packet::FramePool::kLargeRoom - 14;  // one frame's
  open();
  EXPECT_EQ(port->caps().mtu, 1500U);
  for (const auto& [wire, asked, used] : {std::array{4000U, 0U, 4000U},
                                          {1400U, 0U, 1400U},
                                          {1400U, 1500U, 1400U},
                                          {4000U, 1300U, 1300U},
                                          {9000U, 0U, kBuffer}}) {
    device.mtu = wire;
    PortSpec spec;
    spec.mtu = asked;
    open(spec);
    EXPECT_EQ(port->caps().mtu, used) << wire << " " << asked;
  }
}

class TimeStampsTest : public PortFixture {
 protected:
  static constexpr std::uint64_t kWrap = std::uint64_t{1} << 48;

  void SetUp() override {
    PortFixture::SetUp();
    device.can.timestamps = true;
    device.clock = kWrap - 100;
  }
  static Instant monotonic() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return Instant{Duration{t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec}};
  }
  Instant arrival_at(std::uint64_t ticks) {
    EXPECT_TRUE(device.arrive("frame", false, ticks));
    std::vector<Packet*> one(1);
    EXPECT_EQ(port->receive(0, one), 1U);
    EXPECT_EQ(one[0]->flags, kRxArrival);
    const Instant at = arrival(*one[0]);
    port->free(one);
    return at;
  }
};

TEST_F(TimeStampsTest, Arrival_IsWhatTheDevicesClockSaysInOurs) {
  const Instant before = monotonic();
  open();
  const Instant opened = arrival_at(kWrap - 100);
  EXPECT_GE(opened, before);
  EXPECT_LE(opened, monotonic());
  EXPECT_EQ(arrival_at(kWrap - 600), opened - std::chrono::nanoseconds(1000));
  EXPECT_EQ(arrival_at(900), opened + std::chrono::nanoseconds(2000));  // it has wrapped
}

TEST_F(TimeStampsTest, Clocks_AreReadAgainAfterAWhile) {
  open();
  device.clock = 100'000'000;  // 200 ms later
  const Instant before = monotonic();
  EXPECT_GE(arrival_at(100'000'000), before);
  EXPECT_LE(arrival_at(100'000'000), monotonic());
}

TEST_F(TimeStampsTest, PlainQueues_HaveNone) {
  device.can.extended_queues = false;
  open();
  ASSERT_TRUE(device.arrive("frame", false, 1));
  std::vector<Packet*> one(1);
  ASSERT_EQ(port->receive(0, one), 1U);
  EXPECT_EQ(one[0]->flags, 0);
  port->free(one);
}

TEST_F(AbilitiesTest, NoExtendedQueuePairs_NoLargeSegments) {
  device.can.max_tso = 65536;
  device.can.checksums = true;
  device.can.extended_pair = false;
  open();
  EXPECT_FALSE(port->caps().tso);
  await_link(LinkState::kUp);
  ASSERT_EQ(port->send(0, frames(1, "out")), 1U);
  EXPECT_EQ(device.sends(), 1U);
}

TEST_F(AbilitiesTest, ChecksumsNotSaidToBeValid_AreNotTrusted) {
  open();
  await_link(LinkState::kUp);
  ASSERT_TRUE(device.arrive("frame", true));
  std::vector<Packet*> one(1);
  ASSERT_EQ(port->receive(0, one), 1U);
  EXPECT_EQ(one[0]->flags, 0);
  port->free(one);
}

}  // namespace
}  // namespace bypass::verbs
