// How much one peer can take, and for how long: closed connections that do not end, readers of one byte, holes. Other
// connections go on. docs/limits.md has the bounds.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

// Each probe of the closed window is answered.
void answer_probes(Script& s, Duration how_long) {
  const Duration end = s.now_since_start() + how_long;
  while (s.now_since_start() < end && s.connections() != 0) {
    const std::uint64_t before = s.counters().tcp_zero_window_probes + s.counters().tcp_retransmits;
    s.wait(100ms);
    s.ignore_all();
    if (s.counters().tcp_zero_window_probes + s.counters().tcp_retransmits != before)
      s.inject(seg().seq(1).ack(1).window(0)).ignore_all();
  }
}

Script& closed_window(Script& s, std::size_t bytes = 3000) {
  s.establish().inject(seg().seq(1).ack(1).window(0)).write(bytes).close().ignore_all();
  return s;
}

// tcp_probe_timer() of Linux: goes on until the pauses have reached TCP_RTO_MAX.
TEST(Orphan, WindowStaysClosed_EndsInSomeMinutes) {
  Script s;
  closed_window(s);
  answer_probes(s, 60s);
  EXPECT_EQ(s.connections(), 1U);
  answer_probes(s, 400s);
  EXPECT_EQ(s.connections(), 0U);
  EXPECT_EQ(s.counters().tcp_timeouts, 1U);
}

TEST(Orphan, WindowIsTakenBack_EndsToo) {
  Script s;
  s.establish().write(3000).close().ignore_all();
  s.inject(seg().seq(1).ack(1).window(0)).ignore_all();
  answer_probes(s, 400s);
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Window, OpenConnectionBehindAClosedWindow_Stays) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).window(0)).write(3000).ignore_all();
  answer_probes(s, 3600s);
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(Orphan, TooMany_TheNextIsReset) {
  Given given;
  given.stack.tcp.max_orphans = 2;
  Script s(given);
  for (std::uint16_t port = 1; port <= 2; port++) {
    s.new_peer(port);
    closed_window(s);
  }
  s.new_peer(3);
  s.establish().inject(seg().seq(1).ack(1).window(0)).write(3000).close();
  s.expect(seg().rst().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.connections(), 2U);
  EXPECT_EQ(s.counters().tcp_orphans_dropped, 1U);
  s.abort_orphans().ignore_all();
  s.new_peer(4);
  closed_window(s);
  EXPECT_EQ(s.connections(), 1U) << "those that have ended do not count";
}

// tcp_check_oom(): the peer has taken nothing for twice the longest pause.
TEST(Orphan, OneThatIsStuck_CountsTwice) {
  Given given;
  given.stack.tcp.max_orphans = 3;
  given.stack.tcp.rto_max = 1s;
  given.options.user_timeout_ms = 3'600'000;
  Script s(given);
  s.new_peer(1);
  s.establish().write(1000).close().ignore_all();
  s.new_peer(2);
  s.establish().write(1000).close().ignore_all();
  s.wait(10s).ignore_all();
  EXPECT_LE(s.connections(), 1U);
  EXPECT_GE(s.counters().tcp_orphans_dropped, 1U);
}

// The budget is full of bytes that no peer takes. Closing frees them, and the next client is served.
TEST(Orphan, WithMemoryUsedUp_GivesItBack) {
  Script s;
  Memory& memory = s.host().memory();
  memory.keep_back(std::size_t{256} << 10);
  std::vector<tcp::Tcb*> stuck;
  s.listen();
  for (std::uint16_t port = 1; port <= 20; port++) {
    s.new_peer(port);
    s.establish().inject(seg().seq(1).ack(1).window(0)).write(200'000).ignore_all();
    stuck.push_back(s.tcb());
  }
  memory.set_budget(memory.stats().used_bytes);
  s.new_peer(100);
  s.inject(seg().syn().seq(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_memory, 1U);
  for (tcp::Tcb* tcb : stuck) {
    s.engine().close(s.ctx(), *tcb);
    s.wait(0ms);
  }
  EXPECT_GE(s.counters().tcp_orphans_dropped, 1U);
  s.ignore_all().inject(seg().syn().seq(0)).expect(seg().syn().seq(0).ack(1));
}

// Peers that read one byte at a time. Each holds its own send buffer, and no more.
TEST(Exhaustion, ReadersOfOneByte_HoldTheirOwnBuffers) {
  Given given;
  given.stack.tcp.send_buffer = 65536;
  Script s(given);
  s.establish();
  tcp::Tcb* const good = s.tcb();
  const std::size_t before = s.host().memory().stats().used_bytes;
  for (std::uint16_t port = 1; port <= 50; port++) {
    s.new_peer(port);
    s.establish().inject(seg().seq(1).ack(1).window(1));
    while (true) {
      const auto room = s.engine().reserve(*s.tcb(), 4096);
      if (!room.ok()) break;
      s.engine().commit(s.ctx(), *s.tcb(), room->size(), false);
    }
    s.wait(0ms).ignore_all();
    EXPECT_LE(s.tcb()->ring.size(), 65536U);
  }
  EXPECT_LE(s.host().memory().stats().used_bytes - before, std::size_t{50} * (65536 + 2048) + 65536);
  EXPECT_TRUE(s.engine().reserve(*good, 1000).ok());
}

// Segments with a hole between each two. The frames and bytes of one connection are bounded.
TEST(Exhaustion, Holes_TakeWhatTheWindowAllows) {
  Given given;
  given.sack = true;
  Script s(given);
  s.establish();
  for (int i = 0; i < 5000; i++) s.inject(seg().seq(3 + 2 * i).len(1).ack(1)).ignore_all();
  EXPECT_LE(s.tcb()->reassembly.frames(), 256U);
  EXPECT_GT(s.counters().drop_tcp_reassembly, 0U);
  EXPECT_LE(s.engine().impl().held_frames, s.engine().impl().frame_budget);
  s.inject(seg().seq(1).len(2).ack(1)).ignore_all();
  EXPECT_GT(s.info().readable, 2U);
}

}  // namespace
}  // namespace bypass::test
