// Blind attacks (RFC 5961) and the checks of RFC 9293 §3.10.7.4 in their order.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

using tcp::State;

TEST(Reset, Exact_EndsTheConnection) {
  Script s;
  s.establish().inject(seg().rst().seq(1)).nothing_more();
  EXPECT_EQ(s.state(), State::kClosed);
  EXPECT_EQ(s.error(), Error::kReset);
  EXPECT_EQ(s.counters().tcp_resets_in, 1U);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kReset);
  EXPECT_EQ(s.engine().take_error(*s.tcb()), Error::kReset);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 1).error(), Error::kBrokenPipe);
}

TEST(Reset, InWindowButNotExact_IsChallenged) {
  Script s;
  s.establish().inject(seg().rst().seq(100)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.counters().drop_tcp_bad_rst, 1U);
  EXPECT_EQ(s.counters().tcp_challenge_acks, 1U);
}

TEST(Reset, OutsideWindow_IsDropped) {
  Script s;
  s.establish().inject(seg().rst().seq(1'000'000)).inject(seg().rst().seq(-1)).nothing_more();
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.counters().drop_tcp_bad_rst, 2U);
}

// tcp_in_window() of Linux takes an empty segment at the right edge, before and after the handshake, and challenges it
// (RFC 5961 §3.2); RFC 9293's table would have it dropped.
TEST(Reset, AtTheRightEdgeOfARequest_IsChallenged) {
  Script s;
  s.listen().inject(seg().syn().seq(0).mss(1000)).expect(seg().syn().ack(1).window(65535));
  s.inject(seg().rst().seq(65536)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  s.wait(25ms).inject(seg().rst().seq(65537)).nothing_more();
  s.inject(seg().seq(1).ack(1)).accept();
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(Reset, UnreadDataBeforeIt_StaysReadable) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).text("kept")).inject(seg().rst().seq(5));
  EXPECT_EQ(s.read(), "kept");
  EXPECT_EQ(s.error(), Error::kReset);
}

TEST(Reset, InCloseWait_IsBrokenPipe) {
  Script s;
  s.establish().inject(seg().fin().seq(1).ack(1)).inject(seg().rst().seq(2));
  EXPECT_EQ(s.error(), Error::kBrokenPipe);
}

TEST(Syn, InsideConnection_IsChallenged) {
  Script s;
  s.establish().inject(seg().syn().seq(50)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_bad_syn, 1U);
  EXPECT_EQ(s.state(), State::kEstablished);
}

TEST(Challenge, Flood_IsAnsweredSeldom) {
  Script s;
  s.establish();
  for (int i = 0; i < 50; i++) s.wait(100us).inject(seg().syn().seq(50 + i));
  EXPECT_EQ(s.counters().tcp_challenge_acks, 1U);
  s.wait(25ms).inject(seg().syn().seq(99));
  EXPECT_EQ(s.counters().tcp_challenge_acks, 2U);
}

TEST(Challenge, OfManyConnections_HasNoCommonLimit) {
  constexpr std::uint16_t kConnections = 150;
  Script s;
  for (std::uint16_t port = 1; port <= kConnections; port++) {
    s.new_peer(port);
    s.establish();
  }
  for (std::uint16_t port = 1; port <= kConnections; port++) {
    s.new_peer(port);
    s.inject(seg().seq(0).ack(1));  // a keep-alive
  }
  EXPECT_EQ(s.counters().tcp_challenge_acks, kConnections);
}

TEST(Ack, OfWhatWasNeverSent_IsChallenged) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1000)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_bad_ack, 1U);
}

TEST(Ack, OlderThanAnyWindow_IsChallenged) {
  Script s;
  s.establish().inject(seg().seq(1).ack(-70000).len(5)).expect(seg().seq(1).ack(1));
  EXPECT_EQ(s.counters().drop_tcp_bad_ack, 1U);
  EXPECT_EQ(s.read(), "");
}

TEST(Ack, Missing_IsDropped) {
  Script s;
  s.establish().inject(seg().flag(0).seq(1).len(5)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_bad_ack, 1U);
}

TEST(Sequence, BehindWindow_IsAnsweredWithAck) {
  Script s;
  s.establish().inject(seg().seq(900'000).ack(1).len(10)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_out_of_window, 1U);
}

// RFC 5961 §5.2, at the distance at which a signed difference has no positive counterpart.
TEST(Sequence, AckOfHalfTheSequenceSpaceBehind_IsChallenged) {
  Script s;
  s.establish().inject(seg().seq(1).ack(0x80000001U).text("x")).expect(seg().seq(1).ack(1)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_bad_ack, 1U);
}

TEST(Sequence, KeepAliveProbe_IsAnswered) {
  Script s;
  s.establish().inject(seg().seq(0).ack(1)).expect(seg().seq(1).ack(1).len(0)).nothing_more();
}

TEST(Sequence, WhollyDuplicate_IsAnsweredAndCounted) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).text("once")).ignore_all();
  s.inject(seg().seq(1).ack(1).text("once")).expect(seg().seq(1).ack(5).len(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_duplicate, 1U);
  EXPECT_EQ(s.read(), "once");
}

TEST(Sequence, PartlyBeyondWindow_IsTrimmed) {
  Given given;
  given.options.receive_buffer = 1000;
  Script s(given);
  s.establish().inject(seg().fin().seq(1).ack(1).len(1200)).expect(seg().ack(1001).window(0));
  EXPECT_EQ(s.read(), pattern(0, 1000));
  EXPECT_EQ(s.state(), State::kEstablished);
  EXPECT_EQ(s.counters().drop_tcp_out_of_window, 1U);
}

TEST(Header, OptionPastItsEnd_IsMalformed) {
  Script s;
  s.establish().inject(seg().seq(1).ack(1).raw({8, 40, 0, 0})).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_malformed, 1U);
}

TEST(Header, SynFin_IsMalformed) {
  Script s;
  s.listen().inject(seg().syn().fin().seq(0)).nothing_more();
  EXPECT_EQ(s.counters().drop_tcp_malformed, 1U);
}

}  // namespace
}  // namespace bypass::test
