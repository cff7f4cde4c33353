// After a death inside the lock: indices are garbage, the broken connection is given up, and all others are whole.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::SendRing;
using tcp::State;

// What a process that died at any moment may leave behind: no index can be trusted.
void scramble(Script& s) {
  auto& core = s.engine().impl();
  const auto junk = [](std::size_t n) { return reinterpret_cast<tcp::Tcb*>(0x1000 + n * 64); };
  auto** buckets = const_cast<tcp::FlowNode**>(static_cast<tcp::FlowNode* const*>(core.flows.block()));
  for (std::size_t i = 0; i < tcp::FlowTable::kFirstBuckets; i++)
    buckets[i] = reinterpret_cast<tcp::FlowNode*>(junk(i));
  std::memset(static_cast<void*>(&core.wheel), 0x5a, sizeof core.wheel);
  core.burst = {junk(1), junk(2)};
  core.blocked.fill({junk(3), junk(4)});
  core.blocked_ports = 0xffff;
  core.pinned = junk(5);
  core.time_waits.oldest = core.time_waits.newest = nullptr;
  core.held_frames = 77;
  if (s.listener() != nullptr) s.listener()->accept_head = s.listener()->accept_tail = junk(6);
  core.tcbs.for_each([&](tcp::Tcb& tcb) { tcb.flow.next = reinterpret_cast<tcp::FlowNode*>(junk(7)); });
}

Script& rebuild(Script& s, void* broken = nullptr) {
  s.ctx().now = s.world().now();
  s.engine().impl().current = broken;
  s.host().memory().begin_rebuild();
  s.host().stack().rebuild(s.ctx());
  s.host().memory().finish_rebuild();
  return s;
}

TEST(Rebuild, Established_GoesOn) {
  Script s;
  s.establish().write(500).inject(seg().seq(1).ack(1).text("before")).ignore_all();
  scramble(s);
  rebuild(s);
  EXPECT_EQ(s.read(), "before");
  s.inject(seg().seq(7).ack(501).text("after"));
  EXPECT_EQ(s.read(), "after");
  s.write(100);
  EXPECT_EQ(s.info().in_flight, 100U);
}

TEST(Rebuild, RetransmissionTimer_StillFires) {
  Script s;
  s.establish().write(500).ignore_all();
  scramble(s);
  rebuild(s).at(201ms).expect(seg().seq(1).len(500).text(pattern(0, 500)));
}

TEST(Rebuild, BrokenConnection_IsResetAlone) {
  Script s;
  s.establish().write(500).ignore_all();
  tcp::Tcb* broken = s.tcb();
  s.new_peer(40001);
  s.establish().write(300);
  std::memset(static_cast<void*>(&broken->ring), 0x77, sizeof broken->ring);
  scramble(s);
  rebuild(s, broken);
  EXPECT_EQ(s.engine().error(*broken), Error::kReset);
  EXPECT_EQ(s.engine().state(*broken), State::kClosed);
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_NE(s.wait(0ms).events() & kEventError, 0);
  s.engine().close(s.ctx(), *broken);
  EXPECT_EQ(s.connections(), 1U);
}

TEST(Rebuild, BrokenConnection_TellsItsPeer) {
  Script s;
  s.establish().write(500).ignore_all();
  rebuild(s, s.tcb()).wait(0ms).expect(seg().rst().seq(501).ack(1)).expect(seg().seq(0).ack(1).len(0)).nothing_more();
}

// Its ACK was being processed. Or the peer has not seen the SYN-ACK and sends its SYN again, which an RST would refuse.
TEST(Rebuild, BrokenInSynReceived_AsksItsPeer) {
  Script s;
  s.listen().inject(seg().syn().seq(0)).ignore_all();
  tcp::Tcb* half_open = nullptr;
  s.engine().impl().tcbs.for_each([&](tcp::Tcb& tcb) { half_open = &tcb; });
  rebuild(s, half_open).wait(0ms).expect(seg().seq(0).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.connections(), 0U);
  s.inject(seg().seq(1).ack(1).len(0)).expect(seg().rst().seq(1));
}

// The frame may have died with its process.
TEST(Rebuild, ResetOfTheDeadOne_IsSaidAgain) {
  Script s;
  s.establish();
  s.engine().abort(s.ctx(), *s.tcb());
  s.wait(0ms).ignore_all();
  rebuild(s).wait(600ms).expect(seg().rst().seq(1).ack(1)).expect(seg().seq(0).ack(1).len(0)).nothing_more();
}

TEST(Rebuild, RuleThatDoesNotHold_GivesTheConnectionUp) {
  Script s;
  s.establish().write(500);
  s.tcb()->snd_nxt = 12345;
  rebuild(s);
  EXPECT_EQ(s.error(), Error::kReset);
}

TEST(Rebuild, AcceptQueue_KeepsItsOrder) {
  Script s;
  s.listen();
  for (std::uint16_t port = 1001; port <= 1005; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0)).inject(seg().seq(1).ack(1));
  }
  s.new_peer(2000);
  s.inject(seg().syn().seq(0));
  scramble(s);
  rebuild(s);
  EXPECT_EQ(s.listener()->half_open, 1U);
  EXPECT_EQ(s.listener()->accept_count, 5U);
  for (std::uint16_t port = 1001; port <= 1005; port++) EXPECT_EQ(s.engine().remote(*s.accept().tcb()).port, port);
}

