// Hostile input: valid frames of every kind, changed, truncated, and chained at odd places. It is deterministic from
// the seed that a failure prints. The sanitizers and the port's own checks find faults. All buffers must come back.
#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class Fuzz : public testing::TestWithParam<std::uint64_t> {
 protected:
  Fuzz() : random(GetParam()), host(world.add_host(config())), probe(world.add_probe(2)) {
    at_udp = *host.udp().open({{}, 7}, 1 << 16, {}, &at_udp);
    connected = *host.udp().open({ip("10.9.0.1"), 8}, 1 << 16, {}, &connected);
    host.udp().connect(*connected, {ip("10.9.0.2"), 9});
    listener = *host.tcp().listen({{}, 80}, 4, {}, &listener);
    world.run_for(1ms);
  }
  HostConfig config() {
    HostConfig config;
    config.caps.rx_checksum = GetParam() % 2 == 0;
    config.caps.lro = true;
    config.buffers = 512;
    config.arena_bytes = std::size_t{32} << 20;
    return config;
  }

  sim::Bytes random_bytes(std::size_t len) {
    sim::Bytes bytes(len);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
    return bytes;
  }
  sim::Bytes tcp_segment() {
    sim::Bytes l4 = random_bytes(20 + random.below(5) * 4);
    const std::size_t header = l4.size();
    l4[2] = std::byte{0};
    l4[3] = std::byte{80};
    l4[12] = static_cast<std::byte>(header / 4 << 4);
    l4[13] = static_cast<std::byte>(random.chance(0.5) ? 0x02 : random.below(64));
    const sim::Bytes payload = random_bytes(random.below(100));
    l4.insert(l4.end(), payload.begin(), payload.end());
    l4[16] = l4[17] = std::byte{0};
    const std::uint16_t sum =
        checksum_finish(checksum(l4.data(), l4.size()) +
                        checksum_pseudo(ip("10.9.0.2"), ip("10.9.0.1"), 6, static_cast<std::uint32_t>(l4.size())));
    std::memcpy(&l4[16], &sum, 2);
    return ipv4_frame({.protocol = 6, .option_words = random.below(11)}, l4);
  }
  sim::Bytes icmp_error() {
    sim::Bytes quote = random.chance(0.5) ? udp_frame({.from = "10.9.0.1", .to = "10.9.0.2"}, 8, 9, {}) : tcp_segment();
    quote.erase(quote.begin(), quote.begin() + 14);
    quote.resize(std::min<std::size_t>(quote.size(), random.below(80)));
    const std::uint8_t types[] = {3, 4, 5, 11, 12};
    return icmp_frame({}, types[random.below(5)], static_cast<std::uint8_t>(random.below(17)),
                      static_cast<std::uint32_t>(random.next()), quote);
  }
  sim::Bytes valid() {
    switch (random.below(9)) {
      case 0:
        return arp_frame({.operation = static_cast<std::uint16_t>(1 + random.below(2)),
                          .to_mac = random.chance(0.5) ? mac(1) : MacAddress::broadcast()});
      case 1:
        return udp_frame({.option_words = random.below(11)}, 9, random.chance(0.5) ? 7 : 8,
                         random_bytes(random.below(1400)));
      case 2:
        return udp_frame({.to = "10.9.0.255", .to_mac = MacAddress::broadcast()}, 9, 7, random_bytes(40));
      case 3:
        return icmp_frame({}, 8, 0, 1, random_bytes(random.below(200)));
      case 4:
        return icmp_error();
      case 5:
        return tcp_segment();
      case 6:
      case 7: {
        const auto word = static_cast<std::uint16_t>(random.below(4) | (random.chance(0.5) ? wire::kMoreFragments : 0));
        const auto id = static_cast<std::uint16_t>(random.below(4));
        return ipv4_frame({.fragment = word, .id = id, .option_words = random.below(11)},
                          random_bytes(8 * (1 + random.below(2)) + (random.chance(0.1) ? 3 : 0)));
      }
      default:
        return ipv4_frame({.protocol = static_cast<std::uint8_t>(random.next())}, random_bytes(random.below(64)));
    }
  }
  // Changes some bytes, most of them in the headers. Then the IP checksum is often corrected, so that the change gets
  // further in.
  void mutate(sim::Bytes& frame) {
    for (std::uint64_t n = random.below(4); n-- > 0 && !frame.empty();) {
      const std::size_t at =
          random.chance(0.7) ? random.below(std::min<std::size_t>(frame.size(), 64)) : random.below(frame.size());
      frame[at] = random.chance(0.3) ? std::byte{0xff} : static_cast<std::byte>(random.next());
    }
    if (random.chance(0.15)) frame.resize(random.below(frame.size() + 1));
    if (random.chance(0.1)) frame.resize(frame.size() + random.below(64));
    const bool has_header = frame.size() >= 34 && frame.size() >= 14 + (std::to_integer<unsigned>(frame[14]) & 15) * 4U;
    if (has_header && random.chance(0.7)) fix_ip_checksum(frame);
  }
  // The frame in the port's buffers, split anywhere, also where packet.h's promise is broken. Each segment lies at the
  // end of its buffer, so that a sanitizer finds a read beyond it.
  Packet* to_chain(const sim::Bytes& frame) {
    Packet* head = nullptr;
    Packet** link = &head;
    std::size_t at = 0;
    do {
      Packet* packet = nullptr;
      if (host.port().alloc(0, {&packet, 1}) == 0) break;
      std::size_t take = frame.size() - at;
      if (random.chance(0.5)) take = random.below(take + 1);
      if (head != nullptr && packet->capacity < take) take = packet->capacity;
      take = std::min<std::size_t>(take, packet->capacity);
      packet->data = packet->buffer + packet->capacity - take;
      packet->len = static_cast<std::uint32_t>(take);
      std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(at), take, packet->data);
      at += take;
      *link = packet;
      link = &packet->next_segment;
    } while (at < frame.size());
    if (head != nullptr) head->frame_len = static_cast<std::uint32_t>(at);
    return head;
  }
  void feed() {
    sim::Bytes frame = valid();
    mutate(frame);
    Packet* packet = to_chain(frame);
    if (packet == nullptr) return;
    if (random.chance(0.2)) packet->flags |= kRxL4ChecksumGood | kRxIpChecksumGood;
    if (random.chance(0.05)) packet->flags |= kRxChecksumBad;
    host.stack().on_frames(host.ctx(), 0, {&packet, 1});
  }
  void read_everything() {
    for (udp::Binding* binding : {at_udp, connected}) {
      udp::Datagram datagram;
      while (host.udp().front(*binding, datagram)) host.udp().pop(host.ctx(), *binding);
      (void)host.udp().take_error(*binding);
    }
    while (auto accepted = host.tcp().accept(host.ctx(), *listener, this)) host.tcp().abort(host.ctx(), **accepted);
    world.read(probe);
  }

  sim::Random random;
  World world;
  Host& host;
  sim::SimPort& probe;
  udp::Binding* at_udp;
  udp::Binding* connected;
  tcp::Listener* listener;
};

