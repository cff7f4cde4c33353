// Received bytes moved to the arena, where every process of a family can read them.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

// Segments of 1000 bytes come as three buffers, those of 500 as two.
Given small_buffers() {
  Given given;
  given.caps.buffer_bytes = 512;
  given.sack = true;
  return given;
}

std::size_t move(Script& s, bool (*being_read)(const void*) = nullptr) {
  s.ctx().now = s.world().now();
  const std::size_t stayed = s.host().stack().move_frames_to_arena(s.ctx(), being_read);
  EXPECT_EQ(s.engine().violated(), nullptr);
  EXPECT_EQ(s.engine().current(), nullptr);
  s.ctx().queue(0).drain();
  return stayed;
}

std::size_t buffers_held(Script& s) {
  s.ctx().queue(0).drain();
  const PortStats stats = s.host().port().stats();
  return stats.buffers_total - stats.buffers_free;
}

std::size_t used(Script& s) {
  return s.host().memory().stats().used_bytes;
}

TEST(ArenaMove, BytesInOrder_AreReadOnFromTheArena) {
  Script s(small_buffers());
  s.establish();
  const std::size_t before = used(s);
  for (int i = 0; i < 4; i++) s.inject(seg().seq(1 + 1000 * i).ack(1).len(1000));
  EXPECT_EQ(s.read(1500), pattern(0, 1500)) << "the second segment in part";
  EXPECT_EQ(buffers_held(s), 9U);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  s.inject(seg().seq(4001).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(1500, 3500));
  EXPECT_EQ(used(s), before);
  EXPECT_EQ(buffers_held(s), 0U);
  EXPECT_EQ(s.tcb()->rx_truesize, 0U);
  s.ignore_all();
}

TEST(ArenaMove, BytesBehindHoles_AreDeliveredWhenTheHolesAreFilled) {
  Script s(small_buffers());
  s.establish();
  const std::size_t before = used(s);
  // Islands of one, two and three frames. The last has grown at both ends by frames that overlap.
  for (const int at : {1001, 3001, 4001, 7001, 7501, 6501}) s.inject(seg().seq(at).ack(1).len(1000));
  EXPECT_EQ(s.tcb()->reassembly.islands(), 3U);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  EXPECT_EQ(s.tcb()->reassembly.frames(), 6U);
  s.ignore_all().inject(seg().seq(8501).ack(1).len(100));
  s.expect(seg().ack(1).sack(6501, 8601).sack(3001, 5001).sack(1001, 2001));
  s.inject(seg().seq(2001).ack(1).len(1000)).inject(seg().seq(5001).ack(1).len(1500)).ignore_all();
  EXPECT_EQ(s.tcb()->reassembly.islands(), 1U) << "grown across what was moved";
  s.inject(seg().seq(1).ack(1).len(1000)).expect(seg().ack(8601));
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  EXPECT_EQ(s.read(), pattern(0, 8600));
  EXPECT_EQ(used(s), before);
  s.ignore_all();
}

TEST(ArenaMove, MemoryUsedUpMidway_NothingIsLost) {
  Script s;
  s.establish();
  const std::size_t before = used(s);
  for (const int at : {1, 1001, 2001, 4001, 5001}) s.inject(seg().seq(at).ack(1).len(1000));
  s.host().memory().set_budget(used(s) + 3 * Memory::block_size(sizeof(Packet) + 1000));
  // First three of five frames are moved, then none, then the rest.
  EXPECT_EQ(move(s), 2U);
  EXPECT_EQ(buffers_held(s), 2U);
  EXPECT_EQ(move(s), 2U);
  EXPECT_EQ(s.read(2500), pattern(0, 2500));
  EXPECT_EQ(move(s), 0U) << "what was read has made room";
  EXPECT_EQ(buffers_held(s), 0U);
  s.inject(seg().seq(3001).ack(1).len(1000));
  EXPECT_EQ(s.read(), pattern(2500, 3500));
  s.host().memory().set_budget(std::size_t{64} << 20);
  EXPECT_EQ(used(s), before);
  EXPECT_EQ(buffers_held(s), 0U);
  s.ignore_all();
}

TEST(ArenaMove, ConnectionsNobodyHasAccepted_MoveToo) {
  Given given;
  given.options.defer_accept_s = 30;
  Script s(given);
  s.listen();
  for (std::uint16_t port = 1001; port <= 1003; port++) {
    s.new_peer(port);
    s.inject(seg().syn().seq(0).mss(1000)).inject(seg().seq(1).ack(1).text("from " + std::to_string(port)));
  }
  s.new_peer(2000);
  s.inject(seg().syn().seq(0).mss(1000)).inject(seg().seq(1).ack(1));
  s.inject(seg().seq(7).ack(1).text("behind a hole"));
  EXPECT_EQ(buffers_held(s), 4U);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  for (std::uint16_t port = 1001; port <= 1003; port++) EXPECT_EQ(s.accept().read(), "from " + std::to_string(port));
  s.inject(seg().seq(1).ack(1).text("ahead "));
  EXPECT_EQ(s.accept().read(), "ahead behind a hole");
  s.ignore_all();
}

