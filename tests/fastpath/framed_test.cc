// Framed connections between two whole stacks: records over TCP, lanes, ends, and peers without the library.
#include "fastpath/framed/framed.h"

#include <gtest/gtest.h>

#include "fastpath/framed_world.h"

namespace bypass::fastpath::test {
namespace {

using Mode = Framed::Mode;

std::string text_of(std::size_t bytes) {
  std::string text(bytes, ' ');
  for (std::size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + (i * 7 + i / 251) % 26);
  return text;
}

FramedWorldConfig over_tcp(std::uint64_t seed = 1) {
  FramedWorldConfig config;
  config.seed = seed;
  config.cable = false;
  return config;
}
FramedWorldConfig over_lanes(std::uint64_t seed = 1) {
  FramedWorldConfig config;
  config.seed = seed;
  config.cut_chance = 1;
  return config;
}

TEST(Framed, BothCapable_AreFramed) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  for (std::size_t i = 0; i < 2; i++) {
    ASSERT_NE(w.framed(i), nullptr);
    EXPECT_EQ(w.framed(i)->sending, Mode::kFramed);
    EXPECT_EQ(w.framed(i)->receiving, Mode::kFramed);
  }
  w.write(0, "question");
  w.run_for(10ms);
  EXPECT_EQ(w.read(1), "question");
  w.write(1, "answer");
  w.run_for(10ms);
  EXPECT_EQ(w.read(0), "answer");
  EXPECT_EQ(w.problem(), "");
}

TEST(Framed, NobodyWrites_HalfCloseAndClose) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.write(0, "all");
  w.calls(0).shutdown_send(*w.tcb[0]);
  w.run_for(10ms);
  EXPECT_EQ(w.read(1), "all");
  EXPECT_TRUE(w.calls(1).at_eof(*w.tcb[1]));
  w.write(1, text_of(100'000));
  w.calls(1).close(*w.tcb[1]);
  EXPECT_TRUE(w.receive(0, 100'000) == text_of(100'000)) << w.describe();
  w.run_for(1ms);
  EXPECT_TRUE(w.calls(0).at_eof(*w.tcb[0]));
  w.calls(0).close(*w.tcb[0]);
  EXPECT_EQ(w.leftovers(), "");
}

TEST(Framed, FirstToEnd_HasTheTimeWait) {
  for (const std::size_t first : {0U, 1U}) {
    FramedWorld w(over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.calls(first).close(*w.tcb[first]);
    w.run_for(10ms);
    w.calls(1 - first).close(*w.tcb[1 - first]);
    w.run_for(10ms);
    EXPECT_EQ(w.host(first).tcp().impl().time_waits.count, 1U) << first;
    EXPECT_EQ(w.host(1 - first).tcp().impl().time_waits.count, 0U) << first;
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, Lane_CarriesTheBytes) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  ASSERT_EQ(w.framed(0)->lane.tx_path(), TxPath::kLane);
  ASSERT_EQ(w.framed(1)->lane.tx_path(), TxPath::kLane);
  const auto before = w.host(0).tcp().info(*w.tcb[0]).bytes_sent;
  const std::string text = text_of(20'000);
  for (std::size_t at = 0; at < text.size(); at += 5000) {
    w.write(0, text.substr(at, 5000));
    w.run_for(1ms);
    EXPECT_TRUE(w.receive(1, 5000) == text.substr(at, 5000)) << at;
  }
  EXPECT_EQ(w.host(0).tcp().info(*w.tcb[0]).bytes_sent, before);
  w.kill_link();
  w.links(0).cut_chance = 0;
  w.run_for(10ms);
  EXPECT_EQ(w.framed(0)->lane.tx_path(), TxPath::kTcp);
  w.write(0, text);
  EXPECT_TRUE(w.receive(1, text.size()) == text) << w.describe();
}

// --- Ends

TEST(Framed, Reset_IsSeenByThePeer) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.write(1, "last words");
    w.run_for(1ms);
    w.calls(1).abort(*w.tcb[1]);
    w.host(1).ctx().flush();
    w.run_for(10ms);
    EXPECT_EQ(w.host(0).tcp().error(*w.tcb[0]), Error::kReset);
    EXPECT_NE(w.host(0).take_events(&w.user[0]) & kEventError, 0);
    EXPECT_EQ(w.read(0), "last words");
    w.calls(0).close(*w.tcb[0]);
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, CloseWithUnreadBytes_Resets) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.write(0, "never read");
    w.run_for(1ms);
    w.calls(1).close(*w.tcb[1]);
    w.host(1).ctx().flush();
    w.run_for(10ms);
    EXPECT_EQ(w.host(0).tcp().error(*w.tcb[0]), Error::kReset) << lanes;
    w.calls(0).close(*w.tcb[0]);
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, BytesForAClosedEnd_Reset) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.calls(1).close(*w.tcb[1]);
    w.run_for(10ms);
    w.write(0, "too late");
    w.run_for(10ms);
    EXPECT_NE(w.host(0).tcp().error(*w.tcb[0]), Error::kNone) << lanes;
    w.calls(0).close(*w.tcb[0]);
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, BytesForOneShutBothWays_ResetAndAreNotRead) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.write(0, "early");
    w.run_for(10ms);
    w.calls(1).shutdown_send(*w.tcb[1]);
    w.links(1).framed().shutdown_receive(w.host(1).ctx(), *w.tcb[1]);
    w.run_for(10ms);
    EXPECT_EQ(w.host(1).tcp().error(*w.tcb[1]), Error::kNone) << "for what came before";
    w.write(0, "too late");
    w.run_for(10ms);
    FramedTcp& framed = w.links(1).framed();
    EXPECT_EQ(framed.readable(*w.tcb[1]), 5U) << lanes;
    EXPECT_EQ(w.read(1), "early");
    EXPECT_FALSE(framed.at_eof(*w.tcb[1]));
    EXPECT_EQ(w.host(1).tcp().take_error(*w.tcb[1]), Error::kReset);
    EXPECT_TRUE(framed.at_eof(*w.tcb[1]));
    EXPECT_EQ(w.host(0).tcp().error(*w.tcb[0]), Error::kBrokenPipe);
    EXPECT_TRUE(w.calls(0).at_eof(*w.tcb[0]));
    for (const std::size_t i : {0U, 1U}) w.calls(i).close(*w.tcb[i]);
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, State_IsAsWithoutRecords) {
  using tcp::State;
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    const auto expect = [&](State first, State second) {
      EXPECT_EQ(w.links(0).framed().state(*w.tcb[0]), first) << lanes;
      EXPECT_EQ(w.links(1).framed().state(*w.tcb[1]), second) << lanes;
    };
    expect(State::kEstablished, State::kEstablished);
    w.calls(0).shutdown_send(*w.tcb[0]);
    expect(State::kFinWait1, State::kEstablished);
    for (int i = 0; i < 10; i++) w.run_for(1ms);  // a turn each
    expect(State::kFinWait2, State::kCloseWait);
    w.calls(1).shutdown_send(*w.tcb[1]);
    expect(State::kFinWait2, State::kLastAck);
    for (int i = 0; i < 10; i++) w.run_for(1ms);  // a turn each
    expect(State::kTimeWait, State::kClosed);
    for (const std::size_t i : {0U, 1U}) w.calls(i).close(*w.tcb[i]);
    EXPECT_EQ(w.leftovers(), "");
  }
}

