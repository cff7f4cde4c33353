// A framed peer that sends anything. It can break only its own connection.
#include <gtest/gtest.h>

#include "fastpath/framed_world.h"
#include "stack/tcp/input/segment.h"

namespace bypass::fastpath::test {
namespace {

/// Writes a record's bytes into the stream, after the lane's own records.
void inject(FramedWorld& w, std::size_t side, std::span<const std::byte> bytes) {
  auto& host = w.host(side);
  host.ctx().now = w.world().now();
  ASSERT_TRUE(tcp::prepare_record(host.tcp(), *w.tcb[side], static_cast<std::uint32_t>(bytes.size())));
  tcp::append_record(*w.tcb[side], bytes, 0, 0, true);
  tcp::run_overlay(host.tcp(), host.ctx(), *w.tcb[side]);
  host.ctx().flush();
}

std::vector<std::byte> anything(bypass::sim::Random& random) {
  Record record;
  record.type = static_cast<RecordType>(1 + random.below(20));
  record.epoch = static_cast<std::uint8_t>(random.below(3));
  record.lane = static_cast<std::uint16_t>(random.below(9));
  record.link = static_cast<std::uint32_t>(random.below(3));
  record.length = record.type == RecordType::kData ? 0 : static_cast<std::uint32_t>(random.below(kMaxLinkBody + 1));
  record.value = random.chance(0.5) ? random.below(3000) : random.next();
  record.address = {.ring = random.below(200'000),
                    .credit = 64 + 16 * random.below(20),
                    .lane = static_cast<std::uint16_t>(random.below(9)),
                    .ring_log2 = static_cast<std::uint8_t>(12 + random.below(4))};
  std::array<std::byte, kMaxControl> room{};
  const std::size_t n = encode(record, room);
  std::vector<std::byte> bytes(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
  if (random.chance(0.2)) bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1 + random.below(255));
  if (random.chance(0.1)) bytes.resize(1 + random.below(bytes.size()));
  return bytes;
}

TEST(FramedHostile, AnyRecords_BreakTheirOwnConnectionAtMost) {
  unsigned resets = 0;
  for (std::uint64_t seed = 1; seed <= 200; seed++) {
    FramedWorldConfig config;
    config.seed = seed;
    config.cable = seed % 3 != 0;
    FramedWorld w(config);
    ASSERT_TRUE(w.open());
    bypass::sim::Random random(seed);
    w.run_for(std::chrono::microseconds(random.below(3000)));
    const std::size_t bad = random.below(2), good = 1 - bad;
    for (int i = 0; i < 10; i++) {
      if (w.framed(bad) == nullptr || w.host(bad).tcp().state(*w.tcb[bad]) != tcp::State::kEstablished) break;
      if (w.tcb[bad]->has(tcp::kFinQueued)) break;
      inject(w, bad, anything(random));
      if (random.chance(0.3)) w.write(good, "some bytes");
      w.run_for(std::chrono::microseconds(random.below(500)));
      (void)w.read(good);
      (void)w.read(bad);
      ASSERT_EQ(w.problem(), "") << seed;
    }
    w.run_for(10ms);
    resets += w.host(good).tcp().error(*w.tcb[good]) == Error::kReset ? 1 : 0;
    for (const std::size_t side : {good, bad}) w.calls(side).abort(*w.tcb[side]);
    ASSERT_EQ(w.leftovers(), "") << seed;
  }
  EXPECT_GT(resets, 100U);
}

TEST(FramedHostile, MoreDataThanTheWindow_IsReset) {
  FramedWorldConfig config;
  config.cable = false;
  FramedWorld w(config);
  ASSERT_TRUE(w.open());
  w.run_for(1ms);
  std::vector<std::byte> record(kRecordHeader + 1000);
  encode({.type = RecordType::kData, .length = 1000}, record);
  for (int i = 0; i < 66 && w.host(0).tcp().state(*w.tcb[0]) == tcp::State::kEstablished; i++) {
    inject(w, 0, record);
    w.run_for(100us);
  }
  EXPECT_EQ(w.host(1).tcp().error(*w.tcb[1]), Error::kReset);
  EXPECT_EQ(w.framed(1)->lane.reason(), Reason::kRingOverrun);
}

}  // namespace
}  // namespace bypass::fastpath::test
