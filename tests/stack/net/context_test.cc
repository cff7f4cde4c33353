#include "stack/context.h"

#include <gtest/gtest.h>

#include "stack/frame/packet_list.h"
#include "stack/ip/rate_limit.h"
#include "stack/memory/arena_packet.h"
#include "stack/world.h"

namespace bypass::test {
namespace {

class ContextTest : public testing::Test {
 protected:
  ContextTest() : port(wire.add_port(config())), peer(wire.add_port({.mac = mac(2), .caps = {}})) {
    memory = Memory::create(arena.data(), arena.size(), arena.size());
    ctx.queues[0] = PortQueue{&port, 0, 0};
    ctx.ports = 1;
    ctx.memory = memory;
  }
  static sim::PortConfig config() { return {.mac = mac(1), .caps = {}, .buffers = 100, .tx_ring = 10}; }
  Packet* filled() {
    Packet* packet = ctx.queue(0).alloc();
    if (packet != nullptr) packet->len = packet->frame_len = 60;
    return packet;
  }

  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages{256};
  std::span<std::byte> arena{pages[0].bytes, pages.size() * sizeof(Page)};
  sim::Wire wire;
  sim::SimPort& port;
  sim::SimPort& peer;
  Memory* memory;
  Context ctx;
};

TEST_F(ContextTest, Transmit_SendsOneBurstAtFlush) {
  for (int i = 0; i < 5; i++) ASSERT_TRUE(ctx.queue(0).transmit(filled()));
  EXPECT_EQ(port.stats().tx_frames, 0U);
  ctx.flush();
  EXPECT_EQ(port.stats().tx_frames, 5U);
}

TEST_F(ContextTest, DeviceFull_KeepsTheRestInOrderAndSaysSo) {
  wire.set_impairment(0, {.bits_per_second = 60 * 8 * 1000});  // a frame a millisecond
  unsigned queued = 0;
  for (;; queued++) {
    Packet* packet = filled();
    ASSERT_NE(packet, nullptr);
    packet->data[0] = static_cast<std::byte>(queued);
    if (ctx.queue(0).transmit(packet)) continue;
    ctx.release(packet);
    break;
  }
  EXPECT_EQ(queued, 10 + PortQueue::kBatch) << "the device's ring and the batch";
  EXPECT_FALSE(ctx.queue(0).can_transmit());
  for (int ms = 1; ms <= 200; ms++) {
    wire.set_now(Instant{std::chrono::milliseconds(ms)});
    ctx.flush();
  }
  std::array<Packet*, 128> got;
  ASSERT_EQ(peer.receive(0, got), queued);
  for (unsigned i = 0; i < queued; i++) EXPECT_EQ(got[i]->data[0], static_cast<std::byte>(i));
  peer.free(std::span{got}.first(queued));
}

TEST_F(ContextTest, PoolDry_AllocGivesNullAndQueueIsScarce) {
  std::vector<Packet*> out;
  while (Packet* packet = ctx.queue(0).alloc()) out.push_back(packet);
  EXPECT_EQ(out.size(), 100U);
  EXPECT_TRUE(ctx.queue(0).scarce());
  for (Packet* packet : out) ctx.release(packet);
  ctx.flush();
  ASSERT_NE(filled(), nullptr);
  EXPECT_FALSE(ctx.queue(0).scarce());
}

TEST_F(ContextTest, Drain_GivesEverythingBack) {
  ASSERT_TRUE(ctx.queue(0).transmit(filled()));
  ctx.release(filled());
  ctx.queue(0).drain();
  EXPECT_EQ(port.buffers_out(), 0U);
}

TEST_F(ContextTest, ManyReleases_AreGivenBackInBatches) {
  for (int i = 0; i < 90; i++) ctx.release(filled());
  EXPECT_LE(port.buffers_out(), 100U);
  ctx.queue(0).drain();
  EXPECT_EQ(port.buffers_out(), 0U);
}

TEST_F(ContextTest, ReleaseOfArenaPackets_ReturnsEveryBlock) {
  const std::size_t before = memory->stats().used_bytes;
  Packet* head = allocate_arena_packet(*memory, 128, 1000);
  head->next_segment = allocate_arena_packet(*memory, 0, 3000);
  EXPECT_GT(memory->stats().used_bytes, before);
  ctx.release(head);
  EXPECT_EQ(memory->stats().used_bytes, before);
}

TEST_F(ContextTest, CopyToArena_JoinsChainAndExternalBytes) {
  std::byte bytes[30], outside[10];
  for (int i = 0; i < 30; i++) bytes[i] = static_cast<std::byte>(i);
  for (int i = 0; i < 10; i++) outside[i] = static_cast<std::byte>(30 + i);
  Packet head{}, tail{};
  head.data = bytes;
  head.len = 20;
  head.frame_len = 40;
  head.l4_len = 8;
  head.next_segment = &tail;
  tail.data = bytes + 20;
  tail.len = 10;
  head.external[1] = outside;
  head.external_len[1] = 10;
  Packet* copy = copy_to_arena(*memory, head);
  ASSERT_NE(copy, nullptr);
  ASSERT_EQ(copy->len, 40U);
  EXPECT_EQ(copy->l4_len, 8);
  EXPECT_EQ(copy->next_segment, nullptr);
  for (int i = 0; i < 40; i++) EXPECT_EQ(copy->data[i], static_cast<std::byte>(i));
  ctx.release(copy);
}

// An outgoing frame of the arena: headers of 66 bytes, then a payload.
Packet* outgoing(Memory& memory, std::uint32_t len) {
  Packet* packet = allocate_arena_packet(memory, 0, len);
  for (std::uint32_t i = 0; i < len; i++) packet->data[i] = static_cast<std::byte>(i % 251);
  packet->len = packet->frame_len = len;
  packet->flags |= kTxTso | kTxL4Checksum;
  packet->l2_len = 14;
  packet->l3_len = 20;
  packet->l4_len = 32;
  packet->tso_mss = 1448;
  return packet;
}

TEST_F(ContextTest, ToDeviceFrame_IsAChainLaidOutAsASenderDoes) {
  Packet* packet = outgoing(*memory, 5000);
  Packet* frame = to_device_frame(ctx.queue(0), *packet);
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->flags, kTxTso | kTxL4Checksum);
  EXPECT_EQ(frame->l2_len + frame->l3_len + frame->l4_len, 66);
  EXPECT_EQ(frame->tso_mss, 1448);
  EXPECT_EQ(frame->port, 0);
  EXPECT_EQ(frame->frame_len, 5000U);
  EXPECT_EQ(frame->headroom(), kTxHeadroom - 66U) << "the payload is aligned";
  std::vector<std::byte> bytes;
  std::size_t buffers = 0;
  for (const Packet* p = frame; p != nullptr; p = p->next_segment, buffers++)
    bytes.insert(bytes.end(), p->data, p->data + p->len);
  EXPECT_EQ(buffers, 3U);
  ASSERT_EQ(bytes.size(), 5000U);
  EXPECT_EQ(std::memcmp(bytes.data(), packet->data, 5000), 0);
  ctx.release(frame);
  ctx.release(packet);
  ctx.queue(0).drain();
  EXPECT_EQ(port.buffers_out(), 0U);
}

TEST_F(ContextTest, ToDeviceFrame_TakesChainsAndExternalBytes) {
  Packet* head = outgoing(*memory, 100);
  Packet* tail = outgoing(*memory, 50);
  const std::byte outside[20]{std::byte{1}, std::byte{2}};
  head->next_segment = tail;
  head->external[0] = outside;
  head->external_len[0] = sizeof outside;
  head->frame_len = 170;
  Packet* frame = to_device_frame(ctx.queue(0), *head);
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->len, 170U);
  EXPECT_EQ(frame->external[0], nullptr);
  EXPECT_EQ(std::memcmp(frame->data, head->data, 100), 0);
  EXPECT_EQ(std::memcmp(frame->data + 100, tail->data, 50), 0);
  EXPECT_EQ(std::memcmp(frame->data + 150, outside, 20), 0);
  ctx.release(frame);
  ctx.release(head);
}