TEST(ArenaMove, BytesOfConnectionsThatEnd_StayReadable) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).text("unread at the FIN"));
  s.shutdown_send().inject(seg().fin().seq(18).ack(2)).ignore_all();
  tcp::Tcb* timed_wait = s.tcb();
  ASSERT_EQ(s.state(), State::kTimeWait);
  s.new_peer(40001);
  s.establish().inject(seg().seq(1).ack(1).text("unread at the RST")).inject(seg().rst().seq(18)).ignore_all();
  ASSERT_EQ(s.state(), State::kClosed);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  EXPECT_EQ(s.read(), "unread at the RST");
  EXPECT_EQ(s.engine().readable(*timed_wait), 17U);
  std::span<const std::byte> span;
  ASSERT_EQ(s.engine().peek(*timed_wait, {&span, 1}), 1U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(span.data()), span.size()), "unread at the FIN");
  s.engine().consume(s.ctx(), *timed_wait, span.size());
  EXPECT_EQ(buffers_held(s), 0U);
}

TEST(ArenaMove, OrphansFrames_MoveAndAreFreedWithIt) {
  Script s;
  s.listen();
  const std::size_t before = used(s);
  s.establish().inject(seg().seq(11).ack(1).text("behind a hole")).close().ignore_all();
  EXPECT_EQ(s.connections(), 1U);
  EXPECT_EQ(buffers_held(s), 1U);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  s.inject(seg().rst().seq(1));
  EXPECT_EQ(s.connections(), 0U);
  // The slab and the flow table have grown for the first connection; the packet's and the islands' blocks are back.
  const std::size_t slabs = used(s) - before;
  s.new_peer(40001);
  s.establish().inject(seg().rst().seq(1));
  EXPECT_EQ(used(s) - before, slabs);
}

// A reader without the lock has spans of the frames themselves.
TEST(ArenaMove, BytesThatAThreadReads_StayWhereTheyAre) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).text("being read ")).inject(seg().seq(21).ack(1).text("later")).ignore_all();
  tcp::Tcb* reader = s.tcb();
  const std::uint32_t readers_iss = s.host_iss;
  int other = 0;
  s.new_peer(40001);
  s.establish().inject(seg().seq(1).ack(1).text("idle")).ignore_all();
  s.tcb()->event.user = &other;
  std::span<const std::byte> before, after;
  ASSERT_EQ(s.engine().peek(*reader, {&before, 1}), 1U);
  static const void* reading;
  reading = &s;
  EXPECT_EQ(move(s, [](const void* user) { return user == reading; }), 1U);
  EXPECT_EQ(buffers_held(s), 1U);
  ASSERT_EQ(s.engine().peek(*reader, {&after, 1}), 1U);
  EXPECT_EQ(after.data(), before.data());
  EXPECT_EQ(s.read(), "idle");
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  s.new_peer(40000);
  s.host_iss = readers_iss;
  s.inject(seg().seq(12).ack(1).text("and, then"));
  EXPECT_EQ(s.engine().readable(*reader), 25U);
  s.ignore_all();
}

// The purpose: the port's owner is gone, and another process goes on with bytes that the peer believes delivered.
TEST(ArenaMove, PortsOwnerDies_NothingAcknowledgedIsLost) {
  Script s;
  s.establish();
  for (const int at : {1, 1001, 3001}) s.inject(seg().seq(at).ack(1).len(1000));
  EXPECT_EQ(move(s), 0U);
  PortQueue& queue = s.ctx().queue(0);
  const PortQueue own = std::exchange(queue, PortQueue{});
  s.host().memory().begin_rebuild();
  s.host().stack().rebuild(s.ctx());
  s.host().memory().finish_rebuild();
  queue = own;
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.read(), pattern(0, 2000));
  s.inject(seg().seq(2001).ack(1).len(2000));
  EXPECT_EQ(s.read(), pattern(2000, 2000));
  s.ignore_all();
}

// A large frame waits for its neighbour as a chain. It leaves as a chain that the port can cut.
TEST(ArenaMove, LargeFrameThatWaitsForANeighbour_IsStillCutByThePort) {
  Given given;
  given.caps = offloading_caps();
  given.caps.gather = false;
  Script s(given);
  s.establish();
  const std::size_t before = used(s);
  const Prefix prefix{s.host().address(), 24};
  ASSERT_TRUE(s.host().stack().set_interface(0, {.mac = s.host().mac_address(), .addresses = {&prefix, 1}}));
  s.ctx().now = s.world().now();
  auto room = s.engine().reserve(*s.tcb(), 8000);
  const std::string text = pattern(0, 8000);
  std::memcpy(room->part[0].data(), text.data(), text.size());
  s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
  s.ctx().flush();
  EXPECT_NE(buffers_held(s), 0U);
  EXPECT_EQ(move(s), 0U);
  EXPECT_EQ(buffers_held(s), 0U);
  s.wait(1ms);
  for (int i = 0; i < 8; i++)
    s.expect(seg().seq(1 + 1000 * i).len(1000).text(pattern(1000U * static_cast<unsigned>(i), 1000)));
  s.nothing_more().inject(seg().seq(1).ack(8001));
  EXPECT_EQ(used(s), before);
}

}  // namespace
}  // namespace bypass::test
