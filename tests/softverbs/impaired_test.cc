// Reliable connections over a wire that loses, doubles, reorders and damages packets. Everything arrives, once and in
// order.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "softverbs/exchange.h"
#include "softverbs/fabric.h"
#include "softverbs/impaired_wires.h"

namespace bypass::rdma::test {
namespace {

struct Program {
  const char* name;
  ExchangeConfig config;
  int operations = 80;
};

PairConfig pair_config(std::uint32_t window) {
  PairConfig config{.timeout = 8, .sq_sig_all = false};  // 1.05 ms
  config.end.device.window = window;
  return config;
}

Program one_read_at_a_time() {
  Program program{"one_read_at_a_time", {.pair = pair_config(4)}};
  program.config.pair.rd_atomic = 1;
  return program;
}

Program late_receiver() {
  Program program{"late_receiver", {.pair = pair_config(32), .late = true}};
  program.config.pair.use_srq = true;
  return program;
}

const std::array<Program, 6> kPrograms = {{
    {"everything", {.pair = pair_config(32)}, 150},
    one_read_at_a_time(),
    late_receiver(),
    {"drained", {.pair = pair_config(32), .drains = true}},
    {"strangers", {.pair = pair_config(32), .strangers = true}},
    {"strangers_drained_and_late", {.pair = pair_config(16), .late = true, .drains = true, .strangers = true}},
}};

class Impaired : public ::testing::TestWithParam<std::tuple<ImpairedWire, Program>> {};

TEST_P(Impaired, EverythingHappensOnceAndInOrder) {
  const auto& [wire, program] = GetParam();
  std::uint64_t told_to_wait = 0, held = 0;
  for (std::uint64_t seed = 1; seed <= 4; seed++) {
    SCOPED_TRACE(seed);
    Exchange exchange(wire.impairment, seed, program.config);
    exchange.run(program.operations);
    if (HasFailure()) return;
    const Counters &a = exchange.pair.a.counters(), &b = exchange.pair.b.counters();
    told_to_wait += a.tx_rnr_nak + b.tx_rnr_nak;
    held += a.rx_held + b.rx_held;
    EXPECT_GE(exchange.drained(), program.config.drains ? 10 : 0);
  }
  EXPECT_EQ(told_to_wait != 0, program.config.late);
  if (program.config.strangers) {
    EXPECT_EQ(held, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, Impaired,
                         ::testing::Combine(::testing::ValuesIn(kImpairedWires), ::testing::ValuesIn(kPrograms)),
                         [](const auto& param) {
                           return name_of(std::get<0>(param.param)) + "_" + std::get<1>(param.param).name;
                         });

TEST(Loss, OfOnePacket_IsRepairedWithoutWaitingForTheTimer) {
  Pair pair;
  std::size_t writes = 0;
  pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    const bool write = from == 0 && frame.size() > 100;
    return sim::Fate{.copies = write && ++writes == 5 ? 0U : 1U};
  });
  pair.a.end.fill(0, 20'000, 1);
  pair.a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()}, 0,
              20'000);
  const Instant start = pair.fabric.now();
  pair.fabric.run_until([&] { return !pair.a.end.poll().empty(); }, 10s);
  EXPECT_LT(pair.fabric.now() - start, 1ms);
  EXPECT_TRUE(pair.b.end.holds(0, 20'000, 1));
  EXPECT_EQ(pair.b.counters().tx_nak, 1U);
  EXPECT_EQ(pair.a.counters().timeouts, 0U);
}

TEST(Loss, OfTheLastAcknowledgement_IsRepairedByTheTimer) {
  Pair pair;
  bool lost = false;
  pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    const bool ack = from == 1 && frame.size() > 42 && frame[42] == std::byte{0x11};
    return sim::Fate{.copies = ack && !std::exchange(lost, true) ? 0U : 1U};
  });
  pair.b.receive(1, 0, 8);
  pair.b.receive(2, 0, 8);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  EXPECT_EQ(only(pair.b.end).wr_id, 1U) << "the repetition is no second message";
  EXPECT_EQ(pair.b.counters().duplicate_request, 1U);
}

TEST(Loss, OfAnAtomicAnswer_DoesNotRepeatTheOperation) {
  Pair pair;
  int lose = 2;
  pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    const bool answer = from == 1 && frame.size() > 42 && frame[42] == std::byte{0x12};
    return sim::Fate{.copies = answer && lose-- > 0 ? 0U : 1U};
  });
  const SendRequest add{.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                        .remote_addr = pair.b.end.address(0),
                        .rkey = pair.b.end.rkey(),
                        .compare_add = 5};
  pair.a.send(add, 8, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  std::uint64_t value;
  std::memcpy(&value, pair.b.end.at(0), 8);
  EXPECT_EQ(value, 5U);
}

TEST(Loss, WithinAReadsAnswer_IsAskedForFromThereOn) {
  Pair pair;
  std::size_t answers = 0;
  pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    const bool answer = from == 1 && frame.size() > 1000;
    return sim::Fate{.copies = answer && ++answers == 10 ? 0U : 1U};
  });
  pair.b.end.fill(0, 40'000, 3);
  pair.a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()}, 100'000,
              40'000);
  const Instant start = pair.fabric.now();
  pair.fabric.run_until([&] { return !pair.a.end.poll().empty(); }, 10s);
  EXPECT_LT(pair.fabric.now() - start, 1ms);
  EXPECT_TRUE(pair.a.end.holds(100'000, 40'000, 3));
}

TEST(Loss, EveryHarmedPacket_IsNoticed) {
  Pair pair;
  pair.b.receive(1, 0, 4096);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  pair.fabric.wire().set_impairment({.corrupt = 0.5});
  for (std::uint64_t i = 0; i < 50; i++) {
    pair.a.end.fill(0, 700, static_cast<unsigned>(i));
    pair.b.receive(i, 4096, 4096);
    pair.a.send({}, 0, 700);
    pair.fabric.run_until([&] { return !pair.a.end.poll().empty(); }, 600s);
    ASSERT_TRUE(pair.b.end.holds(4096, 700, static_cast<unsigned>(i))) << i;
  }
  EXPECT_GT(pair.b.counters().rx_bad_icrc, 10U);
}

}  // namespace
}  // namespace bypass::rdma::test
