// Repair between two ends with the library. A lost packet is sent again, and hardly anything else. A packet that comes
// before its turn waits, within bounds, and has no effect before that.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

constexpr std::size_t kData = 500;  // frames of so many bytes carry payload
constexpr std::size_t kLength = 100 * 1024, kInto = 500'000;

/// Two ends that have exchanged packets, and so know what the other is. Packets with payload are counted, and some are
/// lost.
struct Link {
  explicit Link(const PairConfig& config = {}, std::uint64_t seed = 1) : pair(config, seed), random(seed) {
    pair.a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()}, 0, 8);
    pair.fabric.settle();
    only(pair.a.end);
    pair.fabric.wire().set_filter([this](std::size_t, std::span<const std::byte> frame) {
      if (frame.size() < kData) return sim::Fate{};
      sent++;
      const bool gone = lose.erase(sent) != 0 || random.chance(loss);
      lost += gone ? 1 : 0;
      return sim::Fate{.copies = gone ? 0U : 1U};
    });
  }

  SendRequest request(ibv_wr_opcode opcode) {
    return {.opcode = opcode, .remote_addr = pair.b.end.address(kInto), .rkey = pair.b.end.rkey()};
  }
  /// Runs one operation of kLength bytes to its end. Returns how many packets were sent beyond those that it takes
  /// without loss.
  std::size_t again(ibv_wr_opcode opcode) {
    const bool read = opcode == IBV_WR_RDMA_READ;
    End& from = read ? pair.b.end : pair.a.end;
    End& to = read ? pair.a.end : pair.b.end;
    sent = lost = 0;
    from.fill(read ? kInto : 0, kLength, ++salt);
    if (opcode == IBV_WR_SEND) pair.b.receive(1, kInto, kLength);
    EXPECT_EQ(pair.a.send(request(opcode), 0, kLength), 0);
    EXPECT_TRUE(pair.fabric.run_until([&] { return !pair.a.end.poll().empty(); }, 60s));
    EXPECT_TRUE(to.holds(read ? 0 : kInto, kLength, salt));
    pair.b.end.poll();
    return sent - kLength / 1024;
  }

  Pair pair;
  sim::Random random;
  double loss = 0;
  std::set<std::size_t> lose;  // by their place in the order of sending
  std::size_t sent = 0, lost = 0;
  unsigned salt = 0;
};

class Repair : public ::testing::TestWithParam<ibv_wr_opcode> {};

TEST_P(Repair, LostPackets_AloneAreSentAgain) {
  for (const std::set<std::size_t>& lose : {std::set<std::size_t>{1}, {5}, {5, 6, 7}, {2, 9, 11, 30, 31, 70}}) {
    Link link;
    link.lose = lose;
    EXPECT_EQ(link.again(GetParam()), lose.size());
    EXPECT_EQ(link.pair.a.counters().timeouts, 0U);
    EXPECT_GT(link.pair.a.counters().rx_held + link.pair.b.counters().rx_held, 0U);
  }
}

TEST_P(Repair, ALostRepetition_IsRepeatedWithoutWaitingForTheTimer) {
  // The repetition of the fifth packet is among the next ones, wherever the sender was when it heard of the loss.
  for (std::size_t second = 6; second < 30; second++) {
    Link link;
    link.lose = {5, second};
    link.again(GetParam());
    EXPECT_EQ(link.pair.a.counters().timeouts, 0U) << second;
  }
}

