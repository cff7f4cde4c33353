// Random transfers over a bad wire, with lanes over links that die. Every byte arrives once and in order, both
// directions end, and nothing is left. BYPASS_TEST_SEED=n replays one seed, BYPASS_TEST_LONG=1 runs 20 times as many.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fastpath/framed_world.h"
#include "long_form.h"

namespace bypass::fastpath::test {
namespace {

constexpr std::uint64_t kMostBytes = 60'000;

std::byte byte_at(std::uint64_t offset, std::size_t side) {
  const std::uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15U + side;
  return static_cast<std::byte>(x >> 56 ^ x >> 24);
}

/// One side's program: writes, reads and checks, half-closes, closes.
class Program {
 public:
  Program(FramedWorld& world, std::size_t side, std::uint64_t seed)
      : world_(world), side_(side), random_(seed * 2 + side), total_(random_.below(kMostBytes)) {
    // The peer's generator of bytes, which gives the same bytes.
    bypass::sim::Random other(seed * 2 + (1 - side));
    expected_ = other.below(kMostBytes);
    small_ = random_.chance(0.3);
  }

  [[nodiscard]] bool done() const { return closed_; }
  /// True: another turn would do something, although nothing happens on the wire.
  [[nodiscard]] bool busy() {
    if (!connected() || closed_) return false;
    return calls().readable(tcb()) != 0 || !shut_ || calls().at_eof(tcb());
  }
  [[nodiscard]] std::string problem() const { return problem_; }
  [[nodiscard]] std::string progress() const {
    return " sent " + std::to_string(sent_) + "/" + std::to_string(total_) + " read " + std::to_string(read_) + "/" +
           std::to_string(expected_) + (shut_ ? " shut" : "") + (closed_ ? " closed" : "");
  }

  void step() {
    if (!connected() || closed_) return;
    world_.host(side_).ctx().now = world_.world().now();
    if (const Error error = world_.host(side_).tcp().error(tcb()); error != Error::kNone) {
      problem_ = "error " + std::to_string(static_cast<int>(error)) + progress() + world_.describe();
      return;
    }
    if (random_.chance(0.7)) read();
    if (random_.chance(0.3)) write();
    if (!shut_ && sent_ == total_ && random_.chance(0.5)) {
      calls().shutdown_send(tcb());
      shut_ = true;
    }
    if (!shut_ || !calls().at_eof(tcb())) return;
    if (read_ != expected_) problem_ = "the stream ended early";
    calls().close(tcb());
    closed_ = true;
  }

 private:
  Calls calls() { return world_.calls(side_); }
  tcp::Tcb& tcb() { return *world_.tcb[side_]; }
  bool connected() {
    if (world_.tcb[side_] == nullptr) return false;
    connected_ = connected_ || world_.host(side_).tcp().state(tcb()) > tcp::State::kSynReceived;
    return connected_;
  }

