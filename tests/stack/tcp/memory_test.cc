// Writers for whose bytes there is no memory. They wait, as for any room, and are woken in their order.
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

/// That many bytes of memory are left, beside those in use.
void leave(Script& s, std::size_t bytes) {
  s.host().memory().set_budget(s.host().memory().stats().used_bytes + bytes);
}

Error write_error(Script& s, tcp::Tcb* tcb) {
  return s.engine().reserve(*tcb, 100).error();
}

/// Connections that have all asked without success, in this order. The events of each come under its own address.
struct Starving {
  explicit Starving(Script& s, std::size_t count) : script(s), all(count) {
    s.listen();
    for (tcp::Tcb*& tcb : all) {
      s.new_peer(static_cast<std::uint16_t>(41000 + (&tcb - all.data())));
      s.inject(seg().syn().seq(0).mss(1000)).inject(seg().seq(1).ack(1)).accept().ignore_all();
      tcb = s.tcb();
      tcb->event.user = &tcb;
    }
    leave(s, 0);
    for (tcp::Tcb* tcb : all) EXPECT_EQ(write_error(s, tcb), Error::kWouldBlock);
  }
  bool told(std::size_t i) { return (script.host().take_events(&all[i]) & kEventWritable) != 0; }
  Script& script;
  std::vector<tcp::Tcb*> all;
};

TEST(NoMemory, Writer_WaitsAndIsTold) {
  Script s;
  s.establish();
  (void)s.events();
  leave(s, 0);
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 0U);
  EXPECT_EQ(write_error(s, s.tcb()), Error::kWouldBlock);
  EXPECT_EQ(s.counters().tcp_memory_waits, 1U);
  EXPECT_EQ(s.wait(1s).events() & kEventWritable, 0);
  leave(s, tcp::SendRing::kFirstBlock);
  EXPECT_NE(s.wait(0ms).events() & kEventWritable, 0);
  EXPECT_NE(s.engine().send_room(*s.tcb()), 0U);
  s.write(100).expect(seg().seq(1).len(100));
}

TEST(NoMemory, WhoAsksForRoomAfterTheEnd_WaitsForNothing) {
  Script s;
  s.establish().inject(seg().rst().seq(1));
  leave(s, 0);
  s.engine().want_room(s.ctx(), *s.tcb());
  EXPECT_FALSE(s.engine().waits_for_memory());
  s.close();
  leave(s, tcp::SendRing::kFirstBlock);
  s.wait(0ms);
  EXPECT_EQ(s.connections(), 0U);
}

TEST(NoMemory, WhoOnlyAsksForRoom_IsToldToo) {
  Script s;
  s.establish();
  (void)s.events();
  leave(s, 0);
  s.engine().want_room(s.ctx(), *s.tcb());
  leave(s, tcp::SendRing::kFirstBlock - 1);
  EXPECT_EQ(s.wait(1s).events() & kEventWritable, 0) << "less is no room";
  leave(s, tcp::SendRing::kFirstBlock);
  EXPECT_NE(s.wait(0ms).events() & kEventWritable, 0);
  s.write(100).expect(seg().seq(1).len(100));
}

TEST(NoMemory, BlockIsFull_RoomComesWithTheAcknowledgement) {
  Script s;
  s.establish().write(tcp::SendRing::kFirstBlock).ignore_all();
  leave(s, 0);
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 0U) << "nothing to grow into";
  EXPECT_EQ(write_error(s, s.tcb()), Error::kWouldBlock);
  (void)s.events();
  s.inject(seg().seq(1).ack(2001));
  EXPECT_NE(s.events() & kEventWritable, 0);
  EXPECT_EQ(s.engine().send_room(*s.tcb()), 2000U);
}

TEST(NoMemory, WhoCameFirst_IsToldFirst) {
  Script s;
  Starving three(s, 3);
  for (std::size_t first = 0; first < 3; first++) {
    leave(s, tcp::SendRing::kFirstBlock);
    s.wait(0ms);
    for (std::size_t i = 0; i < 3; i++) EXPECT_EQ(three.told(i), i == first) << first << i;
  }
}

TEST(NoMemory, MemoryForSeveral_AllOfThemAreTold) {
  Script s;
  Starving three(s, 3);
  leave(s, 3 * tcp::SendRing::kFirstBlock);
  s.wait(0ms);
  for (std::size_t i = 0; i < 3; i++) EXPECT_TRUE(three.told(i)) << i;
}

TEST(NoMemory, WhoIsGone_WaitsNoMore) {
  for (std::size_t gone = 0; gone < 3; gone++) {
    Script s;
    Starving three(s, 3);
    s.engine().abort(s.ctx(), *three.all[gone]);
    s.wait(0ms);
    EXPECT_EQ(s.connections(), 2U);
    leave(s, 2 * tcp::SendRing::kFirstBlock);
    s.wait(0ms);
    for (std::size_t i = 0; i < 3; i++) EXPECT_EQ(three.told(i), i != gone) << gone << i;
    EXPECT_EQ(s.engine().impl().starved.head, nullptr);
    EXPECT_EQ(s.engine().impl().starved.tail, nullptr);
  }
}

TEST(NoMemory, Rings_AreNoSmallerThanTheFirstBlock) {
  Script s;
  s.establish();
  leave(s, tcp::SendRing::kFirstBlock - 1);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 100'000).error(), Error::kWouldBlock);
  leave(s, 3 * tcp::SendRing::kFirstBlock - 1);
  EXPECT_EQ(s.engine().reserve(*s.tcb(), 100'000).value().size(), 2 * tcp::SendRing::kFirstBlock);
}

TEST(NoMemory, SomebodyDiesInsideTheLock_WritersTryAgain) {
  Script s;
  Starving two(s, 2);
  s.host().memory().begin_rebuild();
  s.host().stack().rebuild(s.ctx());
  s.host().memory().finish_rebuild();
  s.wait(0ms);
  for (std::size_t i = 0; i < 2; i++) EXPECT_TRUE(two.told(i)) << i;
  leave(s, 0);
  for (tcp::Tcb* tcb : two.all) EXPECT_EQ(write_error(s, tcb), Error::kWouldBlock);
  leave(s, tcp::SendRing::kFirstBlock);
  s.wait(0ms);
  EXPECT_TRUE(two.told(0));
}

}  // namespace
}  // namespace bypass::test