TEST(Rebuild, TimeWaits_AnswerAndExpire) {
  Script s;
  s.establish().shutdown_send().inject(seg().seq(1).ack(2)).inject(seg().fin().seq(1).ack(2)).close().ignore_all();
  scramble(s);
  rebuild(s).inject(seg().fin().seq(1).ack(2)).expect(seg().seq(2).ack(2));
  s.at(130s);
  EXPECT_EQ(s.engine().impl().time_waits.count, 0U);
}

TEST(Rebuild, BlockedAndBurst_GetTheirTurn) {
  Script s;
  s.establish();
  s.ctx().now = s.world().now();
  s.tcb()->set(tcp::kBlocked | tcp::kAckNow);
  scramble(s);
  rebuild(s).wait(1ms).expect(seg().seq(1).ack(1).len(0));
}

// A connection whose card sends out of the ring. It has 2,000 bytes to send, and frames that refer to them.
class PinnedRing : public Script {
 public:
  explicit PinnedRing(char letter = 'x') : Script(sending_from_memory()) {
    establish().write(100).ignore_all().inject(seg().seq(1).ack(101));
    ctx().now = world().now();
    auto room = engine().reserve(*tcb(), 2000);
    bytes = room->part[0].data();
    std::memset(bytes, letter, room->size());
    engine().commit(ctx(), *tcb(), room->size(), false);
  }
  std::byte* bytes = nullptr;

 private:
  static Given sending_from_memory() {
    Given given;
    given.caps = offloading_caps();
    return given;
  }
};

TEST(Rebuild, PinnedRing_StaysWhileTheLivingOwnersFramesReferToIt) {
  PinnedRing s;
  scramble(s);
  rebuild(s);
  EXPECT_TRUE(s.tcb()->ring.pinned());
  s.wait(1ms).ignore_all();
  EXPECT_FALSE(s.tcb()->ring.pinned()) << "they have left";
}

TEST(Rebuild, ClosedWithAPinnedRing_LivesUntilItsFramesHaveLeft) {
  PinnedRing s;
  s.engine().abort(s.ctx(), *s.tcb());
  scramble(s);
  rebuild(s);
  EXPECT_EQ(s.connections(), 1U) << "frames refer to its ring";
  s.wait(1ms);
  EXPECT_EQ(s.connections(), 0U);
}

// The frames belong to the living owner of a port. Memory that is taken meanwhile is other memory.
TEST(Rebuild, FramesThatReferToTheRingOfTheBroken_LeaveAsTheyWere) {
  PinnedRing s('a');
  scramble(s);
  rebuild(s, s.tcb());
  void* const next = s.host().memory().allocate(SendRing::kFirstBlock);
  EXPECT_FALSE(s.bytes >= next && s.bytes < static_cast<std::byte*>(next) + SendRing::kFirstBlock)
      << "it is somebody else's";
  std::memset(next, 'b', SendRing::kFirstBlock);
  s.wait(1ms).expect(seg().seq(101).text(std::string(1000, 'a'))).ignore_all();
  EXPECT_FALSE(s.tcb()->ring.pinned()) << "they have left";
  EXPECT_EQ(s.tcb()->ring.block(), nullptr);
}

TEST(Rebuild, MemoryOfTheBroken_IsFreeAgain) {
  Script s;
  s.establish();
  const std::size_t before = s.host().memory().stats().used_bytes;
  s.write(50000).ignore_all();
  EXPECT_GT(s.host().memory().stats().used_bytes, before);
  rebuild(s, s.tcb());
  EXPECT_LE(s.host().memory().stats().used_bytes, before);
}

TEST(Rebuild, FramesOfTheBroken_GoBackToTheirPort) {
  Script s;
  s.establish();
  s.ctx().queue(0).drain();
  const std::size_t out = s.host().port().buffers_out();
  s.inject(seg().seq(1).ack(1).len(500)).inject(seg().seq(1001).ack(1).len(500)).ignore_all();
  rebuild(s, s.tcb()).wait(0ms).ignore_all();  // its peer has been told
  EXPECT_EQ(s.engine().impl().held_frames, 0U);
  s.ctx().queue(0).drain();
  EXPECT_EQ(s.host().port().buffers_out(), out);
}

TEST(Rebuild, FlowTablesBlockLost_ANewOneIsTaken) {
  Script s;
  s.establish();
  void* lost = const_cast<void*>(s.engine().impl().flows.block());
  s.host().memory().release(lost);
  rebuild(s).inject(seg().seq(1).ack(1).text("found"));
  EXPECT_EQ(s.read(), "found");
  EXPECT_NE(s.engine().impl().flows.block(), lost) << "it may become somebody else's";
}

TEST(Current, BetweenCalls_IsNothing) {
  Script s;
  s.establish().write(100).inject(seg().seq(1).ack(101));
  EXPECT_EQ(s.engine().current(), nullptr);
}

}  // namespace
}  // namespace bypass::test
