// IPv4 reassembly, fragment by fragment, and what a hostile sender can make it hold.
#include "stack/ip/ip_fragments.h"

#include <algorithm>
#include <numeric>

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

std::string letters(std::size_t len) {
  std::string text(len, '.');
  for (std::size_t i = 0; i < len; i++) text[i] = static_cast<char>('a' + (i * 7 + i / 26) % 26);
  return text;
}

class Fragments : public OneHost {
 protected:
  explicit Fragments(const HostConfig& config = {}) : OneHost(config) {
    endpoint = *host.udp().open({{}, 7}, 1 << 24, {}, this);
  }

  /// The L4 packet of a datagram to port 7.
  static sim::Bytes datagram(const std::string& text, const char* from = "10.9.0.2", const char* to = "10.9.0.1") {
    sim::Bytes frame = udp_frame({.from = from, .to = to}, 9, 7, bytes_of(text));
    frame.erase(frame.begin(), frame.begin() + 34);
    return frame;
  }
  /// Bytes [begin, end) of an L4 packet, as a fragment. The last fragment ends where the packet ends.
  static sim::Bytes fragment(const sim::Bytes& l4, std::size_t begin, std::size_t end, Ipv4Options options = {}) {
    const unsigned more = end < l4.size() ? wire::kMoreFragments : 0U;
    options.fragment = static_cast<std::uint16_t>(begin / 8 | more);
    return ipv4_frame(options, std::span{l4}.subspan(begin, end - begin));
  }
  static std::vector<sim::Bytes> cut(const sim::Bytes& l4, std::size_t size, const Ipv4Options& options = {}) {
    std::vector<sim::Bytes> all;
    for (std::size_t at = 0; at < l4.size(); at += size)
      all.push_back(fragment(l4, at, std::min(at + size, l4.size()), options));
    return all;
  }
  /// The oldest datagram's text; "-" if there is no datagram.
  std::string received(udp::Datagram* out = nullptr) {
    udp::Datagram got;
    if (!host.udp().front(*endpoint, got)) return "-";
    if (out != nullptr) *out = got;
    std::string text;
    std::size_t skip = got.offset;
    for (const Packet* p = got.packet; p != nullptr; p = p->next_segment) {
      const std::size_t from = std::min<std::size_t>(skip, p->len);
      text.append(reinterpret_cast<const char*>(p->data + from), p->len - from);
      skip -= from;
    }
    host.udp().pop(host.ctx(), *endpoint);
    return text;
  }
  IpFragments& waiting() { return host.network().impl().fragments; }

  udp::Binding* endpoint;
};

TEST_F(Fragments, InOrder_MakeTheDatagram) {
  const std::string text = letters(4000);
  const auto pieces = cut(datagram(text), 1480);
  ASSERT_EQ(pieces.size(), 3U);
  for (const auto& piece : pieces) {
    EXPECT_EQ(received(), "-");
    exchange(piece);
  }
  udp::Datagram got;
  EXPECT_EQ(received(&got), text);
  EXPECT_EQ(got.source, (Endpoint{ip("10.9.0.2"), 9}));
  EXPECT_EQ(counters().ip_fragments_in, 3U);
  EXPECT_EQ(counters().ip_reassembled, 1U);
  EXPECT_EQ(waiting().datagrams(), 0U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, EveryOrder_MakesTheDatagram) {
  const std::string text = letters(70);
  std::vector<std::size_t> order = {0, 1, 2, 3, 4};
  std::uint16_t id = 0;
  do {
    const auto pieces = cut(datagram(text), 16, {.id = id++});
    for (const std::size_t i : order) exchange(pieces[i]);
    ASSERT_EQ(received(), text) << testing::PrintToString(order);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(id, 120);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, LargestDatagramShuffled_Arrives) {
  const std::string text = letters(65'507);
  auto pieces = cut(datagram(text), 1480);
  sim::Random random(5);
  for (std::size_t i = pieces.size(); i > 1; i--) std::swap(pieces[i - 1], pieces[random.below(i)]);
  for (const auto& piece : pieces) exchange(piece);
  EXPECT_EQ(received(), text);
}

TEST_F(Fragments, DatagramsMixed_AreKeptApart) {
  const std::string texts[] = {letters(40), letters(41), letters(42), letters(43)};
  const Ipv4Options kinds[] = {{.id = 1}, {.id = 2}, {.from = "10.9.0.3", .id = 1}, {.to = "10.9.0.255", .id = 1}};
  std::vector<std::vector<sim::Bytes>> all;
  for (int i = 0; i < 4; i++) {
    Ipv4Options options = kinds[i];
    if (i == 3) options.to_mac = MacAddress::broadcast();
    all.push_back(cut(datagram(texts[i], options.from, options.to), 24, options));
  }
  exchange(cut(sim::Bytes(40), 24, {.protocol = 47, .id = 1})[0]);  // another protocol's
  for (std::size_t k = 0; k < 3; k++)
    for (const auto& pieces : all)
      if (k < pieces.size()) exchange(pieces[k]);
  std::vector<std::string> got = {received(), received(), received(), received()};
  std::sort(got.begin(), got.end());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), texts)) << testing::PrintToString(got);
  EXPECT_EQ(waiting().datagrams(), 1U);
}