TEST_P(Fuzz, MutatedFrames_CostNothingButTheirCounters) {
  for (int round = 0; round < 100; round++) {
    for (int i = 0; i < 30; i++) feed();
    world.run_for(std::chrono::milliseconds(random.below(50)));
    read_everything();
  }
  host.tcp().close_listener(host.ctx(), *listener);
  world.run_for(600s);  // half-open connections and questions end
  read_everything();
  host.ctx().queue(0).drain();
  EXPECT_EQ(host.port().buffers_out(), 0U) << "seed " << GetParam();
  // The input is useful: some of it is accepted, and some is refused for every reason that there is.
  const StackCounters& c = host.counters();
  EXPECT_TRUE(c.udp_in && c.icmp_echo && c.icmp_errors_in && c.tcp_segments_in && c.arp_replies);
  EXPECT_TRUE(c.drop_eth_short && c.drop_eth_type && c.drop_eth_not_ours && c.drop_arp_malformed);
  EXPECT_TRUE(c.drop_ip_malformed && c.drop_ip_fragment && c.drop_ip_protocol && c.drop_ip_not_ours);
  EXPECT_TRUE(c.ip_reassembled && c.drop_ip_fragment_overlap && c.drop_ip_fragment_duplicate);
  EXPECT_TRUE(c.drop_icmp_malformed && c.drop_udp_malformed && c.drop_tcp_malformed && c.drop_tcp_checksum);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, testing::Range<std::uint64_t>(1, 13));

}  // namespace
}  // namespace bypass::test