  void read() {
    const std::string text = calls().read(tcb(), 1 + random_.below(small_ ? 300 : 40'000));
    for (const char c : text)
      if (static_cast<std::byte>(c) != byte_at(read_++, 1 - side_) && problem_.empty())
        problem_ = "wrong byte at " + std::to_string(read_ - 1);
  }

  void write() {
    if (shut_ || sent_ == total_) return;
    std::vector<std::byte> bytes(std::min<std::uint64_t>(1 + random_.below(small_ ? 100 : 3000), total_ - sent_));
    for (std::size_t i = 0; i < bytes.size(); i++) bytes[i] = byte_at(sent_ + i, side_);
    sent_ += calls().write(tcb(), bytes, random_.chance(0.1));
  }

  FramedWorld& world_;
  std::size_t side_;
  bypass::sim::Random random_;
  std::uint64_t total_, expected_ = 0, sent_ = 0, read_ = 0;
  bool connected_ = false, small_ = false, shut_ = false, closed_ = false;
  std::string problem_;
};

double up_to(bypass::sim::Random& random, double most) {
  return most * static_cast<double>(random.below(1001)) / 1000;
}

FramedWorldConfig config_of(std::uint64_t seed) {
  bypass::sim::Random random(seed * 1000003);
  FramedWorldConfig config;
  config.seed = seed;
  if (seed % 4 != 0) {
    config.wire.loss = up_to(random, 0.05);
    config.wire.duplicate = up_to(random, 0.05);
    config.wire.corrupt = up_to(random, 0.01);
    config.wire.reorder = up_to(random, 0.1);
  }
  config.wire.delay = std::chrono::microseconds(random.below(3000));
  config.wire.jitter = std::chrono::microseconds(random.below(500));
  config.wire.reorder_delay = std::chrono::microseconds(random.below(3000));
  for (SideConfig& side : config.side) {
    side.capable = random.chance(0.9);
    side.tag = static_cast<std::uint32_t>(random.next());
    if (random.chance(0.5)) side.host.caps = bypass::test::offloading_caps();
    side.host.caps.gather = random.chance(0.5);
    if (random.chance(0.3)) side.host.rx_segment = 60 + random.below(400);
    side.host.stack.tcp.sack = !random.chance(0.2);
    side.host.stack.tcp.timestamps = !random.chance(0.2);
    side.host.stack.tcp.secret[0] = random.next();
    if (random.chance(0.2)) side.options.receive_buffer = static_cast<std::uint32_t>(2000 + random.below(20000));
    if (random.chance(0.2)) side.options.send_buffer = static_cast<std::uint32_t>(4096 + random.below(60000));
    if (random.chance(0.2)) side.options.max_segment = static_cast<std::uint16_t>(100 + random.below(1200));
    side.options.no_delay = random.chance(0.5);
    side.host.stack.arp_attempts = 100;
    const bool few = side.host.rx_segment == 0 && random.chance(0.4);  // so that payload moves to the arena
    side.host.buffers = few ? 150 + random.below(100) : 4096;
    side.host.arena_bytes = std::size_t{16} << 20;
  }
  config.tcp_window = 16384U << random.below(4);
  config.cable = random.chance(0.8);
  config.kills = static_cast<unsigned>(random.below(4));
  config.cut_chance = random.chance(0.2) ? 0 : 0.5;
  config.leave_chance = random.chance(0.3) ? 0.002 : 0;
  return config;
}

struct Totals {
  unsigned framed = 0, cuts = 0;
};

std::string run(std::uint64_t seed, Totals& totals) {
  FramedWorld world(config_of(seed));
  Program client(world, 0, seed), server(world, 1, seed);
  world.listen();
  world.connect();
  std::string problem;
  const auto turn = [&] {
    if (world.tcb[1] == nullptr) world.accept();
    client.step();
    server.step();
    problem = client.problem() + server.problem() + world.problem();
    return !problem.empty() || (client.done() && server.done());
  };
  const Instant end = world.world().now() + 1h;
  bool ended = false;
  bool framed = false;
  while (!ended && world.world().now() < end && problem.empty()) {
    framed = framed || (world.framed(1) != nullptr && !server.done() && world.framed(1)->both_framed());
    ended = turn();
    const auto busy = [&] { return client.busy() || server.busy(); };  // the link comes back by itself
    if (busy()) {
      world.run_until([&] { return ended = ended || turn(); }, 300us);
    } else {
      world.run_until([&] { return ended = ended || turn(), ended || busy(); }, end - world.world().now());
    }
  }
  totals.framed += framed ? 1 : 0;
  totals.cuts += world.links(0).cuts + world.links(1).cuts;
  if (!ended) problem = "no end:" + client.progress() + "," + server.progress() + world.describe();
  return problem.empty() ? world.leftovers() : problem;
}

constexpr std::uint64_t kSeeds = 300;

TEST(FramedTransfer, Seeds_ArriveWhole) {
  Totals totals;
  const std::uint64_t seeds = bypass::test::tries(kSeeds, 20);
  for (std::uint64_t seed = 1; seed <= seeds; seed++) {
    const std::string problem = run(seed, totals);
    ASSERT_EQ(problem, "") << "BYPASS_TEST_SEED=" << seed << " replays this";
  }
  EXPECT_GT(totals.framed, seeds * 2 / 3);
  EXPECT_GT(totals.cuts, seeds * 2 / 3);
}

TEST(FramedTransferReplay, SeedFromEnvironment_ArrivesWhole) {
  const char* seed = std::getenv("BYPASS_TEST_SEED");
  if (seed == nullptr) GTEST_SKIP();
  Totals totals;
  EXPECT_EQ(run(std::strtoull(seed, nullptr, 10), totals), "");
}

}  // namespace
}  // namespace bypass::fastpath::test