TEST(Framed, State_BothEndAtOnce_GoesThroughClosing) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  for (const std::size_t i : {0U, 1U}) w.calls(i).shutdown_send(*w.tcb[i]);
  bool closing = false;
  w.run_until([&] {
    closing = closing || w.links(0).framed().state(*w.tcb[0]) == tcp::State::kClosing;
    return w.links(0).framed().state(*w.tcb[0]) == tcp::State::kTimeWait;
  });
  EXPECT_TRUE(closing);
  for (const std::size_t i : {0U, 1U}) w.calls(i).close(*w.tcb[i]);
  EXPECT_EQ(w.leftovers(), "");
}

// --- Corked bytes

void write_more(FramedWorld& w, const std::string& text) {
  w.host(0).ctx().now = w.world().now();
  EXPECT_EQ(w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)), true), text.size());
}
void set_cork(FramedWorld& w, bool on) {
  tcp::Options options = w.host(0).tcp().options(*w.tcb[0]);
  options.cork = on;
  w.host(0).ctx().now = w.world().now();
  w.links(0).framed().set_options(w.host(0).ctx(), *w.tcb[0], options);
  w.host(0).ctx().flush();
}
std::size_t come(FramedWorld& w, Duration after) {
  w.run_for(after);
  return w.calls(1).readable(*w.tcb[1]);
}

