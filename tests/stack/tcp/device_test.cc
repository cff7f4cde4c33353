// What the port can and cannot do: offloads, gather, full rings, empty pools.
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/script.h"
#include "stack/tcp/state.h"

namespace bypass::test {
namespace {

Given offloading() {
  Given given;
  given.caps = offloading_caps();
  return given;
}

// There are two segments, so that the ACK of the first makes room for more while the second is under way
// (tcp_cwnd_test() of Linux).
TEST(Offload, LargeWrite_IsTwoTsoFrames) {
  Script s(offloading());
  const std::uint64_t frames = s.counters().tx_frames;
  s.establish();
  const std::uint64_t before = s.counters().tx_frames;
  s.write(8000);
  EXPECT_EQ(s.counters().tx_frames - before, 2U) << frames;
  for (int i = 0; i < 8; i++)
    s.expect(seg().seq(1 + 1000 * i).len(1000).text(pattern(1000U * static_cast<unsigned>(i), 1000)));
}

// tcp_tso_autosize() of Linux: with 10 segments in 100 ms there are not two in a millisecond.
TEST(Offload, LongPath_TakesTwoSegmentsAFrame) {
  Script s(offloading());
  s.listen().inject(seg().syn().seq(0).mss(1000)).wait(100ms).inject(seg().seq(1).ack(1)).accept().ignore_all();
  const std::uint64_t before = s.counters().tx_frames;
  s.write(8000);
  EXPECT_EQ(s.counters().tx_frames - before, 4U);
  for (int i = 0; i < 8; i++) s.expect(seg().seq(1 + 1000 * i).len(1000));
}

TEST(Offload, WithoutGather_TsoFrameIsAChain) {
  Given given = offloading();
  given.caps.gather = false;
  Script s(given);
  s.establish().write(8000);
  for (int i = 0; i < 8; i++) s.expect(seg().seq(1 + 1000 * i).text(pattern(1000U * static_cast<unsigned>(i), 1000)));
  s.nothing_more();
  EXPECT_FALSE(s.tcb()->ring.pinned());
}

TEST(Gather, ReferredRing_IsPinnedUntilSent) {
  Script s(offloading());
  s.establish().write(100).ignore_all().inject(seg().seq(1).ack(101));
  s.ctx().now = s.world().now();
  auto room = s.engine().reserve(*s.tcb(), 2000);
  s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
  EXPECT_TRUE(s.tcb()->ring.pinned());
  s.wait(1ms).ignore_all().inject(seg().seq(1).ack(2101));
  EXPECT_FALSE(s.tcb()->ring.pinned());
  EXPECT_EQ(s.tcb()->ring.block(), nullptr);
}

TEST(Gather, SmallWrite_IsCopied) {
  Script s(offloading());
  s.establish().write(200).expect(seg().len(200).text(pattern(0, 200)));
  EXPECT_FALSE(s.tcb()->ring.pinned());
}

TEST(Gather, ClosedWhilePinned_LivesUntilSent) {
  Script s(offloading());
  s.establish().write(100).ignore_all().inject(seg().seq(1).ack(101));
  s.ctx().now = s.world().now();
  auto room = s.engine().reserve(*s.tcb(), 2000);
  s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
  s.engine().abort(s.ctx(), *s.tcb());
  EXPECT_EQ(s.connections(), 1U);
  s.wait(1ms);
  EXPECT_EQ(s.connections(), 0U);
}

// The frames wait in the queue of the process that has the port. Other processes' relays do not know of them.
TEST(Gather, AnotherProcessOfTheFamily_LeavesTheRingPinned) {
  Script s(offloading());
  s.establish().write(100).ignore_all().inject(seg().seq(1).ack(101));
  s.ctx().now = s.world().now();
  auto room = s.engine().reserve(*s.tcb(), 2000);
  s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
  const void* block = s.tcb()->ring.block();
  sim::PortConfig stand_in;
  stand_in.caps.arena_frames = true;
  Context follower;
  follower.shared = true;
  s.engine().on_flushed(follower);
  EXPECT_TRUE(s.tcb()->ring.pinned()) << "to which the port is not open";
  follower.queues[0] = PortQueue{&s.world().wire().add_port(stand_in), 0, 0};
  follower.ports = 1;
  s.engine().on_flushed(follower);
  EXPECT_TRUE(s.tcb()->ring.pinned());
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 100'000).error(), Error::kNone) << "what the block has room for";
  s.engine().commit(follower, *s.tcb(), 0, false);
  EXPECT_EQ(s.tcb()->ring.block(), block) << "frames refer to it";
  s.wait(1ms).ignore_all();
  EXPECT_FALSE(s.tcb()->ring.pinned());
}

// The wire sends one frame a millisecond. Frames that do not fit wait in the device's ring.
void narrow(Script& s, std::uint64_t bits_per_second = 8'000'000) {
  sim::Impairment slow;
  slow.bits_per_second = bits_per_second;
  s.world().wire().set_impairment(0, slow);
}

void fill_ring(Script& s) {
  while (s.ctx().queue(0).can_transmit()) {
    Packet* frame = s.ctx().queue(0).alloc();
    frame->len = frame->frame_len = 1500;
    std::memset(frame->data, 0, frame->len);
    if (!s.ctx().queue(0).transmit(frame)) s.ctx().release(frame);
  }
}

// The SYN does no harm once the first one has been answered: inside of a connection a SYN means nothing.
TEST(FullRing, SynAckThatIsAnsweredMeanwhile_IsSentNoMore) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().seq(0).ack(1)).at(999ms);
  narrow(s, 4'000'000);
  fill_ring(s);
  s.at(1001ms).inject(seg().seq(1).ack(1).text("question")).accept();
  EXPECT_TRUE(s.engine().output_pending());
  s.wait(1100ms).expect(seg().flag(tcp::kAck).seq(1).ack(9).len(0)).nothing_more();
}

