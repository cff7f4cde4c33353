// Framed connections between two whole stacks: what is said over TCP, lanes, ends, and peers that are not accelerated.
#include "fastpath/framed.h"

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

}  // namespace
}  // namespace bypass::fastpath::test
