// Reliable connections over a wire that loses, doubles, reorders and harms packets: everything arrives, once, in order.
#include <gtest/gtest.h>

#include <algorithm>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

struct Wire {
  const char* name;
  sim::Impairment impairment;
};
const std::array<Wire, 7> kWires = {{
    {"some_loss", {.loss = 0.01, .delay = 20us}},
    {"loss", {.loss = 0.05, .delay = 20us}},
    {"duplication", {.duplicate = 0.2, .delay = 20us}},
    {"reordering", {.reorder = 0.1, .delay = 20us}},
    {"corruption", {.corrupt = 0.03, .delay = 20us}},
    {"all", {.loss = 0.03, .duplicate = 0.05, .corrupt = 0.01, .reorder = 0.05, .delay = 20us, .jitter = 5us}},
    {"narrow", {.loss = 0.01, .delay = 20us, .bits_per_second = 1'000'000'000, .queue_frames = 40}},
}};

constexpr std::size_t kSlot = 4096, kSlots = 16;

// A program of sends, writes with immediate, reads and atomic additions, both ends at once, each checked.
class Exchange {
 public:
  Exchange(const Wire& wire, std::uint64_t seed, const PairConfig& config) : pair(config, seed), random_(seed) {
    pair.fabric.wire().set_impairment(wire.impairment);
    pair.fabric.acks = seed % 2 == 0 ? Acks::kLeave : Acks::kSend;
  }

  void run(int operations) {
    for (Side* side : {&a_, &b_}) {
      side->left = operations;
      side->half.end.fill(kReadable, kRead, 77);
    }
    const bool ended = pair.fabric.run_until([&] { return step(a_) & step(b_); }, 600s);
    ASSERT_TRUE(ended) << "stuck: " << a_.left << " " << b_.left;
    EXPECT_EQ(counter(pair.a.end), b_.added);
    EXPECT_EQ(counter(pair.b.end), a_.added);
  }

  Pair pair;

 private:
  struct Side {
    Half& half;
    Half& peer;
    unsigned salt;
    int left = 0;
    std::uint64_t sent = 0, received = 0, done = 0, added = 0, posted = 0;
    std::uint64_t last_found = 0;
    struct Expected {
      ibv_wc_opcode opcode;
      std::size_t length;
    };
    std::vector<Expected> requests{};  // by wr_id
  };

  // The peer's region: receive slots, then the counter, then bytes to be read; ours: what is sent, what is read.
  static constexpr std::size_t kCounter = 200'000, kReadable = 210'000, kSource = 400'000, kInto = 600'000;
  static constexpr std::size_t kRead = 20'000;

  static std::uint64_t counter(End& end) {
    std::uint64_t v;
    std::memcpy(&v, end.at(kCounter), 8);
    return v;
  }
  // What message number `n` of a side is: both ends know.
  static std::size_t length_of(std::uint64_t n) { return n * 977 % kSlot; }

  void prepare(Side& side) {
    while (side.posted < side.received + kSlots) {
      side.half.receive(side.posted, side.posted % kSlots * kSlot, kSlot);
      side.posted++;
    }
  }

  void post_one(Side& side) {
    SendRequest request;
    request.wr_id = side.requests.size();
    request.rkey = side.peer.end.rkey();
    switch (random_.below(3)) {
      case 0: {
        const std::size_t length = length_of(side.sent);
        side.half.end.fill(kSource + side.sent % kSlots * kSlot, length, side.salt + static_cast<unsigned>(side.sent));
        request.opcode = IBV_WR_SEND_WITH_IMM;
        request.imm = static_cast<std::uint32_t>(side.sent);
        ASSERT_EQ(side.half.send(request, kSource + side.sent % kSlots * kSlot, length), 0);
        side.requests.push_back({IBV_WC_SEND, length});
        side.sent++;
        break;
      }
      case 1:
        request.opcode = IBV_WR_RDMA_READ;
        request.remote_addr = side.peer.end.address(kReadable);
        ASSERT_EQ(side.half.send(request, kInto, kRead), 0);
        side.requests.push_back({IBV_WC_RDMA_READ, kRead});
        break;
      default:
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.remote_addr = side.peer.end.address(kCounter);
        request.compare_add = 1;
        side.added++;
        ASSERT_EQ(side.half.send(request, kInto + 60'000, 8), 0);
        side.requests.push_back({IBV_WC_FETCH_ADD, 8});
    }
  }

  void check(Side& side, const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << wc.opcode;
    if (wc.opcode == IBV_WC_RECV) {
      ASSERT_EQ(wc.wr_id, side.received);
      ASSERT_EQ(wc.imm_data, static_cast<std::uint32_t>(side.received));
      ASSERT_EQ(wc.byte_len, length_of(side.received));
      const unsigned salt = (side.salt == 1 ? 1000U : 1U) + static_cast<unsigned>(side.received);
      ASSERT_TRUE(side.half.end.holds(side.received % kSlots * kSlot, wc.byte_len, salt));
      side.received++;
      return;
    }
    ASSERT_EQ(wc.wr_id, side.done);
    ASSERT_EQ(wc.opcode, side.requests[side.done].opcode);
    if (wc.opcode == IBV_WC_RDMA_READ) {
      ASSERT_TRUE(side.half.end.holds(kInto, kRead, 77));
    }
    side.done++;
  }

  bool step(Side& side) {
    prepare(side);
    for (const ibv_wc& wc : side.half.end.poll()) check(side, wc);
    if (::testing::Test::HasFatalFailure()) return true;
    while (side.left != 0 && side.requests.size() < side.done + 8) {
      side.left--;
      post_one(side);
    }
    return side.left == 0 && side.done == side.requests.size();
  }

  Side a_{pair.a, pair.b, 1}, b_{pair.b, pair.a, 1000};
  sim::Random random_;
};

class Impaired : public ::testing::TestWithParam<Wire> {};

TEST_P(Impaired, EverythingArrivesOnceAndInOrder) {
  for (std::uint64_t seed = 1; seed <= 3; seed++) {
    SCOPED_TRACE(seed);
    PairConfig config{.timeout = 8};  // 1.05 ms
    config.end.device.window = 32;
    Exchange exchange(GetParam(), seed, config);
    exchange.run(150);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Impaired, ASmallWindowAndOneReadAtATime) {
  PairConfig config{.timeout = 8, .rd_atomic = 1};
  config.end.device.window = 4;
  Exchange exchange(GetParam(), 11, config);
  exchange.run(100);
}

INSTANTIATE_TEST_SUITE_P(Wires, Impaired, ::testing::ValuesIn(kWires),
                         [](const auto& wire) { return std::string(wire.param.name); });

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
