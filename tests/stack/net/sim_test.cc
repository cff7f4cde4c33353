// The simulated wire itself: what the tests above it rely on.
#include "backends/sim/sim_wire.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "backends/sim/offload.h"
#include "backends/sim/pcap.h"
#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/world.h"

namespace bypass::test {
namespace {

class SimWire : public testing::Test {
 protected:
  SimWire() { build(offloading_caps(), offloading_caps()); }
  void build(const PortCaps& caps_a, const PortCaps& caps_b) {
    wire = std::make_unique<sim::Wire>(1);
    a = &wire->add_port({.mac = mac(1), .caps = caps_a});
    b = &wire->add_port({.mac = mac(2), .caps = caps_b});
  }
  Packet* frame(std::size_t len, unsigned mark = 0) {
    Packet* packet = nullptr;
    EXPECT_EQ(a->alloc(0, {&packet, 1}), 1U);
    packet->len = packet->frame_len = static_cast<std::uint32_t>(len);
    std::memset(packet->data, 0, len);
    std::memcpy(packet->data + 14, &mark, sizeof mark);
    return packet;
  }
  void send(Packet* packet) { ASSERT_EQ(a->send(0, {&packet, 1}), 1U); }
  void at(Duration t) { wire->set_now(Instant{t}); }
  // Frames that have arrived at b, whole.
  std::vector<sim::Bytes> received(std::uint16_t* flags = nullptr, std::uint16_t* mss = nullptr) {
    std::vector<sim::Bytes> out;
    std::array<Packet*, 64> packets;
    for (std::size_t n = 0; (n = b->receive(0, packets)) != 0;) {
      for (std::size_t i = 0; i < n; i++) {
        if (flags != nullptr) *flags = packets[i]->flags;
        if (mss != nullptr) *mss = packets[i]->tso_mss;
        sim::Bytes bytes;
        for (const Packet* p = packets[i]; p != nullptr; p = p->next_segment)
          bytes.insert(bytes.end(), p->data, p->data + p->len);
        EXPECT_EQ(bytes.size(), packets[i]->frame_len);
        out.push_back(std::move(bytes));
      }
      b->free(std::span{packets}.first(n));
    }
    return out;
  }
  // A TCP frame of `payload` bytes, as a sender with offloads passes it on: its checksum covers only the pseudo header.
  sim::Bytes tcp_frame(std::size_t payload) {
    sim::Bytes l4(20 + payload);
    for (std::size_t i = 0; i < payload; i++) l4[20 + i] = static_cast<std::byte>(i);
    l4[12] = std::byte{0x50};
    l4[13] = std::byte{0x19};  // ACK, PSH, FIN
    sim::Bytes bytes =
        ipv4_frame({.from = "10.9.0.1", .to = "10.9.0.2", .from_mac = mac(1), .to_mac = mac(2), .protocol = 6}, l4);
    const std::uint16_t sum =
        checksum_fold(checksum_pseudo(ip("10.9.0.1"), ip("10.9.0.2"), 6, static_cast<std::uint32_t>(l4.size())));
    std::memcpy(bytes.data() + 34 + 16, &sum, 2);
    return bytes;
  }
  // The same in the port's memory, with everything behind the headers outside of the buffer.
  Packet* large(const sim::Bytes& bytes, std::uint16_t mss) {
    Packet* packet = frame(54);
    std::memcpy(packet->data, bytes.data(), 54);
    packet->external[0] = bytes.data() + 54;
    packet->external_len[0] = static_cast<std::uint32_t>(bytes.size() - 54);
    packet->frame_len = static_cast<std::uint32_t>(bytes.size());
    packet->flags = kTxL4Checksum | kTxTso;
    packet->l2_len = 14;
    packet->l3_len = packet->l4_len = 20;
    packet->tso_mss = mss;
    return packet;
  }

