// Frames that the network and UDP hold, moved to the arena, where every process of a family can read them.
#include "backends/sim/offload.h"
#include "stack/net/one_host.h"
#include "stack/udp/udp_impl.h"

namespace bypass::test {
namespace {

class ArenaMove : public OneHost {
 protected:
  explicit ArenaMove(const HostConfig& config = {}) : OneHost(config) {
    endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 20, {}, this);
    used_at_first = used();
  }
  std::size_t move() {
    const std::size_t stayed = host.stack().move_frames_to_arena(host.ctx());
    host.ctx().flush();
    return stayed;
  }
  std::size_t used() { return host.memory().stats().used_bytes; }
  // Frames out of the port's pool, without those that are ready for sending.
  std::size_t held() { return leaked(); }
  void deliver(int count) {
    for (int i = 0; i < count; i++) world.wire().inject(0, udp_frame({}, 9, 7, bytes_of(text(i))));
    run(1us);
  }
  static std::string text(int i) {
    return "datagram " + std::to_string(i) + std::string(600, static_cast<char>('a' + i));
  }
  std::string receive() {
    udp::Datagram datagram;
    if (!host.udp().front(*endpoint, datagram)) return "-";
    std::string got;
    std::uint32_t skip = datagram.offset, left = datagram.length;
    for (const Packet* p = datagram.packet; p != nullptr; p = p->next_segment) {
      const std::uint32_t from = std::min(skip, p->len), n = std::min(p->len - from, left);
      got.append(reinterpret_cast<const char*>(p->data + from), n);
      skip -= from;
      left -= n;
    }
    host.udp().pop(host.ctx(), *endpoint);
    return got;
  }
  // Takes every buffer that the port has left. The caller returns them.
  std::vector<Packet*> take_all_buffers() {
    host.ctx().queue(0).drain();
    std::vector<Packet*> taken(2048);
    taken.resize(host.port().alloc(0, taken));
    return taken;
  }