TEST(FullRing, SynThatTimedOut_IsSentNoMore) {
  Script s;
  s.connect().expect(seg().syn().seq(0)).at(999ms);
  narrow(s, 4'000'000);
  fill_ring(s);
  s.at(1001ms);
  EXPECT_TRUE(s.tcb()->has(tcp::kSynOwed));
  tcp::Env env{s.engine().impl(), s.ctx()};
  tcp::finish(env, *s.tcb(), Error::kTimedOut, tcp::Why::kTimer);
  s.wait(1100ms).nothing_more();
}

TEST(FullRing, Output_GoesOnLater) {
  Given given;
  given.options.no_delay = true;
  Script s(given);
  s.establish();
  narrow(s);
  s.tcb()->congestion.start(tcp::Congestion::kCubic, 1000, 2000);
  s.tcb()->snd_wnd = s.tcb()->max_snd_wnd = 1'000'000;
  for (int i = 0; i < 700; i++) s.write(100);
  EXPECT_TRUE(s.engine().output_pending());
  const std::uint64_t unsent = s.tcb()->unsent();
  EXPECT_GT(unsent, 0U);
  s.wait(150ms);
  EXPECT_EQ(s.tcb()->unsent(), 0U);
  EXPECT_FALSE(s.engine().output_pending());
}

TEST(FullRing, OfOnePort_DoesNotHoldUpAnother) {
  Script s;
  s.establish();
  tcp::Tcb* first = s.tcb();
  s.new_peer(40001);
  s.establish();
  s.ctx().queues[1] = PortQueue{&s.world().add_probe(50), 1, 0};
  s.ctx().ports = 2;
  s.tcb()->path.port = 1;
  narrow(s);
  fill_ring(s);
  tcp::Env env{s.engine().impl(), s.ctx()};
  for (tcp::Tcb* tcb : {first, s.tcb()}) {
    tcb->set(tcp::kAckNow);
    tcp::block(env, *tcb);
  }
  s.engine().resume_output(s.ctx());
  EXPECT_TRUE(first->has(tcp::kAckNow));
  EXPECT_FALSE(s.tcb()->has(tcp::kAckNow));
  s.ctx().queue(1).drain();
}

Given few_buffers() {
  Given given;
  given.buffers = 40;
  return given;
}

std::vector<Packet*> every_buffer(Script& s) {
  std::vector<Packet*> all(64);
  all.resize(s.host().port().alloc(0, all));
  while (Packet* p = s.ctx().queue(0).alloc()) all.push_back(p);
  return all;
}

TEST(DryPool, Output_GoesOnWhenBuffersReturn) {
  Script s(few_buffers());
  s.establish();
  const std::vector<Packet*> hog = every_buffer(s);
  s.write(100).nothing_more();
  EXPECT_TRUE(s.engine().output_pending());
  s.host().port().free(hog);
  s.wait(1ms).expect(seg().seq(1).len(100));
}

TEST(DryPool, ConnectingSyn_GoesLater) {
  Script s(few_buffers());
  const std::vector<Packet*> hog = every_buffer(s);
  s.connect().nothing_more();
  s.host().port().free(hog);
  s.wait(1ms).expect(seg().syn().seq(0));
}

// No timer repeats it.
TEST(DryPool, Reset_GoesLater) {
  Script s(few_buffers());
  s.establish();
  const std::vector<Packet*> hog = every_buffer(s);
  s.abort().nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_TRUE(s.engine().output_pending());
  s.wait(1ms).nothing_more();
  s.host().port().free(hog);
  s.wait(1ms).expect(seg().rst().seq(1).ack(1)).nothing_more();
  EXPECT_FALSE(s.engine().output_pending());
}

TEST(RecentResets, OwedForTooLong_IsGivenUp) {
  tcp::RecentResets recent_resets;
  for (std::uint16_t port = 1; port <= 2; port++) {
    tcp::RecentReset each;
    each.key.local_port = port;
    each.at = Instant{} + port * std::chrono::seconds(1);
    recent_resets.note(each);
    recent_resets.owe();
  }
  std::vector<std::uint16_t> asked;
  const auto refuse = [&](const tcp::RecentReset& each) {
    asked.push_back(each.key.local_port);
    return false;
  };
  recent_resets.settle(Instant{} + tcp::RecentResets::kLifetime + std::chrono::seconds(1), refuse);
  EXPECT_EQ(asked, std::vector<std::uint16_t>{2});
  EXPECT_TRUE(recent_resets.owes());
  recent_resets.settle(Instant{} + tcp::RecentResets::kLifetime + std::chrono::seconds(2), refuse);
  EXPECT_FALSE(recent_resets.owes());
}

TEST(Loop, ConnectToOurselves_Works) {
  Script s;
  s.listen();
  int user = 0;
  auto client = s.engine().connect(s.ctx(), {}, {s.host().address(), 80}, {}, &user);
  ASSERT_TRUE(client.ok());
  s.wait(1ms).accept();
  EXPECT_EQ(s.engine().state(**client), tcp::State::kEstablished);
  s.write(3000).wait(1ms);
  EXPECT_EQ(s.engine().readable(**client), 3000U);
}

}  // namespace
}  // namespace bypass::test