TEST_F(Fragments, Duplicate_IsDroppedAlone) {
  const std::string text = letters(100);
  const auto l4 = datagram(text);
  exchange(fragment(l4, 0, 48));
  exchange(fragment(l4, 0, 48));
  exchange(fragment(l4, 48, 80));
  exchange(fragment(l4, 24, 64));  // inside a run
  EXPECT_EQ(counters().drop_ip_fragment_duplicate, 2U);
  exchange(fragment(l4, 80, l4.size()));
  EXPECT_EQ(received(), text);
  EXPECT_EQ(leaked(), 0U);
}

// RFC 5722 §4, Linux: a sender of overlapping fragments is hostile.
TEST_F(Fragments, Overlap_EndsTheDatagram) {
  const auto l4 = datagram(letters(200));
  const std::pair<std::size_t, std::size_t> wrong[] = {{40, 64}, {0, 56}, {80, 112}, {40, 120}, {96, 120}};
  std::uint64_t dropped = 0;
  for (const auto& [begin, end] : wrong) {
    exchange(fragment(l4, 0, 48));
    exchange(fragment(l4, 88, 104));
    exchange(fragment(l4, begin, end));
    EXPECT_EQ(waiting().datagrams(), 0U) << begin << " to " << end;
    EXPECT_EQ(counters().drop_ip_fragment_overlap, dropped += 3);
  }
  exchange(fragment(l4, 48, l4.size()));
  EXPECT_EQ(received(), "-");
}

TEST_F(Fragments, TwoEnds_EndTheDatagram) {
  const auto l4 = datagram(letters(100));
  const sim::Bytes shorter(l4.begin(), l4.begin() + 64), longer(128);
  exchange(fragment(l4, 48, l4.size()));
  exchange(fragment(longer, 104, 128));  // another last one
  EXPECT_EQ(counters().drop_ip_fragment_overlap, 2U);
  exchange(fragment(l4, 48, l4.size()));
  exchange(fragment(longer, 104, 120));  // one behind the last
  EXPECT_EQ(counters().drop_ip_fragment_overlap, 4U);
  exchange(fragment(l4, 64, 80));
  exchange(fragment(shorter, 56, 64));  // a last one below others
  EXPECT_EQ(counters().drop_ip_fragment_overlap, 6U);
  EXPECT_EQ(waiting().datagrams(), 0U);
}

TEST_F(Fragments, LengthOrOffsetWrong_AreCounted) {
  const sim::Bytes l4(100);
  exchange(fragment(l4, 0, 0));                                              // nothing in it
  exchange(fragment(l4, 0, 12));                                             // not the last, and no multiple of 8
  exchange(ipv4_frame({.fragment = wire::kFragmentOffset}, sim::Bytes(9)));  // ends at 65,537
  exchange(
      ipv4_frame({.fragment = wire::kFragmentOffset - 2}, sim::Bytes(16 - 4)));  // ends behind the largest packet's
  EXPECT_EQ(counters().drop_ip_fragment, 4U);
  EXPECT_EQ(waiting().datagrams(), 0U);
}