  udp::Binding* endpoint;
  std::size_t used_at_first;
};

class ArenaMoveOfChains : public ArenaMove {
 protected:
  ArenaMoveOfChains() : ArenaMove(HostConfig{.rx_segment = 100}) {}
};
class ArenaMoveOffloading : public ArenaMove {
 protected:
  ArenaMoveOffloading() : ArenaMove(HostConfig{.caps = offloading_caps()}) {}
};

TEST_F(ArenaMove, NothingHeld_NothingMoves) {
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMoveOfChains, Datagrams_KeepBytesOrderAndMeaning) {
  world.wire().inject(0, udp_frame({.ttl = 77, .tos = 8}, 9, 7, bytes_of(text(0))));
  world.wire().inject(0, udp_frame({.option_words = 3}, 10, 7, bytes_of(text(1))), 5us);
  world.wire().inject(0, udp_frame({}, 11, 7, {}), 9us);
  run(20us);
  udp::Datagram before, after;
  ASSERT_TRUE(host.udp().front(*endpoint, before));
  EXPECT_GT(held(), 3U);
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
  ASSERT_TRUE(host.udp().front(*endpoint, after));
  EXPECT_EQ(after.source, before.source);
  EXPECT_EQ(after.destination, before.destination);
  EXPECT_EQ(after.arrived, before.arrived);
  EXPECT_EQ(after.tos, 8);
  EXPECT_EQ(after.ttl, 77);
  EXPECT_EQ(receive(), text(0));
  ASSERT_TRUE(host.udp().front(*endpoint, after));
  EXPECT_EQ(after.source, (Endpoint{ip("10.9.0.2"), 10}));
  EXPECT_EQ(receive(), text(1));
  EXPECT_EQ(receive(), "");
  EXPECT_EQ(receive(), "-");
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMove, Datagrams_AreChargedForWhatTheyHoldNow) {
  deliver(5);
  ASSERT_EQ(move(), 0U);
  EXPECT_EQ(endpoint->charged, used() - used_at_first);
  EXPECT_EQ(move(), 0U) << "a second time changes nothing";
  EXPECT_EQ(endpoint->charged, used() - used_at_first);
  for (int i = 0; i < 5; i++) EXPECT_EQ(receive(), text(i));
  EXPECT_EQ(endpoint->charged, 0U);
}

TEST_F(ArenaMove, EveryEndpoint_IsLookedAt) {
  udp::Binding* other = *host.udp().open({ip("10.9.0.1"), 8}, 1 << 20, {}, &other);
  world.wire().inject(0, udp_frame({}, 9, 8, bytes_of("other")));
  deliver(2);
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(host.udp().queued(*other), 1U);
  EXPECT_EQ(receive(), text(0));
  host.udp().close(host.ctx(), *other);
  host.udp().close(host.ctx(), *endpoint);
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMove, MemoryUsedUpMidway_RestStaysAndMovesLater) {
  deliver(5);
  const std::size_t one = Memory::block_size(sizeof(Packet) + text(0).size() + 42);
  host.memory().set_budget(used() + 2 * one);
  EXPECT_EQ(move(), 3U);
  EXPECT_EQ(held(), 3U);
  EXPECT_EQ(receive(), text(0));
  host.memory().set_budget(std::size_t{64} << 20);
  deliver(1);
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
  for (int i = 1; i < 5; i++) EXPECT_EQ(receive(), text(i));
  EXPECT_EQ(receive(), text(0)) << "the latest";
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMove, WithoutThePort_NothingMoves) {
  deliver(2);
  ASSERT_TRUE(send_to("10.9.0.2"));
  PortQueue& queue = host.ctx().queue(0);
  queue.drain();
  const PortQueue own = std::exchange(queue, PortQueue{});
  EXPECT_EQ(host.stack().move_frames_to_arena(host.ctx()), 3U);
  EXPECT_EQ(used(), used_at_first);
  queue = own;
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
}

TEST_F(ArenaMove, PacketsThatWaitForANeighbour_LeaveInOrderWhenItAnswers) {
  for (const char* text : {"first", "second", "third"}) ASSERT_TRUE(send_to("10.9.0.2", text));
  run(1us);
  EXPECT_EQ(held(), 3U);
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 3U);
  const std::vector<sim::Bytes> sent = exchange(arp_reply());
  ASSERT_EQ(sent.size(), 3U);
  const char* const texts[] = {"first", "second", "third"};
  for (std::size_t i = 0; i < 3; i++) {
    EXPECT_EQ(ethernet(sent[i]).destination, mac(2));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(sent[i].data()) + 34, sent[i].size() - 34), texts[i]);
  }
  EXPECT_EQ(used(), used_at_first);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(ArenaMoveOffloading, WaitingPacket_KeepsWhatThePortHasToFill) {
  const std::string text(1400, 'x');
  const std::span<const std::byte> piece = bytes_of(text);
  ASSERT_TRUE(host.udp().send(host.ctx(), *endpoint, {ip("10.9.0.2"), 9}, {}, {&piece, 1}, {}).ok());
  run(1us);
  EXPECT_EQ(move(), 0U);
  const std::vector<sim::Bytes> sent = exchange(arp_reply());
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].size(), 42 + text.size());
  EXPECT_TRUE(sim::verify_checksums(sent[0]).l4_good);
}

TEST_F(ArenaMove, NeighbourThatDoesNotAnswer_CostsNothing) {
  host.udp().connect(*endpoint, {ip("10.9.0.2"), 9});
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(move(), 0U);
  run(5s);
  EXPECT_EQ(counters().drop_arp_queue, 1U);
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 0U);
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMove, NoBufferWhenTheNeighbourAnswers_PacketIsCountedAsLost) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(move(), 0U);
  run(1us);  // the question leaves
  std::vector<Packet*> taken = take_all_buffers();
  host.port().free(std::span{taken}.first(1));  // for the answer
  EXPECT_TRUE(exchange(arp_reply()).empty());
  EXPECT_EQ(counters().drop_arp_queue, 1U);
  EXPECT_EQ(used(), used_at_first);
  host.port().free(std::span{taken}.subspan(1));
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(ArenaMove, PacketsOfAnInterfaceThatChanged_AreLetGo) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  const Prefix prefix{ip("10.9.0.1"), 24};
  ASSERT_TRUE(host.network().set_interface(0, {.mac = host.port().mac(), .addresses = {&prefix, 1}}));
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(used(), used_at_first);
}

TEST_F(ArenaMove, PacketsToOurselves_LieInTheArenaAnyway) {
  ASSERT_TRUE(send_to("10.9.0.1"));
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(move(), 0U);
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 1U);
}

}  // namespace
}  // namespace bypass::test