TEST_F(ContextTest, ToDeviceFrame_WithTooFewBuffers_GivesNullAndTheBuffersBack) {
  std::vector<Packet*> taken(98);
  ASSERT_EQ(port.alloc(0, taken), 98U);
  Packet* packet = outgoing(*memory, 5000);  // needs three
  EXPECT_EQ(to_device_frame(ctx.queue(0), *packet), nullptr);
  ctx.queue(0).drain();
  EXPECT_EQ(port.buffers_out(), 98U);
  port.free(taken);
  EXPECT_NE(to_device_frame(ctx.queue(0), *packet), nullptr);
  ctx.release(packet);
}

TEST_F(ContextTest, ArenaUsedUp_GivesNull) {
  std::vector<Packet*> out;
  while (Packet* packet = allocate_arena_packet(*memory, 0, 2000)) out.push_back(packet);
  EXPECT_GT(out.size(), 100U);
  EXPECT_EQ(allocate_arena_packet(*memory, 0, std::size_t{1} << 40), nullptr);
  for (Packet* packet : out) ctx.release(packet);
}

TEST(PacketList, TakeAll_KeepsTheOrder) {
  Packet p[4]{};
  PacketList a, b;
  a.push(&p[0]);
  b.push(&p[1]);
  b.push(&p[2]);
  a.take_all(b);
  a.push(&p[3]);
  EXPECT_EQ(a.count(), 4U);
  EXPECT_TRUE(b.empty());
  for (Packet& packet : p) EXPECT_EQ(a.pop(), &packet);
  EXPECT_EQ(a.pop(), nullptr);
}

TEST(RateLimit, BurstThenRate_AreWhatTheySay) {
  RateLimit limit{1000, 50};
  const auto allowed_at = [&](Duration at) {
    int n = 0;
    while (limit.allow(Instant{at})) n++;
    return n;
  };
  EXPECT_EQ(allowed_at(0ms), 50);
  EXPECT_EQ(allowed_at(10ms), 10);
  EXPECT_EQ(allowed_at(5ms), 0) << "a clock that goes back wins nothing";
  EXPECT_EQ(allowed_at(10s), 50);
}

}  // namespace
}  // namespace bypass::test
