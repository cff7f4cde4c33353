// The unreliable services over wires that lose, double, reorder and damage packets. A message that arrives is whole and
// right. Messages arrive as often, and in the order, as the wire has carried them.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "softverbs/engine/wire/roce.h"
#include "softverbs/fabric.h"
#include "softverbs/impaired_wires.h"

namespace bypass::rdma::test {
namespace {

constexpr std::uint64_t kMessages = 100, kReceives = 64;
constexpr std::size_t kSlot = 4096, kWritten = 300'000, kMtu = 1024;

struct Service {
  const char* name;
  ibv_qp_type type;
  ibv_wr_opcode opcode;
  std::size_t gid = 1;
};
const std::array<Service, 4> kServices = {{
    {"UcSend", IBV_QPT_UC, IBV_WR_SEND_WITH_IMM},
    {"UcWrite", IBV_QPT_UC, IBV_WR_RDMA_WRITE_WITH_IMM},
    {"UdIpv4", IBV_QPT_UD, IBV_WR_SEND_WITH_IMM},
    {"UdIpv6", IBV_QPT_UD, IBV_WR_SEND_WITH_IMM, 0},
}};

// Messages of one direction. Each has its number as its immediate, which says what it must contain.
class Stream {
 public:
  Stream(const ImpairedWire& wire, const Service& service, std::uint64_t seed)
      : service_(service), wire_(wire.impairment), pair_({.type = service.type, .gid = service.gid}, seed) {
    impair(pair_, wire_);
  }

  void run() {
    for (std::uint64_t i = 0; i < kMessages; i++) {
      post(i);
      pair_.fabric.run_for(20us);
      take_in();
      if (::testing::Test::HasFatalFailure()) return;
    }
    pair_.fabric.run_for(1ms);
    take_in();
    EXPECT_EQ(done_, kMessages) << "sending succeeds, whatever becomes of it";
    EXPECT_EQ(pair_.b.state(), IBV_QPS_RTS);
    check_order();
    if (writes()) check_written();
  }
  [[nodiscard]] std::size_t arrived() const { return arrived_.size(); }
  [[nodiscard]] bool doubled() const { return doubled_; }

 private:
  [[nodiscard]] bool datagrams() const { return service_.type == IBV_QPT_UD; }
  [[nodiscard]] bool writes() const { return service_.opcode == IBV_WR_RDMA_WRITE_WITH_IMM; }
  [[nodiscard]] std::size_t length_of(std::uint64_t i) const { return i * 977 % (datagrams() ? kMtu + 1 : 4001); }
  static unsigned salt_of(std::uint64_t i) { return static_cast<unsigned>(i * 13 + 1); }
  static std::size_t place_of(std::uint64_t i) { return kWritten + i * kSlot; }

  void post(std::uint64_t i) {
    for (; posted_ < received_ + kReceives; posted_++) pair_.b.receive(posted_, posted_ % kReceives * kSlot, kSlot);
    pair_.a.end.fill(i * kSlot, length_of(i), salt_of(i));
    const SendRequest request{.wr_id = i,
                              .opcode = service_.opcode,
                              .imm = static_cast<std::uint32_t>(i),
                              .remote_addr = pair_.b.end.address(place_of(i)),
                              .rkey = pair_.b.end.rkey(),
                              .ah = pair_.a.ah,
                              .remote_qpn = Device::qpn(*pair_.b.qp),
                              .remote_qkey = pair_.config.qkey};
    ASSERT_EQ(pair_.a.send(request, i * kSlot, length_of(i)), 0);
  }

  void take_in() {
    for (const ibv_wc& wc : pair_.a.end.poll()) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, done_++);
    }
    for (const ibv_wc& wc : pair_.b.end.poll()) check(wc);
  }

