// Small segments: Nagle (RFC 9293 §3.7.4), TCP_NODELAY, TCP_CORK, MSG_MORE, PSH.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

TEST(Nagle, SecondSmallSegment_WaitsForTheAck) {
  Script s;
  s.establish().write(10).expect(seg().seq(1).len(10)).write(20).write(30).nothing_more();
  s.inject(seg().seq(1).ack(11)).expect(seg().seq(11).len(50)).nothing_more();
}

TEST(Nagle, FullSegment_GoesAtOnce) {
  Script s;
  s.establish().write(10).ignore_all().write(1500).expect(seg().seq(11).len(1000)).nothing_more();
}

TEST(Nagle, SmallAfterFullSegments_GoesAtOnce) {  // Minshall: only a small one in flight holds back
  Script s;
  s.establish().write(1500).expect(seg().seq(1).len(1000)).expect(seg().seq(1001).len(500)).nothing_more();
}

TEST(NoDelay, SmallSegments_GoAtOnce) {
  Given given;
  given.options.no_delay = true;
  Script s(given);
  s.establish().write(10).write(20).expect(seg().seq(1).len(10)).expect(seg().seq(11).len(20)).nothing_more();
}

TEST(NoDelay, SetLater_LetsTheRestGo) {
  Script s;
  s.establish().write(10).write(20).ignore_all();
  tcp::Options options;
  options.no_delay = true;
  s.set_options(options).expect(seg().seq(11).len(20)).nothing_more();
}

TEST(Cork, PartialSegment_WaitsUntilUncorked) {
  Given given;
  given.options.cork = true;
  Script s(given);
  s.establish().write(1500).expect(seg().seq(1).len(1000)).nothing_more().inject(seg().seq(1).ack(1001)).nothing_more();
  s.set_options({}).expect(seg().seq(1001).len(500)).nothing_more();
}

TEST(Cork, ForTooLong_GoesAfter200ms) {
  Given given;
  given.options.cork = true;
  Script s(given);
  s.establish().write(500).at(199ms).nothing_more().at(201ms).expect(seg().seq(1).len(500)).nothing_more();
}

// tcp(7): TCP_NODELAY on a corked socket sends the bytes that are there. Later bytes wait.
TEST(Cork, NoDelaySetLater_PushesOnce) {
  Given given;
  given.options.cork = true;
  Script s(given);
  given.options.no_delay = true;
  s.establish().write(500).nothing_more().set_options(given.options).expect(seg().seq(1).len(500)).nothing_more();
  s.inject(seg().seq(1).ack(501)).write(300).nothing_more();
  given.options.cork = false;
  s.set_options(given.options).expect(seg().seq(501).len(300)).nothing_more();
}

// __tcp_sock_set_nodelay() of Linux: this happens each time that the option is set.
TEST(Cork, NoDelaySetAgain_PushesAgain) {
  Given given;
  given.options.cork = given.options.no_delay = true;
  Script s(given);
  s.establish().write(500).nothing_more().push().expect(seg().seq(1).len(500)).nothing_more();
  s.write(300).nothing_more().push().expect(seg().seq(501).len(300)).nothing_more();
}

TEST(Cork, NoDelaySetAgainInFullWindow_LetsTheRestGoLater) {
  Given given;
  given.options.cork = given.options.no_delay = true;
  Script s(given);
  s.establish().write(10500).ignore_all().push().nothing_more();
  s.inject(seg().seq(1).ack(10001)).expect(seg().seq(10001).len(500)).nothing_more();
}

TEST(Cork, OtherOptionSet_PushesNothing) {
  Given given;
  given.options.cork = given.options.no_delay = true;
  Script s(given);
  s.establish().write(500);
  given.options.keep_alive = true;
  s.set_options(given.options).nothing_more();
}

TEST(Cork, ShutdownAndClose_LetItGo) {
  Given given;
  given.options.cork = true;
  Script shut(given), closed(given);
  shut.establish().write(300).shutdown_send().expect(seg().push().fin().seq(1).len(300)).nothing_more();
  closed.establish().write(300).close().expect(seg().push().fin().seq(1).len(300)).nothing_more();
}

TEST(More, PartialSegment_WaitsForTheNextWrite) {
  Script s;
  s.establish().write(300, true).nothing_more().write(200).expect(seg().seq(1).len(500)).nothing_more();
}

TEST(More, Close_LetsItGo) {
  Script s;
  s.establish().write(300, true).close().no_push().expect(seg().fin().seq(1).ack(1).len(300)).nothing_more();
}

// The flag belongs to the call (tcp_push() of Linux). An ACK lets the tail go, as Nagle's algorithm allows.
TEST(More, AckOfWhatWasBefore_LetsTheTailGo) {
  Script s;
  s.establish().write(1500, true).expect(seg().seq(1).len(1000)).nothing_more();
  s.inject(seg().seq(1).ack(1001)).no_push().expect(seg().seq(1001).ack(1).len(500)).nothing_more();
}

TEST(More, NothingInFlight_TailGoesAtTheProbeTimer) {
  Script s;
  s.establish().write(500, true).at(199ms).nothing_more();
  s.at(202ms).expect(seg().push().seq(1).ack(1).len(500)).nothing_more();
}

TEST(More, NoDelayOrNoCorkSetAgain_LetsItGo) {
  Given given;
  Script uncorked(given);
  uncorked.establish().write(500, true).nothing_more().push().expect(seg().seq(1).ack(1).len(500)).nothing_more();
  given.options.no_delay = true;
  Script pushed(given);
  pushed.establish().write(500, true).nothing_more().push().expect(seg().seq(1).ack(1).len(500)).nothing_more();
}

TEST(More, NoMoreBytes_StillWait) {
  Script s;
  s.establish().write(500, true);
  s.engine().commit(s.ctx(), *s.tcb(), 0, false);
  s.wait(1ms).nothing_more();
}

TEST(Push, LastSegmentOfAWrite_CarriesIt) {
  Script s;
  s.establish().write(1500).expect(seg().seq(1).ack(1).len(1000)).expect(seg().push().seq(1001).ack(1).len(500));
}

// __tcp_transmit_skb() of Linux: the receiver's large receive ends at such a segment.
TEST(Push, LargeFrame_CarriesItWithinAWriteToo) {
  Given given;
  given.caps = offloading_caps();
  Script s(given);
  s.establish().write(25000);
  for (int i = 0; i < 4; i++) s.expect(seg().seq(1 + 1000 * i).ack(1).len(1000));
  s.expect(seg().push().seq(4001).ack(1).len(1000)).expect(seg().seq(5001).ack(1));
}

// tcp_send_fin() of Linux: PSH belongs to segments with bytes.
TEST(Push, FinAlone_HasNone) {
  Script s;
  s.establish().write(100).expect(seg().push().seq(1).ack(1).len(100)).close();
  s.no_push().expect(seg().fin().seq(101).ack(1).len(0)).nothing_more();
  s.at(1s).ignore_all().inject(seg().seq(1).ack(101)).at(3s).no_push().expect(seg().fin().seq(101).ack(1).len(0));
}

}  // namespace
}  // namespace bypass::test