TEST_F(Fragments, HeaderMakesItTooLong_IsCounted) {
  const sim::Bytes l4(65'508);
  auto pieces = cut(l4, 1480, {.option_words = 10});
  for (const auto& piece : pieces) exchange(piece);
  EXPECT_EQ(counters().drop_ip_fragment, pieces.size());
  EXPECT_EQ(counters().ip_reassembled, 0U);
}

// RFC 1858 §3, RFC 3128 §2: a first fragment without the flags, a second one over the flags.
TEST_F(Fragments, TcpTricks_AreCounted) {
  const sim::Bytes l4(100);
  exchange(fragment(l4, 0, 8, {.protocol = 6}));
  exchange(fragment(l4, 8, 24, {.protocol = 6}));
  EXPECT_EQ(counters().drop_ip_fragment, 2U);
}

TEST_F(Fragments, TcpSegment_IsTaken) {
  resolve_peer();
  sim::Bytes syn(44);
  syn[1] = std::byte{9};
  syn[3] = std::byte{80};
  syn[12] = std::byte{0x50};
  syn[13] = std::byte{0x02};
  const std::uint16_t sum =
      checksum_finish(checksum(syn.data(), syn.size()) + checksum_pseudo(ip("10.9.0.2"), ip("10.9.0.1"), 6, 44));
  std::memcpy(&syn[16], &sum, 2);
  for (const auto& piece : cut(syn, 16, {.protocol = 6})) exchange(piece);
  EXPECT_EQ(counters().drop_tcp_no_connection, 1U) << "checksum good, nobody listens";
}

TEST_F(Fragments, Options_AreTheFirstFragments) {
  const std::string text = letters(100);
  const auto l4 = datagram(text);
  exchange(fragment(l4, 48, l4.size(), {.option_words = 1}));
  exchange(fragment(l4, 0, 48, {.option_words = 7}));
  udp::Datagram got;
  EXPECT_EQ(received(&got), text);
}

TEST_F(Fragments, ChecksumOverTheWhole_IsVerified) {
  auto l4 = datagram(letters(100));
  l4.back() ^= std::byte{1};
  for (const auto& piece : cut(l4, 48)) exchange(piece);
  EXPECT_EQ(counters().ip_reassembled, 1U);
  EXPECT_EQ(counters().drop_udp_malformed, 1U);
}

// RFC 3168 §5.3
TEST_F(Fragments, CongestionMetByOne_IsTheDatagrams) {
  struct Case {
    std::uint8_t first, second;
    int whole;  // -1: dropped
  };
  const Case cases[] = {{0, 0, 0}, {2, 2, 2}, {1, 2, 1}, {2, 3, 3}, {3, 1, 3}, {3, 3, 3}, {0, 2, -1}, {3, 0, -1}};
  const auto l4 = datagram(letters(100));
  std::uint64_t dropped = 0;
  for (const Case& c : cases) {
    exchange(fragment(l4, 0, 48, {.tos = static_cast<std::uint8_t>(0x20 | c.first)}));
    exchange(fragment(l4, 48, l4.size(), {.tos = static_cast<std::uint8_t>(0x20 | c.second)}));
    udp::Datagram got;
    const bool taken = received(&got) != "-";
    EXPECT_EQ(taken ? got.tos & 3 : -1, c.whole) << int{c.first} << int{c.second};
    dropped += c.whole < 0 ? 2 : 0;
  }
  EXPECT_EQ(counters().drop_ip_fragment_ecn, dropped);
}

// --- Time

TEST_F(Fragments, Timeout_GivesUpAndTellsTheSender) {
  resolve_peer();
  const auto l4 = datagram(letters(2000));
  const auto first = fragment(l4, 0, 1480);
  exchange(first);
  run(10s);
  exchange(first);  // does not make it any younger
  EXPECT_TRUE(run(20s - 1ms).empty());
  EXPECT_EQ(waiting().datagrams(), 1U);
  auto sent = run(2ms);
  std::erase_if(sent, is_arp_request);
  ASSERT_EQ(sent.size(), 1U);
  const auto& icmp = *reinterpret_cast<const wire::Icmp*>(sent[0].data() + 34);
  EXPECT_EQ(icmp.type, wire::kIcmpTimeExceeded);
  EXPECT_EQ(icmp.code, 1);
  EXPECT_TRUE(checksum_is_good(checksum(sent[0].data() + 34, sent[0].size() - 34)));
  EXPECT_EQ(ipv4(sent[0]).total_len, 576);
  EXPECT_TRUE(std::equal(sent[0].begin() + 42, sent[0].end(), first.begin() + 14)) << "quoted as it came";
  EXPECT_EQ(counters().drop_ip_fragment_timeout, 1U);
  EXPECT_EQ(waiting().datagrams(), 0U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, TimeoutNobodyIsToldOf) {
  resolve_peer();
  const auto l4 = datagram(letters(100));
  exchange(fragment(l4, 48, 64));                                                                   // not the first
  exchange(fragment(l4, 0, 48, {.to = "10.9.0.255", .to_mac = MacAddress::broadcast(), .id = 2}));  // broadcast
  const auto error = icmp_frame({}, wire::kIcmpUnreachable, 3, 0, sim::Bytes(100));
  exchange(fragment(sim::Bytes(error.begin() + 34, error.end()), 0, 48, {.protocol = 1, .id = 3}));  // an ICMP error
  auto sent = run(31s);
  std::erase_if(sent, is_arp_request);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(counters().drop_ip_fragment_timeout, 3U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, RestAfterTheTimeout_IsNoDatagram) {
  const auto l4 = datagram(letters(100));
  exchange(fragment(l4, 0, 48));
  run(31s);
  exchange(fragment(l4, 48, l4.size()));
  EXPECT_EQ(received(), "-");
  exchange(fragment(l4, 0, 48));
  EXPECT_EQ(received(), letters(100));
}

TEST_F(Fragments, ManyTimeouts_AreToldAtALimitedRate) {
  resolve_peer();
  const auto l4 = datagram(letters(100));
  for (std::uint16_t id = 0; id < 200; id++) exchange(fragment(l4, 0, 48, {.id = id}));
  run(31s);
  EXPECT_EQ(counters().drop_ip_fragment_timeout, 200U);
  EXPECT_GE(counters().drop_icmp_rate, 140U);
  EXPECT_EQ(counters().icmp_errors_out + counters().drop_icmp_rate, 200U);
}

// --- Bounds

HostConfig small_memory(std::uint32_t bytes) {
  HostConfig config;
  config.stack.fragment_memory = bytes;
  return config;
}

class BoundedFragments : public Fragments {
 protected:
  BoundedFragments() : Fragments(small_memory(kLimit)) {}
  static constexpr std::uint32_t kLimit = 64 << 10;
};

TEST_F(BoundedFragments, Flood_HoldsNoMoreThanTheLimit) {
  const auto l4 = datagram(letters(2000));
  for (unsigned id = 0; id < 1000; id++) {
    exchange(fragment(l4, 0, 1480, {.id = static_cast<std::uint16_t>(id)}));
    ASSERT_LE(waiting().bytes_held(), kLimit);
  }
  EXPECT_EQ(counters().drop_ip_fragment_memory + waiting().datagrams(), 1000U);
  exchange(fragment(l4, 1480, l4.size(), {.id = 999}));
  EXPECT_EQ(received(), letters(2000)) << "the oldest went, not the youngest";
}

TEST_F(BoundedFragments, OneSourcesFlood_CostsNobodyElse) {
  const auto mine = cut(datagram(letters(2000)), 1480, {.id = 1});
  exchange(mine[0]);
  const auto flood = datagram(letters(2000), "10.9.0.66");
  for (unsigned id = 0; id < 1000; id++)
    exchange(fragment(flood, 0, 1480, {.from = "10.9.0.66", .id = static_cast<std::uint16_t>(id)}));
  exchange(mine[1]);
  EXPECT_EQ(received(), letters(2000));
}

class NoFragments : public Fragments {
 protected:
  NoFragments() : Fragments(small_memory(0)) {}
};

TEST_F(NoFragments, LimitOfZero_TakesNone) {
  for (const auto& piece : cut(datagram(letters(100)), 48)) exchange(piece);
  EXPECT_EQ(received(), "-");
  EXPECT_EQ(counters().drop_ip_fragment_memory, 3U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, ManyHoles_EndTheDatagram) {
  const sim::Bytes l4(65'000);
  for (std::uint32_t i = 0; i < IpFragments::kMaxRuns; i++) exchange(fragment(l4, 16 * i, 16 * i + 8));
  EXPECT_EQ(waiting().datagrams(), 1U);
  exchange(fragment(l4, 60'000, 60'008));
  EXPECT_EQ(waiting().datagrams(), 0U);
  EXPECT_EQ(counters().drop_ip_fragment_memory, IpFragments::kMaxRuns + 1);
}

TEST_F(Fragments, Flood_LeavesThePortItsFrames) {
  const auto l4 = datagram(letters(2000));
  for (unsigned id = 0; id < 900; id++) exchange(fragment(l4, 0, 1480, {.id = static_cast<std::uint16_t>(id)}));
  EXPECT_EQ(waiting().datagrams(), 900U);
  EXPECT_LE(host.port().buffers_out(), IpFragments::kMaxHeldFrames + 64);
  for (unsigned id = 0; id < 900; id++) {
    exchange(fragment(l4, 1480, l4.size(), {.id = static_cast<std::uint16_t>(id)}));
    ASSERT_EQ(received(), letters(2000));
  }
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Fragments, MovedToTheArena_TheyGoOn) {
  const std::string text = letters(2000);
  const auto l4 = datagram(text);
  for (const std::size_t at : {0U, 80U, 160U, 480U, 560U, 1040U}) exchange(fragment(l4, at, at + 80));
  EXPECT_EQ(host.stack().move_frames_to_arena(host.ctx()), 0U);
  EXPECT_EQ(leaked(), 0U);
  EXPECT_GT(waiting().bytes_held(), 0U);
  exchange(fragment(l4, 80, 160));  // the runs are what they were
  EXPECT_EQ(counters().drop_ip_fragment_duplicate, 1U);
  exchange(fragment(l4, 1120, l4.size()));
  exchange(fragment(l4, 640, 1040));
  exchange(fragment(l4, 240, 480));
  EXPECT_EQ(received(), text);
  EXPECT_EQ(waiting().bytes_held(), 0U);
}

TEST_F(Fragments, DeathInsideTheLock_GivesThemUp) {
  const std::size_t used = host.memory().stats().used_bytes;
  const auto l4 = datagram(letters(2000));
  for (unsigned id = 0; id < 400; id++) exchange(fragment(l4, 0, 1480, {.id = static_cast<std::uint16_t>(id)}));
  host.memory().begin_rebuild();
  host.stack().rebuild(host.ctx());
  host.memory().finish_rebuild();
  EXPECT_EQ(waiting().datagrams(), 0U);
  EXPECT_EQ(leaked(), 0U);
  const std::size_t chunks = host.memory().stats().used_bytes - used;
  EXPECT_LE(chunks, 1024 * sizeof(Packet) * 2) << "the slab's own";
  for (const auto& piece : cut(l4, 1480)) exchange(piece);
  EXPECT_EQ(received(), letters(2000));
}

TEST_F(Fragments, WholeDatagram_SurvivesADeathInsideTheLock) {
  const std::string text = letters(65'507);
  for (const auto& piece : cut(datagram(text), 1480)) exchange(piece);
  host.memory().begin_rebuild();
  host.stack().rebuild(host.ctx());
  host.memory().finish_rebuild();
  for (const auto& piece : cut(datagram("other"), 1480)) exchange(piece);  // memory that is in use is not handed out
  EXPECT_EQ(received(), text);
}

// --- Hostile senders, against a model: each delivered datagram is one that was sent, whole.

class HostileFragments : public Fragments, public testing::WithParamInterface<std::uint64_t> {
 protected:
  static HostConfig config() {
    HostConfig config;
    config.stack.fragment_memory = 256 << 10;
    config.buffers = 256;
    return config;
  }
  HostileFragments() : Fragments(config()), random(GetParam()) {}
  sim::Bytes piece(std::uint16_t id) {
    const std::string text(1 + id * 37U, static_cast<char>('A' + id % 26));
    const auto l4 = datagram(text);
    const std::size_t size = 8 * (1 + random.below(12));
    const std::size_t begin = random.chance(0.9) ? random.below(l4.size() / size + 1) * size : 8 * random.below(200);
    if (begin >= l4.size()) return fragment(l4, 0, std::min(size, l4.size()), {.id = id});
    return fragment(l4, begin, std::min(begin + size, l4.size()), {.id = id});
  }
  sim::Random random;
};

TEST_P(HostileFragments, WhatArrives_IsWhatWasSent) {
  std::size_t whole = 0;
  for (int round = 0; round < 20'000; round++) {
    const auto id = static_cast<std::uint16_t>(random.below(24));
    world.wire().inject(0, piece(id));
    if (random.chance(0.01)) world.run_for(std::chrono::seconds(random.below(20)));
    world.run_for(1us);
    for (std::string text; (text = received()) != "-"; whole++)
      ASSERT_EQ(text, std::string(text.size(), text[0])) << "seed " << GetParam();
  }
  EXPECT_GT(whole, 50U);
  EXPECT_LE(waiting().bytes_held(), 256U << 10);
  run(60s);  // also for who is told of them and does not answer ARP
  EXPECT_EQ(waiting().bytes_held(), 0U);
  EXPECT_EQ(leaked(), 0U);
  EXPECT_TRUE(counters().drop_ip_fragment_overlap && counters().drop_ip_fragment_duplicate);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostileFragments, testing::Range<std::uint64_t>(1, 5));

// --- Sending

class FragmentedSend : public Fragments {
 protected:
  FragmentedSend() { at_host = *host.udp().open({ip("10.9.0.1"), 8}, 1 << 20, {}, &at_host); }
  Result<std::size_t> send(const std::string& text, const udp::SendOptions& options = {}, const char* to = "10.9.0.2") {
    const std::span<const std::byte> piece = bytes_of(text);
    host.ctx().now = world.now();
    const auto sent = host.udp().send(host.ctx(), *at_host, {ip(to), 9}, {}, {&piece, 1}, options);
    host.ctx().flush();
    return sent;
  }
  udp::Binding* at_host;
};

TEST_F(FragmentedSend, AboveTheMtu_GoesInFragments) {
  resolve_peer();
  ASSERT_TRUE(send(letters(4000)).ok());
  const auto sent = run(10us);
  ASSERT_EQ(sent.size(), 3U);
  sim::Bytes l4;
  for (std::size_t i = 0; i < 3; i++) {
    const wire::Ipv4& header = ipv4(sent[i]);
    EXPECT_TRUE(checksum_is_good(checksum(&header, 20)));
    EXPECT_EQ(header.id, ipv4(sent[0]).id);
    EXPECT_EQ(header.fragment, i * 185 | (i < 2 ? wire::kMoreFragments : 0U));
    EXPECT_LE(header.total_len, 1500);
    l4.insert(l4.end(), sent[i].begin() + 34, sent[i].end());
  }
  EXPECT_TRUE(
      checksum_is_good(checksum(l4.data(), l4.size()) + checksum_pseudo(ip("10.9.0.1"), ip("10.9.0.2"), 17, 4008)));
  EXPECT_EQ(counters().ip_fragmented, 1U);
  EXPECT_EQ(counters().ip_fragments_out, 3U);
  EXPECT_EQ(counters().udp_out, 1U);
}

TEST_F(FragmentedSend, Identifications_DifferFromPacketToPacket) {
  resolve_peer();
  ASSERT_TRUE(send(letters(2000)).ok());
  ASSERT_TRUE(send(letters(2000)).ok());
  const auto sent = run(10us);
  ASSERT_EQ(sent.size(), 4U);
  EXPECT_NE(ipv4(sent[0]).id, ipv4(sent[2]).id);
}

TEST_F(FragmentedSend, DontFragmentBit_IsAsAsked) {
  resolve_peer();
  const std::pair<udp::SendOptions, unsigned> cases[] = {
      {{}, wire::kDontFragment}, {{.dont_fragment = false}, 0U}, {{}, wire::kDontFragment}};
  for (const auto& [options, word] : cases) {
    ASSERT_TRUE(send("fits", options).ok());
    const auto sent = run(10us);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(ipv4(sent[0]).fragment, word);
    EXPECT_TRUE(checksum_is_good(checksum(&ipv4(sent[0]), 20)));
    ASSERT_TRUE(send(letters(1500), options).ok());
    EXPECT_EQ(ipv4(run(10us).at(0)).fragment, wire::kMoreFragments);
  }
}

// RFC 1191 §3: a datagram that a router cannot pass on goes in smaller fragments, for ten minutes.
TEST_F(FragmentedSend, RouterSaysTooBig_FragmentsGetSmaller) {
  resolve_peer();
  ASSERT_TRUE(send(letters(1400)).ok());
  auto quote = run(10us).at(0);
  quote.erase(quote.begin(), quote.begin() + 14);
  quote.resize(28);
  exchange(icmp_frame({}, wire::kIcmpUnreachable, 4, 1000, quote));
  EXPECT_EQ(*host.udp().path_mtu(host.ctx(), *at_host, ip("10.9.0.2")), 1000U);
  ASSERT_TRUE(send(letters(1400)).ok());
  EXPECT_EQ(run(10us).size(), 2U);
  EXPECT_EQ(send(letters(1400), {.fragment = false}).error(), Error::kMessageTooLarge);
  exchange(icmp_frame({}, wire::kIcmpUnreachable, 4, 100, quote));
  EXPECT_EQ(*host.udp().path_mtu(host.ctx(), *at_host, ip("10.9.0.2")), 552U) << "no less, whoever says so";
  run(601s);
  exchange(arp_reply());
  EXPECT_EQ(*host.udp().path_mtu(host.ctx(), *at_host, ip("10.9.0.2")), 1500U);
}

TEST_F(FragmentedSend, LargestDatagramToAStranger_WaitsForArp) {
  ASSERT_TRUE(send(letters(65'507)).ok());
  EXPECT_EQ(run(10us).size(), 1U) << "the question";
  EXPECT_EQ(exchange(arp_reply()).size(), 45U);
  EXPECT_EQ(counters().drop_arp_queue, 0U);
}

TEST_F(FragmentedSend, ToOurselves_GoesWhole) {
  udp::Binding* in = *host.udp().open({ip("10.9.0.1"), 9}, 1 << 20, {}, this);
  ASSERT_TRUE(send(letters(65'507), {}, "10.9.0.1").ok());
  run(10us);
  udp::Datagram got;
  ASSERT_TRUE(host.udp().front(*in, got));
  EXPECT_EQ(got.length, 65'507U);
  EXPECT_EQ(counters().ip_fragmented, 0U);
}

TEST_F(FragmentedSend, NoFramesLeft_SendsNothing) {
  resolve_peer();
  std::vector<Packet*> hog(host.port().stats().buffers_total);
  hog.resize(host.port().alloc(0, hog));
  while (Packet* cached = host.ctx().queue(0).alloc()) hog.push_back(cached);
  host.port().free(std::span{hog}.first(2));
  EXPECT_EQ(send(letters(4000)).error(), Error::kNoMemory);
  EXPECT_TRUE(run(10us).empty());
  host.port().free(std::span{hog}.subspan(2));
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(FragmentedSend, LargeEcho_IsAnsweredInFragments) {
  resolve_peer();
  const std::string text = letters(5000);
  auto request = icmp_frame({}, wire::kIcmpEcho, 0, 0x12345678, bytes_of(text));
  request.erase(request.begin(), request.begin() + 34);
  std::vector<sim::Bytes> answers;
  for (const auto& piece : cut(request, 1480, {.protocol = 1})) answers = exchange(piece);
  ASSERT_EQ(answers.size(), 4U);
  sim::Bytes l4;
  for (const auto& frame : answers) l4.insert(l4.end(), frame.begin() + 34, frame.end());
  EXPECT_TRUE(checksum_is_good(checksum(l4.data(), l4.size())));
  EXPECT_TRUE(std::equal(l4.begin() + 8, l4.end(), bytes_of(text).begin(), bytes_of(text).end()));
}

// Two stacks, with every combination of offloads and several MTUs.
TEST(FragmentsBetweenHosts, EverySize_ArrivesWhole) {
  for (const std::uint32_t mtu : {576U, 1500U, 9000U}) {
    for (const bool offloads : {false, true}) {
      World world;
      HostConfig config;
      if (offloads) config.caps = offloading_caps();
      config.mtu = mtu;
      config.buffers = 2048;
      config.stack.arp_queue = 128;
      Host& from = world.add_host(config);
      config.address = "10.9.0.2";
      Host& to = world.add_host(config);
      udp::Binding* out = *from.udp().open({from.address(), 7}, 1 << 18, {}, &from);
      udp::Binding* in = *to.udp().open({to.address(), 7}, 1 << 18, {}, &to);
      for (std::size_t len = 500; len <= 65'507;
           len = len < 65'507 ? std::min<std::size_t>(len * 5 / 3, 65'507) : len + 1) {
        const std::string text = letters(len);
        const std::span<const std::byte> piece = bytes_of(text);
        ASSERT_EQ(*from.udp().send(from.ctx(), *out, {to.address(), 7}, {}, {&piece, 1}, {}), len);
        world.run_for(1ms);
        udp::Datagram got;
        ASSERT_TRUE(to.udp().front(*in, got)) << mtu << ", " << len;
        sim::Bytes bytes;
        for (const Packet* p = got.packet; p != nullptr; p = p->next_segment)
          bytes.insert(bytes.end(), p->data, p->data + p->len);
        ASSERT_EQ(bytes.size(), got.offset + len);
        ASSERT_TRUE(std::equal(bytes.begin() + got.offset, bytes.end(), piece.begin()));
        to.udp().pop(to.ctx(), *in);
      }
      for (Host* host : {&from, &to}) {
        host->ctx().queue(0).drain();
        EXPECT_EQ(host->port().buffers_out(), 0U);
      }
    }
  }
}

TEST(FragmentsBetweenHosts, LostOne_CostsItsDatagramAlone) {
  World world;
  Host& from = world.add_host({});
  Host& to = world.add_host({.address = "10.9.0.2"});
  udp::Binding* out = *from.udp().open({from.address(), 7}, 1 << 18, {}, &from);
  udp::Binding* in = *to.udp().open({to.address(), 7}, 1 << 24, {}, &to);
  world.wire().set_impairment({.loss = 0.02});
  const std::string text = letters(20'000);
  const std::span<const std::byte> piece = bytes_of(text);
  for (int i = 0; i < 100; i++) {
    ASSERT_TRUE(from.udp().send(from.ctx(), *out, {to.address(), 7}, {}, {&piece, 1}, {}).ok());
    world.run_for(100ms);
  }
  world.run_for(31s);
  EXPECT_GT(to.udp().queued(*in), 50U);
  EXPECT_LT(to.udp().queued(*in), 100U);
  EXPECT_GT(to.counters().drop_ip_fragment_timeout, 0U);
  EXPECT_EQ(to.network().impl().fragments.datagrams(), 0U);
}

}  // namespace
}  // namespace bypass::test