  void check(const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, received_++);
    ASSERT_EQ(wc.opcode, writes() ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
    ASSERT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0U);
    const std::uint64_t i = wc.imm_data;
    ASSERT_LT(i, kMessages);
    const std::size_t slot = wc.wr_id % kReceives * kSlot, header = datagrams() ? kGrhBytes : 0;
    ASSERT_EQ(wc.byte_len, header + length_of(i));
    ASSERT_TRUE(pair_.b.end.holds(writes() ? place_of(i) : slot + header, length_of(i), salt_of(i)));
    if (datagrams()) check_header(wc, pair_.b.end.at(slot));
    arrived_.push_back(i);
  }

  // Fields that nothing on the way may change.
  void check_header(const ibv_wc& wc, const std::byte* header) {
    ASSERT_NE(wc.wc_flags & IBV_WC_GRH, 0U);
    ASSERT_EQ(wc.src_qp, Device::qpn(*pair_.a.qp));
    const ibv_gid from = pair_.a.end.gid(service_.gid), to = pair_.b.end.gid(service_.gid);
    const bool v4 = service_.gid == 1;
    const std::size_t bytes = v4 ? 4 : 16, source = v4 ? 20 + 12 : 8;
    ASSERT_EQ(std::memcmp(header + source, from.raw + 16 - bytes, bytes), 0);
    ASSERT_EQ(std::memcmp(header + source + bytes, to.raw + 16 - bytes, bytes), 0);
    ASSERT_EQ(header[v4 ? 20 + 9 : 6], std::byte{17}) << "UDP";
  }

  // If the wire doubles a packet that is a whole message, the message comes twice. A message of several packets does
  // not.
  void check_order() {
    const bool doubles = wire_.duplicate > 0, reorders = wire_.reorder > 0;
    for (std::size_t i = 1; i < arrived_.size() && !reorders; i++) {
      EXPECT_GE(arrived_[i], arrived_[i - 1]);
      if (!doubles || length_of(arrived_[i]) > kMtu) {
        EXPECT_NE(arrived_[i], arrived_[i - 1]);
      }
    }
    std::ranges::sort(arrived_);
    doubled_ = std::ranges::adjacent_find(arrived_) != arrived_.end();
    EXPECT_TRUE(doubles || !doubled_) << "a message arrived twice";
    const auto behind = std::unique(arrived_.begin(), arrived_.end());
    arrived_.erase(behind, arrived_.end());
    EXPECT_GT(arrived_.size(), kMessages / 2);
  }

  // A write that has not arrived may have written its beginning, and nothing else.
  void check_written() {
    for (std::uint64_t i = 0; i < kMessages; i++) {
      const std::byte* at = pair_.b.end.at(place_of(i));
      EXPECT_TRUE(std::all_of(at + length_of(i), at + kSlot, [](std::byte b) { return b == std::byte{}; })) << i;
      std::size_t same = 0;
      while (same < length_of(i) && at[same] == *pair_.a.end.at(i * kSlot + same)) same++;
      const bool whole_packets = same == length_of(i) || std::all_of(at + same / kMtu * kMtu, at + length_of(i),
                                                                     [](std::byte b) { return b == std::byte{}; });
      EXPECT_TRUE(whole_packets) << i;
    }
  }

  Service service_;
  sim::Impairment wire_;
  Pair pair_;
  std::uint64_t posted_ = 0, received_ = 0, done_ = 0;
  std::vector<std::uint64_t> arrived_{};  // numbers of messages
  bool doubled_ = false;
};

class ImpairedUnreliable : public ::testing::TestWithParam<std::tuple<ImpairedWire, Service>> {};

TEST_P(ImpairedUnreliable, WhatArrives_IsWholeAndAsTheWireHasCarriedIt) {
  const auto& [wire, service] = GetParam();
  std::size_t arrived = 0;
  bool doubled = false;
  for (std::uint64_t seed = 1; seed <= 4; seed++) {
    SCOPED_TRACE(seed);
    Stream stream(wire, service, seed);
    stream.run();
    if (HasFailure()) return;
    arrived += stream.arrived();
    doubled |= stream.doubled();
  }
  EXPECT_EQ(doubled, wire.impairment.duplicate > 0);
  const bool loses = wire.impairment.loss > 0 || wire.impairment.corrupt > 0;
  if (loses) {
    EXPECT_LT(arrived, 4 * kMessages) << "nobody sends it again";
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, ImpairedUnreliable,
                         ::testing::Combine(::testing::ValuesIn(kImpairedWires), ::testing::ValuesIn(kServices)),
                         [](const auto& param) {
                           return name_of(std::get<0>(param.param)) + "_" + std::get<1>(param.param).name;
                         });

}  // namespace
}  // namespace bypass::rdma::test