TEST(FramedCork, HoldsUntilItIsTakenOut) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    set_cork(w, true);
    w.write(0, text_of(50));
    w.write(0, text_of(60));
    EXPECT_EQ(come(w, 150ms), 0U) << lanes;
    set_cork(w, false);
    EXPECT_EQ(come(w, 10ms), 110U) << lanes;
    w.write(0, text_of(7));
    EXPECT_EQ(come(w, 10ms), 117U) << lanes;
  }
}

TEST(FramedCork, HoldsFor200MillisecondsAtMost) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    for (std::size_t before = 0; before < 220; before += 110) {
      write_more(w, text_of(50));
      EXPECT_EQ(come(w, 100ms), before) << lanes;
      write_more(w, text_of(60));
      EXPECT_EQ(come(w, 90ms), before) << lanes;
      EXPECT_EQ(come(w, 50ms), before + 110) << lanes;
    }
  }
}

TEST(FramedCork, WholeSegmentsLeave) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  const std::size_t segment = w.tcb[0]->mss;
  write_more(w, text_of(2 * segment + 10));
  EXPECT_EQ(come(w, 10ms), 2 * segment);
  write_more(w, text_of(segment - 10));
  EXPECT_EQ(come(w, 10ms), 3 * segment);
  write_more(w, text_of(10));
  EXPECT_EQ(come(w, 10ms), 3 * segment);
  w.write(0, "now");
  EXPECT_EQ(come(w, 10ms), 3 * segment + 13);
}

TEST(FramedCork, EndOfTheStreamAndWhatIsRead_LetGoAndDoNot) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  write_more(w, text_of(50));
  w.write(1, "question");
  w.run_for(10ms);
  EXPECT_EQ(w.read(0), "question");
  EXPECT_EQ(come(w, 10ms), 0U);
  w.calls(0).shutdown_send(*w.tcb[0]);
  EXPECT_EQ(come(w, 10ms), 50U);
}

TEST(FramedCork, LinkDies_BytesComeByTcp) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  write_more(w, text_of(50));
  w.kill_link();
  w.links(0).cut_chance = w.links(1).cut_chance = 0;
  EXPECT_EQ(come(w, 250ms), 50U);
  EXPECT_EQ(w.read(1), text_of(50));
}

TEST(Framed, PeerThatNeverEnds_IsGivenUpByAClosedEnd) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  w.calls(1).close(*w.tcb[1]);
  w.run_for(59s);
  EXPECT_EQ(w.host(1).tcp().impl().tcbs.size(), 1U);
  w.run_for(2s);
  EXPECT_EQ(w.host(1).tcp().impl().tcbs.size(), 0U);
  EXPECT_EQ(w.host(0).tcp().error(*w.tcb[0]), Error::kBrokenPipe);
}

TEST(Framed, EndsAcrossALinksDeath) {
  for (std::uint64_t seed = 1; seed <= 50; seed++) {
    FramedWorld w(over_lanes(seed));
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.write(0, "request");
    w.calls(0).shutdown_send(*w.tcb[0]);
    if (seed % 2 == 0) w.run_for(std::chrono::microseconds(seed));
    w.kill_link();
    w.links(0).cut_chance = w.links(1).cut_chance = 0;
    EXPECT_EQ(w.receive(1, 7), "request");
    w.run_for(5ms);
    EXPECT_TRUE(w.calls(1).at_eof(*w.tcb[1])) << seed << w.describe();
    w.write(1, "answer");
    w.calls(1).close(*w.tcb[1]);
    EXPECT_EQ(w.receive(0, 6), "answer");
    w.calls(0).close(*w.tcb[0]);
    ASSERT_EQ(w.leftovers(), "") << seed;
  }
}

// --- What a socket shows