TEST_P(Repair, AtRandom_CostsLittleMoreThanWhatIsLost) {
  for (const double loss : {0.01, 0.05}) {
    Link link({.timeout = 8}, 7);
    link.pair.fabric.wire().set_impairment({.delay = 20us});
    link.loss = loss;
    std::size_t again = 0, lost = 0;
    for (int i = 0; i < 40; i++) {
      again += link.again(GetParam());
      lost += link.lost;
    }
    EXPECT_GT(lost, loss * 3000);
    EXPECT_LT(static_cast<double>(again), 1.5 * static_cast<double>(lost)) << loss;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Operations, Repair, ::testing::Values(IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ), [](const auto& p) {
      return std::string(p.param == IBV_WR_SEND ? "Send" : p.param == IBV_WR_RDMA_READ ? "Read" : "Write");
    });

TEST(RepairOrder, NothingIsSeenBeforeItsTurn) {
  Link link;
  link.lose = {1};
  End &a = link.pair.a.end, &b = link.pair.b.end;
  a.fill(0, 4096, 1);
  link.pair.fabric.wire().set_impairment({.delay = 10us});
  for (std::uint64_t i = 0; i < 4; i++) link.pair.b.receive(i, i * 1024, 1024);
  for (std::uint64_t i = 0; i < 4; i++) link.pair.a.send({.wr_id = i}, i * 1024, 1024);
  link.pair.fabric.run_for(15us);  // the first is lost, the others are there
  EXPECT_EQ(link.pair.b.counters().rx_held, 3U);
  EXPECT_TRUE(b.poll().empty());
  for (std::size_t at = 0; at < 4096; at++) ASSERT_EQ(*b.at(at), std::byte{}) << at;
  link.pair.fabric.settle();
  const std::vector<ibv_wc> done = b.poll();
  ASSERT_EQ(done.size(), 4U);
  for (std::size_t i = 0; i < 4; i++) EXPECT_EQ(done[i].wr_id, i);
  EXPECT_TRUE(b.holds(0, 4096, 1));
  EXPECT_EQ(link.sent, 5U);
}

TEST(RepairOrder, WhatHasComeTooEarlyAndHasNoReceiveRequest_WaitsForOne) {
  Link link;
  link.lose = {1};
  link.pair.a.end.fill(0, 4096, 1);
  link.pair.b.receive(0, 0, 1024);
  for (std::uint64_t i = 0; i < 4; i++) link.pair.a.send({.wr_id = i}, i * 1024, 1024);
  link.pair.fabric.run_for(1ms);
  EXPECT_EQ(link.pair.b.end.poll().size(), 1U);
  EXPECT_GT(link.pair.b.counters().tx_rnr_nak, 0U);
  for (std::uint64_t i = 1; i < 4; i++) link.pair.b.receive(i, i * 1024, 1024);
  link.pair.fabric.settle();
  EXPECT_EQ(link.pair.b.end.poll().size(), 3U);
  EXPECT_EQ(link.pair.a.end.poll().size(), 4U);
  EXPECT_TRUE(link.pair.b.end.holds(0, 4096, 1));
}

TEST(RepairOrder, AtomicsAndReadsAmongOthers_HappenOnce) {
  for (std::size_t first = 1; first <= 10; first++) {  // of twelve: of the last one only the timer can tell
    Link link;
    link.lose = {first, first + 2};
    Half &a = link.pair.a, &b = link.pair.b;
    for (int round = 0; round < 3; round++) {
      a.send(link.request(IBV_WR_RDMA_WRITE), 0, 2048);
      SendRequest add = link.request(IBV_WR_ATOMIC_FETCH_AND_ADD);
      add.remote_addr = b.end.address(400'000);
      add.compare_add = 1;
      a.send(add, 8192, 8);
      a.send(link.request(IBV_WR_RDMA_READ), 16'384, 2048);
    }
    link.pair.fabric.settle();
    EXPECT_EQ(a.end.poll().size(), 9U);
    std::uint64_t count;
    std::memcpy(&count, b.end.at(400'000), sizeof count);
    EXPECT_EQ(count, 3U) << first;
    EXPECT_EQ(a.counters().timeouts, 0U) << first;
  }
}

TEST(RepairBounds, WhatWaits_KeepsAnEighthOfTheWiresBuffersAtMost) {
  PairConfig config;
  config.end.buffers = 1024;
  Link link(config);
  const std::size_t at_rest = link.pair.b.end.port().buffers_out();
  link.lose = {1};
  link.pair.fabric.wire().set_impairment({.delay = 1ms});  // the NAK is long on its way
  link.pair.a.send(link.request(IBV_WR_RDMA_WRITE), 0, 4 * kLength);
  link.pair.fabric.run_for(1500us);
  EXPECT_EQ(link.pair.b.counters().rx_held, 127U) << "of a window of 128";
  EXPECT_LE(link.pair.b.end.port().buffers_out() - at_rest, 128U);
  link.pair.b.to_state(IBV_QPS_ERR);
  EXPECT_LE(link.pair.b.end.port().buffers_out(), at_rest) << "a queue pair in error keeps nothing";
}

TEST(RepairBounds, WithoutRoomForAny_EverythingArrivesAllTheSame) {
  PairConfig config{.timeout = 8};
  config.end.buffers = 512;  // 64 may wait
  config.end.device.window = 250;
  Link link(config, 3);
  link.pair.fabric.wire().set_impairment({.delay = 100us});
  link.loss = 0.03;
  for (int i = 0; i < 20; i++) link.again(i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
}

// --- What lies on the wire

TEST(RepairFormat, ANakSaysWhatIsThere_AndRequestsNameTheRound) {
  Link link;
  std::vector<sim::Bytes> naks;
  std::vector<std::uint32_t> marks;
  link.pair.fabric.wire().set_filter([&](std::size_t from, std::span<const std::byte> frame) {
    const auto& bth = *reinterpret_cast<const Bth*>(frame.data() + 42);
    if (from == 1 && bth.opcode == 0x11) naks.emplace_back(frame.begin(), frame.end());
    if (from == 0) marks.push_back(bth.psn >> 24 & 0x7f);
    return sim::Fate{.copies = from == 0 && marks.size() == 2 ? 0U : 1U};
  });
  link.pair.a.send(link.request(IBV_WR_RDMA_WRITE), 0, 5 * 1024);
  link.pair.fabric.settle();
  EXPECT_EQ(marks, (std::vector<std::uint32_t>{0x28, 0x28, 0x28, 0x28, 0x28, 0x29}))
      << "the repetition alone is of a new round";
  ASSERT_EQ(naks.size(), 2U);
  ASSERT_EQ(naks[0].size(), 42U + 12 + 4 + 32 + 4);
  EXPECT_EQ(naks[0][54], std::byte{0x60});
  EXPECT_EQ(naks[0][58], std::byte{0b111}) << "the three behind the one that is missing";
  EXPECT_TRUE(std::all_of(naks[0].begin() + 59, naks[0].end() - 4, [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(naks[1].size(), 42U + 12 + 4 + 4) << "an acknowledgement";
}

}  // namespace
}  // namespace bypass::rdma::test