  std::unique_ptr<sim::Wire> wire;
  sim::SimPort* a = nullptr;
  sim::SimPort* b = nullptr;
};

TEST_F(SimWire, PlainWire_DeliversAtOnceInOrder) {
  for (unsigned i = 0; i < 100; i++) send(frame(60, i));
  const auto got = received();
  ASSERT_EQ(got.size(), 100U);
  for (unsigned i = 0; i < 100; i++) EXPECT_EQ(got[i][14], static_cast<std::byte>(i));
  EXPECT_EQ(a->buffers_out() + b->buffers_out(), 0U);
}

TEST_F(SimWire, Delay_HoldsFramesUntilTheirTime) {
  wire->set_impairment({.delay = 10ms, .jitter = 5ms});
  for (unsigned i = 0; i < 50; i++) send(frame(60, i));
  EXPECT_GE(wire->next_arrival(), Instant{10ms});
  at(9ms);
  EXPECT_TRUE(received().empty());
  at(15ms);
  const auto got = received();
  ASSERT_EQ(got.size(), 50U);
  for (unsigned i = 0; i < 50; i++) EXPECT_EQ(got[i][14], static_cast<std::byte>(i)) << "jitter does not reorder";
}

TEST_F(SimWire, LossDuplicationReordering_HappenAtTheirRates) {
  wire->set_impairment({.loss = 0.1});
  for (unsigned i = 0; i < 1000; i++) send(frame(60, i));
  const std::size_t arrived = received().size();
  EXPECT_GT(arrived, 850U);
  EXPECT_LT(arrived, 950U);
  wire->set_impairment({.duplicate = 0.1});
  for (unsigned i = 0; i < 500; i++) send(frame(60, i));
  EXPECT_GT(received().size(), 520U);
  wire->set_impairment({.reorder = 0.1});
  for (unsigned i = 0; i < 200; i++) send(frame(60, i));
  EXPECT_LT(received().size(), 200U) << "the rest is overtaken";
  at(1ms);
  EXPECT_GT(received().size(), 5U);
}

TEST_F(SimWire, Corruption_FlipsOneBit) {
  wire->set_impairment({.corrupt = 1});
  send(frame(60));
  const auto got = received();
  ASSERT_EQ(got.size(), 1U);
  int bits = 0;
  for (const std::byte byte : got[0]) bits += std::popcount(std::to_integer<unsigned>(byte));
  EXPECT_EQ(bits, 1);
}

TEST_F(SimWire, SameSeed_ReplaysExactly) {
  std::vector<std::vector<sim::Bytes>> runs;
  for (int run = 0; run < 2; run++) {
    build(offloading_caps(), offloading_caps());
    wire->set_impairment({.loss = 0.2, .duplicate = 0.2, .corrupt = 0.2, .reorder = 0.2});
    for (unsigned i = 0; i < 200; i++) send(frame(60, i));
    at(1s);
    runs.push_back(received());
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_F(SimWire, Rate_SpacesFramesAndFillsTheRing) {
  wire->set_impairment({.bits_per_second = 1'000'000'000});
  unsigned taken = 0;
  for (Packet* packet = frame(1250); a->send(0, {&packet, 1}) == 1; packet = frame(1250)) taken++;  // 10 µs each
  EXPECT_EQ(taken, 256U);
  EXPECT_EQ(a->stats().tx_full, 1U);
  at(100us);
  EXPECT_EQ(received().size(), 10U);
}

TEST_F(SimWire, BottleneckQueue_LosesWhatDoesNotFit) {
  wire->set_impairment({.bits_per_second = 1'000'000'000, .queue_frames = 20});
  for (unsigned i = 0; i < 100; i++) send(frame(1250, i));
  at(1s);
  EXPECT_EQ(received().size(), 20U);
}

TEST_F(SimWire, Filter_DecidesFrameByFrame) {
  wire->set_filter([n = 0](std::size_t, std::span<const std::byte>) mutable -> sim::Fate {
    n++;
    return {.copies = n == 2 ? 0U : n == 3 ? 2U : 1U, .delay = n == 1 ? Duration{1ms} : Duration{}};
  });
  for (unsigned i = 0; i < 4; i++) send(frame(60, i));
  at(1ms);
  const auto got = received();
  ASSERT_EQ(got.size(), 4U);
  for (unsigned i = 0; i < 4; i++) EXPECT_EQ(got[i][14], static_cast<std::byte>(i == 0 || i == 1 ? 2 : i == 2 ? 3 : 0));
}

TEST_F(SimWire, LinkDown_TakesFramesAndLosesThem) {
  a->set_link(LinkState::kDown);
  send(frame(60));
  EXPECT_TRUE(received().empty());
  EXPECT_EQ(a->buffers_out(), 0U);
}

TEST_F(SimWire, FrameAboveTheMtu_IsLost) {
  send(frame(1515));
  send(frame(1514));
  EXPECT_EQ(received().size(), 1U);
}

TEST_F(SimWire, LargeReceiver_GetsTheLargeFrame) {
  const sim::Bytes bytes = tcp_frame(5000);
  send(large(bytes, 1460));
  std::uint16_t flags = 0, mss = 0;
  const auto got = received(&flags, &mss);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].size(), bytes.size());
  EXPECT_EQ(mss, 1460);
  EXPECT_EQ(flags, kRxLro | kRxIpChecksumGood | kRxL4ChecksumGood);
}

TEST_F(SimWire, OtherReceiver_GetsSegmentsWithRightHeaders) {
  build(offloading_caps(), {});
  send(large(tcp_frame(5000), 1460));
  const auto got = received();
  ASSERT_EQ(got.size(), 4U);
  std::uint32_t sequence = 0;
  for (std::size_t i = 0; i < got.size(); i++) {
    const auto verdict = sim::verify_checksums(got[i]);
    EXPECT_TRUE(verdict.ip_good && verdict.l4_good) << i;
    std::uint32_t seq;
    std::memcpy(&seq, got[i].data() + 38, 4);
    EXPECT_EQ(be32_to_host(seq), sequence);
    sequence += static_cast<std::uint32_t>(got[i].size() - 54);
    EXPECT_EQ(got[i][47], i + 1 == got.size() ? std::byte{0x19} : std::byte{0x10}) << "FIN and PSH ride on the last";
    EXPECT_EQ(got[i][54], static_cast<std::byte>(i * 1460));
  }
  EXPECT_EQ(sequence, 5000U);
}

TEST_F(SimWire, ReceivedChains_AreSplitAtRandomBehindTheHeaders) {
  wire = std::make_unique<sim::Wire>(1);
  a = &wire->add_port({.mac = mac(1), .caps = {}});
  b = &wire->add_port({.mac = mac(2), .caps = {}, .rx_segment = 33});
  send(frame(1000));
  Packet* head = nullptr;
  ASSERT_EQ(b->receive(0, {&head, 1}), 1U);
  EXPECT_EQ(head->len, 134U);
  std::size_t segments = 0;
  for (const Packet* p = head; p != nullptr; p = p->next_segment) segments++;
  EXPECT_GT(segments, 20U);
  b->free({&head, 1});
  EXPECT_EQ(b->buffers_out(), 0U);
}

TEST_F(SimWire, Switch_DeliversUnicastToItsPortAndFloodsTheRest) {
  sim::SimPort& c = wire->add_port({.mac = mac(3), .caps = {}});
  Packet* to_b = frame(60);
  std::memcpy(to_b->data, mac(2).bytes.data(), 6);
  send(to_b);
  EXPECT_EQ(received().size(), 1U);
  EXPECT_EQ(c.next_arrival(), kNever);
  Packet* to_all = frame(60);
  std::memset(to_all->data, 0xff, 6);
  send(to_all);
  EXPECT_EQ(received().size(), 1U);
  EXPECT_EQ(c.next_arrival(), wire->now());
}

using SimWireDeathTest = SimWire;

TEST_F(SimWireDeathTest, FrameFreedTwice_EndsTheProgram) {
  Packet* packet = frame(60);
  a->free({&packet, 1});
  EXPECT_DEATH(a->free({&packet, 1}), "free already");
}

TEST_F(SimWireDeathTest, FrameOfAnotherPort_EndsTheProgram) {
  Packet* packet = frame(60);
  EXPECT_DEATH(b->free({&packet, 1}), "another port");
  a->free({&packet, 1});
}

TEST_F(SimWireDeathTest, FrameLenNotTheSum_EndsTheProgram) {
  Packet* packet = frame(60);
  packet->frame_len = 61;
  EXPECT_DEATH(a->send(0, {&packet, 1}), "not the sum");
  a->free({&packet, 1});
}

TEST_F(SimWire, Pcap_HoldsEveryFrame) {
  const std::string path = testing::TempDir() + "/sim_wire_test.pcap";
  {
    sim::PcapWriter writer{path};
    ASSERT_TRUE(writer.ok());
    wire->capture_to(&writer);
    send(frame(60));
    send(frame(100));
    wire->capture_to(nullptr);
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  std::fseek(file, 0, SEEK_END);
  EXPECT_EQ(std::ftell(file), 24 + 16 + 60 + 16 + 100);
  std::fclose(file);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace bypass::test
