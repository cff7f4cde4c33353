// A hostile peer: it writes what it likes to all that it can write, whenever it likes: rings, credit blocks, the link's
// own block, messages, the framed stream. It may end its own connections; nobody else's byte is lost, and nothing
// crashes (this runs under AddressSanitizer as well).
#include <gtest/gtest.h>

#include <algorithm>

#include "fastpath/hosts.h"

namespace bypass::fastpath::test {
namespace {

class Hostile {
 public:
  explicit Hostile(Hosts& hosts) : hosts_(hosts), random_(hosts.random()) {}

  /// Random bytes, or a counter that could almost be right, somewhere in [from, from + size) of the victim's memory.
  void scribble(std::uint64_t from, std::uint64_t size) {
    const auto memory = hosts_.cable().end(0).writable_memory().subspan(from, size);
    if (random_.chance(0.5)) {
      for (std::uint64_t n = random_.below(32); n != 0; n--)
        memory[random_.below(size)] = static_cast<std::byte>(random_.next());
    } else if (size >= 8) {
      const std::uint64_t value = random_.chance(0.8) ? random_.below(20'000) : random_.next();
      std::memcpy(memory.data() + (random_.below(size - 7) & ~std::uint64_t{7}), &value, sizeof value);
    }
  }
  /// A message of any kind, to `lane` or to any.
  void message(std::uint16_t lane) {
    const Message message{
        .op = static_cast<Op>(random_.below(16)),
        .sequence = static_cast<std::uint16_t>(random_.chance(0.7) ? random_.below(8) : random_.next()),
        .lane = lane};
    const std::uint64_t length = random_.chance(0.7) ? random_.below(3) * 100 : random_.next();
    hosts_.cable().end(0).inject({to_immediate(message), static_cast<std::uint32_t>(length)});
    messages_++;
  }
  /// A record of any kind, mostly one that could be right, or any bytes.
  void record(std::size_t connection) {
    auto& tcp = hosts_.stream(0, connection).tcp;
    std::array<std::byte, kMaxControl> room{};
    Record record{.type = static_cast<RecordType>(1 + random_.below(19)),
                  .epoch = static_cast<std::uint8_t>(random_.below(4)),
                  .lane = static_cast<std::uint16_t>(random_.below(5)),
                  .link = static_cast<std::uint32_t>(random_.below(4)),
                  .value = random_.chance(0.8) ? random_.below(20'000) : random_.next()};
    record.address = {.ring = random_.next() >> random_.below(64),
                      .credit = random_.next() >> random_.below(64),
                      .lane = static_cast<std::uint16_t>(random_.next()),
                      .ring_log2 = static_cast<std::uint8_t>(12 + random_.below(15))};
    if (record.type == RecordType::kData) record.length = 1 + static_cast<std::uint32_t>(random_.below(100));
    std::size_t n = encode(record, room);
    if (record.type == RecordType::kData) n += record.length;
    if (random_.chance(0.1)) room[random_.below(n)] = static_cast<std::byte>(random_.next());
    tcp.insert(tcp.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
  }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }

 private:
  Hosts& hosts_;
  bypass::sim::Random& random_;
  std::uint64_t messages_ = 0;
};

/// What a victim's lane says must be usable without further checks.
void expect_sane(Hosts& hosts, std::size_t i) {
  Stream& s = hosts.stream(0, i);
  const auto next = s.lane.readable();
  ASSERT_LE(s.lane.una(), s.lane.end());
  ASSERT_LE(s.lane.next_offset(), s.lane.end());
  if (next.from == Lane::From::kRing) {
    ASSERT_LE(next.position + next.bytes, std::uint64_t{1} << s.lane.local().ring_log2);
  } else {
    ASSERT_LE(next.bytes, s.received.size());
  }
}

TEST(LaneFuzz, OneLaneHostile_TheOthersAreUnharmed) {
  unsigned ended = 0, lane_bytes = 0;
  for (std::uint64_t seed = 1; seed <= 100; seed++) {
    SCOPED_TRACE(seed);
    HostsConfig config;
    config.connections = 5;
    config.kills = 0;
    Hosts hosts(seed, config);
    Hostile hostile(hosts);
    hosts.give_up(0);
    const auto misbehave = [&] {
      if (hosts.random().chance(0.3)) hostile.scribble(sizeof(LinkBlock), sizeof(CreditBlock));
      if (hosts.random().chance(0.3)) hostile.scribble(hosts.address(0).ring, 1U << kMinRingLog2);
      if (hosts.random().chance(seed % 2 == 0 ? 0.05 : 0.0)) hostile.message(0);
      if (hosts.random().chance(seed % 3 == 0 ? 0.05 : 0.0)) hostile.record(0);
      expect_sane(hosts, 0);
    };
    for (int turn = 0; turn < 20'000 && !hosts.done() && !HasFatalFailure(); turn++) {
      misbehave();
      hosts.step();
    }
    EXPECT_TRUE(hosts.report().empty()) << hosts.report();
    ended += hosts.stream(0, 0).lane.broken() ? 1U : 0U;
    lane_bytes += hosts.lane_bytes() != 0 ? 1U : 0U;
    if (HasFailure()) return;
  }
  EXPECT_GT(ended, 50U) << "most of what it does is noticed";
  EXPECT_GT(lane_bytes, 90U);
}

TEST(LaneFuzz, EverythingWritable_IsSurvived) {
  std::uint64_t messages = 0;
  for (std::uint64_t seed = 1; seed <= 150; seed++) {
    SCOPED_TRACE(seed);
    HostsConfig config;
    config.connections = 4;
    config.kills = 0;
    Hosts hosts(seed, config);
    Hostile hostile(hosts);
    for (std::size_t i = 0; i < 4; i++) hosts.give_up(i);
    const std::uint64_t all = hosts.cable().end(0).writable_memory().size();
    for (int turn = 0; turn < 400; turn++) {
      const std::size_t i = hosts.random().below(4);
      if (hosts.random().chance(0.5)) hostile.scribble(0, hosts.random().chance(0.5) ? 128 : all);
      if (hosts.random().chance(0.1)) hostile.message(static_cast<std::uint16_t>(i));
      if (hosts.random().chance(0.005)) hostile.message(static_cast<std::uint16_t>(hosts.random().next()));
      if (hosts.random().chance(0.05)) hostile.record(i);
      hosts.step();
      for (std::size_t k = 0; k < 4; k++) expect_sane(hosts, k);
      if (HasFailure()) return;
    }
    messages += hostile.messages();
  }
  EXPECT_GT(messages, 5'000U);
}

}  // namespace
}  // namespace bypass::fastpath::test
