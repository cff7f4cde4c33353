// A connection under a toy protocol: bytes to be sent are mapped, and received bytes are searched. Upper-case letters
// and digits are the protocol's records. Everything else is the program's.
#include "stack/tcp/output/overlay.h"

#include <cctype>

#include "stack/tcp/script.h"
#include "stack/tcp/state.h"

namespace bypass::test {
namespace {

using tcp::State;

struct Toy {
  tcp::Engine* engine = nullptr;
  std::string first;   // rides on the handshake's last ACK, or answers it
  std::string refill;  // one record at a time, when TCP has room
  std::string records;
  unsigned turns = 0, gone = 0;
  bool sifts = true;
  Hooks hooks;
};

tcp::Sifted look(void* self, std::span<const std::byte> bytes) {
  auto& toy = *static_cast<Toy*>(self);
  const auto is_record = [](std::byte b) { return std::isupper(static_cast<int>(b)) != 0; };
  const bool record = is_record(bytes[0]);
  std::uint32_t n = 1;
  while (n < bytes.size() && is_record(bytes[n]) == record) n++;
  if (record) toy.records.append(reinterpret_cast<const char*>(bytes.data()), n);
  return {record ? tcp::Sifted::As::kRecord : tcp::Sifted::As::kProgram, n};
}

void append(Toy& toy, tcp::Tcb& tcb, const std::string& own, std::uint64_t source = 0, std::uint64_t bytes = 0,
            bool urgent = true) {
  ASSERT_TRUE(tcp::prepare_record(*toy.engine, tcb, static_cast<std::uint32_t>(own.size())));
  tcp::append_record(tcb, std::as_bytes(std::span(own)), source, bytes, urgent);
}

/// Puts every connection under the toy protocol.
void install(Script& s, Toy& toy) {
  toy.engine = &s.engine();
  toy.hooks.self = &toy;
  toy.hooks.see_syn_option = [](void* self, Context&, tcp::Tcb& tcb, bool, std::uint8_t kind,
                                std::span<const std::byte>) {
    auto& t = *static_cast<Toy*>(self);
    if (kind != 254) return;
    EXPECT_NE(tcp::create_overlay(*t.engine, tcb, 16), nullptr);
  };
  toy.hooks.established = [](void* self, Context&, tcp::Tcb& tcb, bool) {
    auto& t = *static_cast<Toy*>(self);
    if (!t.first.empty()) append(t, tcb, t.first);
  };
  toy.hooks.progress = [](void* self, Context& ctx, tcp::Tcb& tcb) {
    auto& t = *static_cast<Toy*>(self);
    t.turns++;
    if (!tcp::synchronized(tcb.state) || !t.sifts) return;
    tcp::sift(*t.engine, ctx, tcb, {&t, look});
    if (tcb.overlay->ready != 0) tcp::post_events(*t.engine, tcb, kEventReadable);
    tcp::release_sent(*t.engine, ctx, tcb, tcb.overlay->map.acknowledged());
  };
  toy.hooks.refill = [](void* self, Context&, tcp::Tcb& tcb) {
    auto& t = *static_cast<Toy*>(self);
    if (t.refill.empty()) return false;
    append(t, tcb, t.refill.substr(0, 1), 0, 0, false);
    t.refill.erase(0, 1);
    return true;
  };
  toy.hooks.gone = [](void* self, Context&, tcp::Tcb&) { static_cast<Toy*>(self)->gone++; };
  s.ctx().hooks = &toy.hooks;
}

const std::vector<std::uint8_t> kOption{254, 3, 9, 1};

Script& open_active(Script& s) {
  return s.connect().ignore_all().inject(seg().syn().seq(0).ack(1).mss(1000).raw(kOption));
}
Script& open_passive(Script& s) {
  return s.listen().inject(seg().syn().seq(0).mss(1000).raw(kOption)).ignore_all();
}

void run(Script& s) {
  s.ctx().now = s.world().now();
  tcp::run_overlay(s.engine(), s.ctx(), *s.tcb());
  s.ctx().flush();
  s.wait(0ms);
}

/// All bytes that are ready.
std::string read_ready(Script& s) {
  std::string text;
  std::span<const std::byte> piece[1];
  while (tcp::peek_from(*s.tcb(), 0, piece, s.tcb()->overlay->ready) != 0) {
    text.append(reinterpret_cast<const char*>(piece[0].data()), piece[0].size());
    s.engine().consume(s.ctx(), *s.tcb(), piece[0].size());
  }
  return text;
}

/// Sends what the program has written as one record of that name.
void send(Script& s, Toy& toy, const std::string& own, std::uint64_t source, std::uint64_t bytes) {
  s.ctx().now = s.world().now();
  append(toy, *s.tcb(), own, source, bytes);
  run(s);
}

TEST(Overlay, FirstBytes_RideOnTheHandshakesLastAck) {
  Script s;
  Toy toy;
  toy.first = "MAGIC";
  install(s, toy);
  open_active(s).expect(seg().seq(1).ack(1).text("MAGIC")).nothing_more();
  s.at(1001ms).expect(seg().seq(1).ack(1).text("MAGIC"));
}

TEST(Overlay, RecordsAndBytes_AreSentSentAgainAndFreed) {
  Script s;
  Toy toy;
  install(s, toy);
  open_active(s).ignore_all();
  s.write(3000).nothing_more();  // the protocol says what is sent
  send(s, toy, "<A>", 0, 1500);
  const std::string wire = "<A>" + pattern(0, 1500);
  s.expect(seg().seq(1).text(wire.substr(0, 1000))).expect(seg().seq(1001).text(wire.substr(1000)));
  send(s, toy, "<B>", 2000, 400);
  s.expect(seg().seq(1504).text("<B>" + pattern(2000, 400))).nothing_more();
  s.inject(seg().seq(1).ack(1001));
  EXPECT_EQ(s.tcb()->ring.begin(), 997U);
  s.at(500ms).expect(seg().seq(1001).text(wire.substr(1000) + "<B>" + pattern(2000, 400)));
  s.inject(seg().seq(1).ack(1907));
  EXPECT_EQ(s.tcb()->ring.begin(), 2400U);
  EXPECT_TRUE(s.tcb()->overlay->map.empty());
}

TEST(Overlay, PathThatTakesLess_GetsSmallerSegments) {
  Given given;
  given.mss = 1460;
  Script s(given);
  Toy toy;
  install(s, toy);
  s.connect().ignore_all().inject(seg().syn().seq(0).ack(1).mss(1460).raw(kOption)).ignore_all();
  s.write(1400);
  send(s, toy, "<A>", 0, 1400);
  const std::string wire = "<A>" + pattern(0, 1400);
  s.expect(seg().seq(1).text(wire));
  s.ctx().now = s.world().now();
  IcmpError error;
  error.local = s.engine().local(*s.tcb());
  error.remote = s.engine().remote(*s.tcb());
  error.error = Error::kMessageTooLarge;
  error.mtu = 600;
  error.sequence = s.tcb()->seq_base.v;
  s.engine().on_icmp(s.ctx(), error);
  s.ctx().flush();
  s.wait(0ms);
  s.expect(seg().seq(1).text(wire.substr(0, 560)));
}

TEST(Overlay, ClosedWindow_IsProbedAndThenFilled) {
  Given given;
  given.window = 0;
  Script s(given);
  Toy toy;
  install(s, toy);
  open_active(s).ignore_all();
  s.write(10);
  send(s, toy, "<A>", 0, 10);
  s.nothing_more().at(1500ms).expect(seg().seq(0).len(0));
  s.inject(seg().seq(1).ack(1).window(100)).ignore_all();
}

TEST(Overlay, Fin_FollowsTheLastRecord) {
  Script s;
  Toy toy;
  install(s, toy);
  open_active(s).ignore_all();
  s.write(5);
  send(s, toy, "<A>", 0, 5);
  s.ignore_all();
  s.ctx().now = s.world().now();
  append(toy, *s.tcb(), "END");
  tcp::send_fin(s.engine(), s.ctx(), *s.tcb());
  run(s);
  s.expect(seg().fin().seq(9).text("END")).nothing_more();
  EXPECT_EQ(s.state(), State::kFinWait1);
  s.inject(seg().seq(1).ack(13));
  EXPECT_EQ(s.state(), State::kFinWait2);
}

/// The process's end does not wait for these if the other ends of all wires have gone.
TEST(Overlay, RecordsOfAnOrphanWithoutBytes_AreItsEnd) {
  Script s;
  Toy toy;
  install(s, toy);
  open_active(s).ignore_all();
  s.write(5);
  send(s, toy, "<A>", 0, 5);
  s.ignore_all();
  tcp::orphan(s.engine(), *s.tcb());
  EXPECT_EQ(s.engine().orphans().with_data, 1U);
  s.inject(seg().seq(1).ack(9));
  send(s, toy, "END", 0, 0);
  EXPECT_EQ(s.engine().orphans().with_data, 0U);
  EXPECT_EQ(s.engine().orphans().closing, 1U);
}

TEST(Overlay, Refill_IsAskedWhenEverythingHasLeft) {
  Script s;
  Toy toy;
  install(s, toy);
  open_active(s).ignore_all();
  toy.refill = "12";
  run(s);
  s.expect(seg().seq(1).text("1")).expect(seg().seq(2).text("2")).nothing_more();
}

TEST(Overlay, Records_AreTakenOutOfWhatIsReceived) {
  Script s;
  Toy toy;
  install(s, toy);
  open_passive(s).inject(seg().seq(1).ack(1).text("ABone"));
  s.events();  // the listener's
  s.accept().ignore_all();
  EXPECT_EQ(s.wait(0ms).events(), kEventReadable | kEventWritable);
  s.inject(seg().seq(6).ack(1).text("twCDothree")).inject(seg().seq(16).ack(1).text("EFG"));
  EXPECT_EQ(toy.records, "ABCDEFG");
  EXPECT_EQ(s.tcb()->overlay->ready, 11U);
  EXPECT_EQ(s.tcb()->rx_bytes, 0U) << "TCP's window counts nothing";
  std::span<const std::byte> pieces[4];
  EXPECT_EQ(tcp::peek_from(*s.tcb(), 1, pieces, 6), 2U);
  EXPECT_EQ(read_ready(s), "onetwothree");
  EXPECT_EQ(s.tcb()->overlay->ready, 0U);
  EXPECT_EQ(s.engine().violated(), nullptr);
}

TEST(Overlay, PlainBytesOfNobody_AreNotTheProgramsYet) {
  Script s;
  Toy toy;
  toy.sifts = false;
  install(s, toy);
  open_passive(s).inject(seg().seq(1).ack(1).text("what is this"));
  s.events();  // the listener's
  s.accept();
  EXPECT_EQ(s.wait(0ms).events(), kEventWritable);
  std::array<std::byte, 4> first;
  EXPECT_EQ(tcp::first_bytes(*s.tcb(), first), 4U);
  s.ctx().now = s.world().now();
  tcp::drop_overlay(s.engine(), s.ctx(), *s.tcb());
  EXPECT_EQ(s.wait(0ms).events() & kEventReadable, kEventReadable);
  EXPECT_EQ(s.read(), "what is this");
  s.ignore_all().write(10).expect(seg().seq(1).text(pattern(0, 10)));
}

TEST(Overlay, DeferredAccept_WaitsForTheProgramsBytes) {
  Given given;
  given.options.defer_accept_s = 5;
  Script s(given);
  Toy toy;
  install(s, toy);
  open_passive(s).inject(seg().seq(1).ack(1).text("MAGIC"));
  EXPECT_EQ(s.listener()->accept_count, 0U);
  s.inject(seg().seq(6).ack(1).text("bytes"));
  EXPECT_EQ(toy.records, "MAGIC");
  s.ctx().now = s.world().now();
  s.engine().impl().tcbs.for_each([&](tcp::Tcb& tcb) { tcp::end_deferral(s.engine(), s.ctx(), tcb); });
  EXPECT_EQ(s.listener()->accept_count, 1U);
}

TEST(Overlay, Abort_TellsTheProtocol) {
  Script s;
  Toy toy;
  install(s, toy);
  open_passive(s).inject(seg().seq(1).ack(1).text("A")).accept().abort();
  EXPECT_EQ(toy.gone, 1U);
  EXPECT_EQ(s.connections(), 0U);
}

TEST(Overlay, Death_KeepsTheMapAndTheQueue) {
  Script s;
  Toy toy;
  install(s, toy);
  open_passive(s).inject(seg().seq(1).ack(1).text("ABone")).accept().ignore_all();
  s.write(100);
  send(s, toy, "<A>", 0, 100);
  s.ignore_all();
  s.ctx().now = s.world().now();
  s.host().memory().begin_rebuild();
  s.host().stack().rebuild(s.ctx());
  s.host().memory().finish_rebuild();
  s.inject(seg().seq(6).ack(1).text("Ctwo"));
  EXPECT_EQ(read_ready(s), "onetwo");
  s.at(100ms).ignore_all().at(1200ms).expect(seg().seq(1).text("<A>" + pattern(0, 100)));
}

}  // namespace
}  // namespace bypass::test