TEST(Framed, Urgent_IsMarkedOnBothPaths) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    const std::string text = "abc!";
    w.host(0).ctx().now = w.world().now();
    EXPECT_EQ(w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)), false, true), 4U);
    w.write(0, "def");
    w.run_for(10ms);
    EXPECT_EQ(w.links(1).framed().before_urgent_mark(*w.tcb[1]), 4U) << lanes;
    EXPECT_EQ(w.read(1, 3), "abc");
    EXPECT_EQ(w.links(1).framed().before_urgent_mark(*w.tcb[1]), 1U) << lanes;
    EXPECT_EQ(w.read(1), "!def");
    EXPECT_EQ(w.links(1).framed().before_urgent_mark(*w.tcb[1]), 0U) << lanes;
  }
}

TEST(Framed, Records_AreNoEvents) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  (void)w.host(0).take_events(&w.user[0]);
  (void)w.host(1).take_events(&w.user[1]);
  w.write(0, "bytes");
  w.run_for(1ms);
  EXPECT_EQ(w.host(1).take_events(&w.user[1]), kEventReadable);
  EXPECT_EQ(w.host(0).take_events(&w.user[0]), 0U) << "nor is the ACK";
  w.calls(0).shutdown_send(*w.tcb[0]);
  w.run_for(1ms);
  EXPECT_EQ(w.host(1).take_events(&w.user[1]), kEventReadable | kEventEof);
}

// A close with SO_LINGER waits for the bytes, and not for the peer's end.
TEST(Framed, EverythingDelivered_IsTold) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    w.write(0, "bytes");
    w.calls(0).shutdown_send(*w.tcb[0]);
    (void)w.host(0).take_events(&w.user[0]);
    EXPECT_FALSE(w.links(0).framed().delivered(*w.tcb[0]));
    w.run_for(10ms);
    EXPECT_EQ(w.read(1), "bytes");
    w.run_for(100ms);
    EXPECT_TRUE(w.links(0).framed().delivered(*w.tcb[0])) << lanes;
    EXPECT_NE(w.host(0).take_events(&w.user[0]) & kEventDelivered, 0) << lanes;
  }
}

TEST(Framed, DeferredAccept_DoesNotTakeTheMagicForBytes) {
  FramedWorldConfig config = over_tcp();
  config.side[1].options.defer_accept_s = 5;
  FramedWorld w(config);
  w.listen();
  w.connect();
  w.run_for(100ms);
  EXPECT_FALSE(w.accept());
  w.write(0, "bytes");
  w.run_for(10ms);
  ASSERT_TRUE(w.accept());
  EXPECT_EQ(w.read(1), "bytes");
}

TEST(Framed, WriterThatFoundNoRoom_IsWoken) {
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    (void)w.host(0).take_events(&w.user[0]);
    const std::string text = text_of(1'000'000);
    std::size_t sent = 0;
    for (std::size_t n = 1; n != 0; sent += n) {
      w.host(0).ctx().now = w.world().now();
      n = w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)).subspan(sent, 10'000));
    }
    EXPECT_EQ(w.host(0).take_events(&w.user[0]) & kEventWritable, 0) << lanes;
    const std::string got = w.receive(1, sent);
    EXPECT_TRUE(got == text.substr(0, sent)) << lanes;
    w.run_for(50ms);
    EXPECT_EQ(w.host(0).take_events(&w.user[0]) & kEventWritable, kEventWritable) << lanes << w.describe();
  }
}

