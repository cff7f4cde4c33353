// A hostile peer over RC. It may do anything with its queue pair, with the memory that its key reaches, and with keys
// that it was never given. This end's process goes on, and the connections of others lose nothing. (Runs under
// AddressSanitizer as well.)
//
// A failure prints its seed. BYPASS_TEST_LONG=1 runs twenty times as many.
#include "fastpath/hostile.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "hosts.h"
#include "long_form.h"

namespace bypass::verbs {
namespace {

using fastpath::CreditBlock;
using fastpath::LinkBlock;
using fastpath::test::expect_sane;
using fastpath::test::Hostile;

std::uint64_t seeds(std::uint64_t count) {
  return bypass::test::long_form() ? 20 * count : count;
}

// --- What a link's own key reaches

/// End 1 of the hosts' link, which also does its normal work.
Hostile::Means over_the_link(Hosts& hosts) {
  const auto post = [&hosts](Write write) { hosts.joint().end(1).post({&write, 1}); };
  return {.place =
              [post](std::uint64_t to, std::span<const std::byte> bytes) {
                Write write;
                write.to = to;
                write.small_length = static_cast<std::uint8_t>(bytes.size());
                std::copy(bytes.begin(), bytes.end(), write.small.begin());
                post(write);
              },
          .tell =
              [post, &hosts](const Arrival& message) {
                Write write;
                write.to = hosts.address(0).ring;
                constexpr std::size_t kRing = std::size_t{1} << fastpath::kMinRingLog2;  // the others' lie behind it
                write.from[0] = hosts.stream(1, 0).buffer.first(std::min<std::size_t>(message.length, kRing));
                write.notify = true;
                write.immediate = message.immediate;
                post(write);
              }};
}

RcHosts::Config hosts_config(std::size_t connections) {
  RcHosts::Config config;
  config.hosts.connections = connections;
  config.hosts.kills = 0;
  config.joint.spec.timeout = 8;
  config.joint.spec.window = static_cast<std::uint16_t>(config.hosts.window);
  return config;
}

TEST(RcHostile, OneLaneHostile_TheOthersAreUnharmed) {
  unsigned ended = 0, used = 0, links = 0;
  for (std::uint64_t seed = 1; seed <= seeds(30); seed++) {
    SCOPED_TRACE(seed);
    RcHosts run(seed, hosts_config(5));
    Hosts& hosts = *run.hosts;
    Hostile hostile(hosts, over_the_link(hosts));
    hosts.give_up(0);
    for (int turn = 0; turn < 20'000 && !hosts.done() && !testing::Test::HasFatalFailure(); turn++) {
      if (hosts.random().chance(0.2)) hostile.scribble(sizeof(LinkBlock), sizeof(CreditBlock));
      if (hosts.random().chance(0.2)) hostile.scribble(hosts.address(0).ring, 1U << fastpath::kMinRingLog2);
      if (hosts.random().chance(seed % 2 == 0 ? 0.05 : 0.0)) hostile.message(0);
      if (hosts.random().chance(seed % 3 == 0 ? 0.05 : 0.0)) hostile.record(0);
      expect_sane(hosts, 0);
      hosts.step();
    }
    EXPECT_TRUE(hosts.report().empty()) << hosts.report();
    ended += hosts.stream(0, 0).lane.broken() ? 1U : 0U;
    used += hosts.lane_bytes() != 0 ? 1U : 0U;
    links += run.links;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(ended, seeds(30) / 2) << "most of what it does is noticed";
  EXPECT_GT(used, seeds(30) * 9 / 10);
  EXPECT_GT(links, seeds(30)) << "some of it ends the link, and there is another one";
}

// Writes also to the link's own block, to lanes that do not exist, and to bytes outside of the memory.
TEST(RcHostile, EverythingWritable_IsSurvived) {
  std::uint64_t messages = 0;
  unsigned links = 0;
  for (std::uint64_t seed = 1; seed <= seeds(40); seed++) {
    SCOPED_TRACE(seed);
    RcHosts run(seed, hosts_config(4));
    Hosts& hosts = *run.hosts;
    Hostile hostile(hosts, over_the_link(hosts));
    for (std::size_t i = 0; i < 4; i++) hosts.give_up(i);
    const std::uint64_t all = hosts.joint().end(0).memory().size();
    for (int turn = 0; turn < 400; turn++) {
      const std::size_t i = hosts.random().below(4);
      if (hosts.random().chance(0.3)) hostile.scribble(0, hosts.random().chance(0.5) ? 128 : all);
      if (hosts.random().chance(0.002)) hostile.scribble(all - 4, 4096);
      if (hosts.random().chance(0.1)) hostile.message(static_cast<std::uint16_t>(i));
      if (hosts.random().chance(0.005)) hostile.message(static_cast<std::uint16_t>(hosts.random().next()));
      if (hosts.random().chance(0.05)) hostile.record(i);
      hosts.step();
      for (std::size_t k = 0; k < 4; k++) expect_sane(hosts, k);
      if (testing::Test::HasFailure()) return;
    }
    messages += hostile.messages();
    links += run.links;
  }
  EXPECT_GT(messages, 30 * seeds(40));
  EXPECT_GT(links, seeds(40));
}

// --- Any request, with any key

/// Two links from the victim's device (0): one to an honest peer, then one to a hostile peer.
class TwoLinks : public testing::Test {
 protected:
  void SetUp() override {
    world.verbs.end(1).reads = 4;
    ASSERT_TRUE(world.open()) << world.problem;
    ASSERT_TRUE(world.connect());
    for (std::size_t i = 0; i < 2; i++) {
      good[i] = world.setups[i];
      good_memory[i] = std::move(world.memory[i]);  // where it lies does not change
    }
    fill(good_memory[0]);
    connect_bad();
  }
  void connect_bad() {
    for (std::size_t i = 0; i < 2; i++) {
      if (bad[i] != nullptr) world.devices[i]->close(bad[i]);
      world.setups[i] = nullptr;
      world.memory[i].assign(RcWorld::kMemory, std::byte{0});
    }
    ASSERT_TRUE(world.connect());
    for (std::size_t i = 0; i < 2; i++) bad[i] = world.setups[i];
  }
  static void fill(std::span<std::byte> memory) {
    for (std::size_t i = sizeof(LinkBlock); i < memory.size(); i++) memory[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  static RcLink& link(LinkSetup* setup) { return static_cast<RcLink&>(setup->link()); }
  /// A request of the hostile peer, as its device takes it.
  void post(ibv_wr_opcode opcode, std::uint64_t address, std::uint32_t key, std::uint32_t length) {
    const RcQueuePair& pair = link(bad[1]).pair();
    Piece piece(world.devices[1]->context(), world.buffers[1]);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(world.buffers[1].data()), length, piece.key()};
    ibv_send_wr wr{}, *refused = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = key;
    EXPECT_EQ(ibv_post_send(pair.pair(), &wr, &refused), 0);
    world.verbs.run_for(1ms);
    for (LinkSetup* each : {bad[0], bad[1]}) (void)poll_all(each->link());
    world.verbs.run_for(1ms);
    for (LinkSetup* each : {bad[0], bad[1]}) (void)poll_all(each->link());
  }
  /// The honest peer's bytes are unchanged, and its link works.
  void expect_good_unharmed() {
    std::vector<std::byte> wanted(good_memory[0].size());
    fill(wanted);
    EXPECT_TRUE(
        std::equal(wanted.begin() + sizeof(LinkBlock), wanted.end(), good_memory[0].begin() + sizeof(LinkBlock)));
    for (std::size_t from = 0; from < 2; from++) {
      Write hello;
      hello.notify = true;
      good[from]->link().post({&hello, 1});
    }
    world.verbs.run_for(1ms);
    for (LinkSetup* each : good) {
      EXPECT_EQ(poll_all(each->link()).size(), 1U);
      EXPECT_EQ(each->link().state(), LinkState::kUp);
    }
  }

  /// The hostile peer's own bytes, which its device may read and write.
  class Piece {
   public:
    Piece(const RcContext& context, std::span<std::byte> bytes)
        : verbs_(*context.verbs),
          mr_(verbs_.reg_mr(context.domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE)) {}
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    ~Piece() { (void)verbs_.dereg_mr(mr_); }
    [[nodiscard]] std::uint32_t key() const { return mr_->lkey; }

   private:
    const Verbs& verbs_;
    ibv_mr* mr_;
  };

  RcWorld world;
  LinkSetup *good[2] = {}, *bad[2] = {};
  std::vector<std::byte> good_memory[2];
};

TEST_F(TwoLinks, GuessedKeys_ReachNothing) {
  sim::Random random(1);
  for (std::uint64_t n = 0; n < seeds(40); n++) {
    const RcQueuePair& own = link(bad[0]).pair();
    const std::uint32_t near = own.key() + static_cast<std::uint32_t>(random.below(7)) - 3;
    const std::uint32_t key = random.chance(0.5) ? near : static_cast<std::uint32_t>(random.next());
    if (key == own.key() || key == link(good[0]).pair().key()) continue;
    const std::uint64_t address =
        random.chance(0.5) ? own.address() + random.below(RcWorld::kMemory) : link(good[0]).pair().address();
    post(random.chance(0.7) ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, address, key, 64);
    EXPECT_EQ(link(bad[0]).state(), LinkState::kDrained) << "it has cost the link";
    expect_good_unharmed();
    connect_bad();
  }
}

TEST_F(TwoLinks, RequestsThatNoLinkMakes_EndThePeersOwn) {
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    SCOPED_TRACE(opcode);
    fill(world.memory[0]);
    const std::vector<std::byte> before = world.memory[0];
    const RcQueuePair& own = link(bad[0]).pair();
    post(opcode, own.address() + 64, own.key(), 8);
    EXPECT_NE(link(bad[0]).state(), LinkState::kUp);
    EXPECT_EQ(world.memory[0], before);
    expect_good_unharmed();
    connect_bad();
  }
}

TEST_F(TwoLinks, OwnKey_EndsWhereItsMemoryDoes) {
  const std::uint64_t begin = link(bad[0]).pair().address(), end = begin + RcWorld::kMemory;
  for (const std::uint64_t at :
       {begin - 1, begin - RcWorld::kMemory, end - 7, end, end + 4096, ~std::uint64_t{0} - 3}) {
    const std::uint64_t shifted = at - begin + link(bad[0]).pair().address();
    post(IBV_WR_RDMA_WRITE, shifted, link(bad[0]).pair().key(), 8);
    EXPECT_EQ(link(bad[0]).state(), LinkState::kDrained);
    EXPECT_EQ(std::count(world.memory[0].begin() + sizeof(LinkBlock), world.memory[0].end(), std::byte{0}),
              static_cast<std::ptrdiff_t>(RcWorld::kMemory - sizeof(LinkBlock)));
    expect_good_unharmed();
    connect_bad();
  }
}

// The key of a link ends with the link, not with its queue pair alone. Otherwise another queue pair of the same device
// would accept it.
TEST_F(TwoLinks, Closed_ItsKeyIsVoid) {
  std::memset(world.buffers[1].data(), 0x77, 64);
  const std::uint64_t address = link(good[0]).pair().address() + 4096;
  const std::uint32_t key = link(good[0]).pair().key();
  post(IBV_WR_RDMA_WRITE, address, key, 64);
  ASSERT_EQ(good_memory[0][4096], std::byte{0x77}) << "as long as the link is there, who has the key may write";
  ASSERT_EQ(link(bad[0]).state(), LinkState::kUp);

  good[0]->link().fail();
  (void)poll_all(good[0]->link());
  ASSERT_EQ(good[0]->link().state(), LinkState::kDrained);
  for (std::size_t i = 0; i < 2; i++) world.devices[i]->close(good[i]);
  ASSERT_TRUE(world.devices[0]->gone(good_memory[0]));
  fill(good_memory[0]);
  const std::vector<std::byte> before = good_memory[0];
  post(IBV_WR_RDMA_WRITE, address, key, 64);
  EXPECT_EQ(good_memory[0], before);
  EXPECT_EQ(link(bad[0]).state(), LinkState::kDrained) << "and it is refused";
}

// --- Any words about a link

TEST(RcHostile, SpoiltRecords_EndTheSetupInTime) {
  unsigned up = 0, failed = 0;
  for (std::uint64_t seed = 1; seed <= seeds(60); seed++) {
    SCOPED_TRACE(seed);
    sim::Random random(seed);
    RcWorld world(seed);
    ASSERT_TRUE(world.open());
    world.request();
    world.settle([&](Record& record, std::vector<std::byte>& body) {
      for (std::uint64_t n = random.below(3); n != 0; n--)
        body[random.below(body.size())] = static_cast<std::byte>(random.next());
      if (random.chance(0.1)) body.resize(random.below(fastpath::kMaxLinkBody) + 1);
      if (random.chance(0.1)) record.type = random.chance(0.5) ? RecordType::kLinkAcc : RecordType::kLinkReady;
      record.length = static_cast<std::uint32_t>(body.size());
    });
    for (std::size_t i = 0; i < 2; i++) {
      if (world.setups[i] == nullptr) continue;
      EXPECT_NE(world.setups[i]->state(), SetupState::kUnderWay) << i;
      (world.setups[i]->state() == SetupState::kUp ? up : failed)++;
      world.devices[i]->close(world.setups[i]);
      EXPECT_TRUE(world.devices[i]->gone(world.memory[i]));
    }
  }
  EXPECT_GT(up, 0U) << "what is spoilt is not always what matters";
  EXPECT_GT(failed, seeds(60));
}

}  // namespace
}  // namespace bypass::verbs