// A lane's rings may be smaller than TCP's buffers. The two ends together still hold as many bytes: programs that write
// everything before they read rely on it.
TEST(Framed, BothWriteBeforeTheyRead_HoldAsMuchAsOverTcp) {
  std::array<std::size_t, 2> held{};
  for (const bool lanes : {false, true}) {
    FramedWorld w(lanes ? over_lanes() : over_tcp());
    ASSERT_TRUE(w.open());
    w.write(0, "0");
    EXPECT_EQ(w.receive(1, 1), "0");
    w.write(1, "1");
    EXPECT_EQ(w.receive(0, 1), "1");
    const std::string text = text_of(1'000'000);
    std::array<std::size_t, 2> sent{};
    for (int i = 0; i < 500; i++) {
      for (const std::size_t side : {0, 1}) {
        w.host(side).ctx().now = w.world().now();
        const auto rest = std::as_bytes(std::span(text)).subspan(sent[side]);
        sent[side] += w.calls(side).write(*w.tcb[side], rest.first(std::min<std::size_t>(rest.size(), 10'000)));
      }
      w.run_for(2ms);
    }
    held[lanes] = std::min(sent[0], sent[1]);
    for (const std::size_t side : {0, 1}) EXPECT_TRUE(w.receive(1 - side, sent[side]) == text.substr(0, sent[side]));
  }
  EXPECT_GT(held[false], 300'000U);
  EXPECT_EQ(held[true], 1'000'000U);  // as over a connection whose congestion window has grown
}

// A connection whose peer reads slowly keeps its lane.
TEST(Framed, WriterWhosePeerReadsSlowly_StaysOnTheLane) {
  FramedWorld w(over_lanes());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  const std::string text = text_of(1'000'000);
  std::size_t sent = 0, got = 0;
  for (int i = 0; i < 100; i++) {
    w.host(0).ctx().now = w.world().now();
    sent += w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)).subspan(sent, 10'000));
    w.run_for(20ms);
    got += w.read(1, 1500).size();
  }
  EXPECT_GT(sent, got);
  EXPECT_EQ(FramedTcp::of(*w.tcb[0]).lane.tx_path(), TxPath::kLane) << w.describe();
}

TEST(Framed, WriterWhosePeerDoesNotRead_EndsAfterItsUserTimeout) {
  for (const bool lanes : {false, true}) {
    FramedWorldConfig config = lanes ? over_lanes() : over_tcp();
    config.side[0].options.user_timeout_ms = 2000;
    FramedWorld w(config);
    ASSERT_TRUE(w.open());
    const std::string text = text_of(10'000);
    for (int i = 0; i < 1500; i++) {
      w.host(0).ctx().now = w.world().now();
      (void)w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)));
      w.run_for(1ms);
    }
    EXPECT_EQ(w.tcb[0]->error, Error::kNone) << lanes;
    w.run_for(2s);
    EXPECT_EQ(w.tcb[0]->error, Error::kTimedOut) << lanes;
  }
}

void cut_wire(FramedWorld& w) {
  w.wire().set_filter([](std::size_t, std::span<const std::byte>) { return bypass::sim::Fate{.copies = 0}; });
}

void cut_off(FramedWorld& w) {
  cut_wire(w);
  w.kill_link();
}

FramedWorldConfig with_keep_alive() {
  FramedWorldConfig config = over_lanes();
  config.side[0].options.keep_alive = true;
  config.side[0].options.keep_idle_s = config.side[0].options.keep_interval_s = 1;
  config.side[0].options.keep_count = 2;
  return config;
}

// A record says that the link has died. The program does not wait for that record.
TEST(Framed, KeepAlive_ExpiresThoughRecordsWait) {
  FramedWorld w(with_keep_alive());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  ASSERT_EQ(w.framed(0)->lane.tx_path(), TxPath::kLane);
  cut_off(w);
  w.run_for(500ms);
  EXPECT_NE(w.tcb[0]->in_flight(), 0U);
  w.run_for(4500ms);
  EXPECT_EQ(w.tcb[0]->error, Error::kTimedOut);
}

// Bytes that the program wrote count as under way, even in front of a record that TCP repeats. Then R2 decides, as in
// TCP.
TEST(Framed, KeepAlive_DoesNotEndWhatWaitsForAnAnswer) {
  FramedWorld w(with_keep_alive());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  ASSERT_EQ(w.framed(0)->lane.tx_path(), TxPath::kLane);
  cut_off(w);
  w.write(0, "request");
  w.run_for(10s);
  EXPECT_EQ(w.tcb[0]->error, Error::kNone);
  w.wire().set_filter(nullptr);
  EXPECT_EQ(w.receive(1, 7), "request");
}

// An outage does not end an idle connection, even when a record says that its link died.
TEST(Framed, RecordsAlone_EndNoIdleConnection) {
  for (const std::uint32_t user_timeout_ms : {0U, 2000U}) {
    FramedWorldConfig config = over_lanes();
    for (auto& side : config.side) side.options.user_timeout_ms = user_timeout_ms;
    FramedWorld w(config);
    ASSERT_TRUE(w.open());
    w.run_for(10ms);
    ASSERT_EQ(w.framed(0)->lane.tx_path(), TxPath::kLane);
    cut_off(w);
    w.run_for(500ms);
    EXPECT_NE(w.tcb[0]->in_flight(), 0U);
    w.run_for(std::chrono::hours(1));
    EXPECT_EQ(w.tcb[0]->error, Error::kNone) << user_timeout_ms;
    w.wire().set_filter(nullptr);
    w.run_for(std::chrono::minutes(5));
    w.write(0, "request");
    EXPECT_EQ(w.receive(1, 7), "request");
  }
}

// The program has ended its direction, and another process waits for the answer.
TEST(Framed, EndThatIsNotAnswered_EndsAfterTheUserTimeout) {
  FramedWorldConfig config = over_lanes();
  config.side[0].options.user_timeout_ms = 2000;
  FramedWorld w(config);
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  cut_off(w);
  w.calls(0).shutdown_send(*w.tcb[0]);
  w.run_for(10s);
  EXPECT_EQ(w.tcb[0]->error, Error::kTimedOut);
}

// TCP may be cut off while the lane carries everything.
TEST(Framed, KeepAlive_HearsThePeerOnTheLane) {
  FramedWorld w(with_keep_alive());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  ASSERT_EQ(w.framed(0)->lane.tx_path(), TxPath::kLane);
  cut_wire(w);
  for (int i = 0; i < 20; i++) {
    w.write(1, "x");
    EXPECT_EQ(w.receive(0, 1), "x");
    w.run_for(500ms);
  }
  EXPECT_EQ(w.tcb[0]->error, Error::kNone);
  w.run_for(5s);
  EXPECT_EQ(w.tcb[0]->error, Error::kTimedOut) << "nothing is heard of the peer any more";
}

TEST(Framed, ReaderThatSleeps_BoundsWhatIsHeld) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.run_for(10ms);
  const std::string text = text_of(500'000);
  std::size_t sent = 0;
  for (int i = 0; i < 1000; i++) {
    w.host(0).ctx().now = w.world().now();
    sent += w.calls(0).write(*w.tcb[0], std::as_bytes(std::span(text)).subspan(sent, 1000));
    w.run_for(100us);
    // The other direction goes on, although its CREDIT records lie behind bytes that nobody reads.
    w.write(1, "0123456789");
    (void)w.read(0);
  }
  EXPECT_EQ(w.links(1).framed().readable(*w.tcb[1]), 64U << 10);
  EXPECT_EQ(w.tcb[1]->rx_bytes, 0U);
  EXPECT_TRUE(w.receive(1, sent) == text.substr(0, sent));
}

// With nothing under way, no ACK comes that could make the lane try again.
TEST(Framed, RecordWithoutMemory_IsSentOnceThereIsSome) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.run_for(1s);
  FramedTcp& framed = w.links(0).framed();
  Memory& memory = w.host(0).memory();
  for (int round = 0; round < 2; round++) {
    const auto room = framed.reserve(w.host(0).ctx(), *w.tcb[0], 5);
    ASSERT_TRUE(room.ok());
    std::fill_n(room->part[0].begin(), 5, std::byte{'b'});
    std::vector<void*> blocks;
    for (std::size_t bytes = std::size_t{1} << 20; bytes != 0; bytes /= 2)
      while (void* const block = memory.allocate(bytes)) blocks.push_back(block);
    framed.commit(w.host(0).ctx(), *w.tcb[0], 5, false, false);
    w.run_for(100ms);
    EXPECT_EQ(w.links(1).framed().readable(*w.tcb[1]), 0U) << "it had no memory to be sent with";
    for (void* const block : blocks) memory.release(block);
    EXPECT_EQ(w.receive(1, 5), "bbbbb");
    w.run_for(1s);
  }
}

TEST(Framed, Idle_CostsOneBlock) {
  FramedWorld w(over_tcp());
  ASSERT_TRUE(w.open());
  w.write(0, "bytes");
  EXPECT_EQ(w.receive(1, 5), "bytes");
  w.run_for(1s);
  EXPECT_EQ(w.tcb[0]->overlay->map.chunks_block(), nullptr);
  EXPECT_EQ(w.tcb[0]->ring.block(), nullptr);
  EXPECT_EQ(Memory::block_size(sizeof(tcp::Overlay) + sizeof(Framed)), 1024U);
}

}  // namespace
}  // namespace bypass::fastpath::test
