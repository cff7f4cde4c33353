// The peers of a Fuzzer: 10.9.0.2, .3 and .4. They know the host's numbers and obey no rule.
#include <algorithm>
#include <cstring>

#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/stateful/fuzzer.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"

namespace bypass::test {
namespace {

constexpr unsigned kPeerMac = 99;
const IpAddress kHost = ip("10.9.0.1");

IpAddress peer(std::uint64_t number) {
  return IpAddress::from_v4(kHost.v4() + 1 + static_cast<std::uint32_t>(number));
}

void put32(std::vector<std::uint8_t>& to, std::uint32_t v) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(v >> shift));
}

sim::Bytes as_frame(const IpAddress& from, std::uint8_t protocol, const sim::Bytes& l4) {
  sim::Bytes frame = ipv4_frame({.from_mac = mac(kPeerMac), .protocol = protocol}, l4);
  reinterpret_cast<wire::Ipv4*>(frame.data() + 14)->source = from.v4();
  fix_ip_checksum(frame);
  return frame;
}

}  // namespace

Fuzzer::Flow Fuzzer::stranger() {
  if (opening_ && chance(0.3)) return *opening_;
  Flow flow;
  flow.remote = peer(below(3));
  flow.local_port = static_cast<std::uint16_t>(chance(0.9) ? 80 + below(2) : 5000 + below(6));
  flow.remote_port = static_cast<std::uint16_t>(1000 + below(4));
  flow.rcv_nxt = flow.rcv_adv = {static_cast<std::uint32_t>(random_.next())};
  flow.snd_una = flow.snd_nxt = {static_cast<std::uint32_t>(random_.next())};
  flow.ts_recent = static_cast<std::uint32_t>(random_.next());
  flow.timestamps = chance(0.5);
  flow.opening = true;
  return flow;
}

namespace {

template <typename Of>
void take_ends(Fuzzer::Flow& flow, const Of& of) {
  flow.local_port = of.flow.local_port;
  flow.remote_port = of.flow.remote_port;
  flow.rcv_nxt = flow.rcv_adv = of.rcv_nxt;
  flow.ts_recent = of.ts_recent;
  flow.opening = false;
}

Fuzzer::Flow flow_of(const tcp::Tcb& tcb, Instant now) {
  Fuzzer::Flow flow;
  take_ends(flow, tcb);
  flow.remote = tcb.path.remote;
  flow.rcv_adv = tcb.rcv_adv;
  flow.snd_una = tcb.seq_of(tcb.snd_una);
  flow.snd_nxt = tcb.seq_of(tcb.snd_nxt);
  flow.ts_echo = tcp::timestamp_clock(now) + tcb.ts_offset;
  flow.timestamps = tcb.has(tcp::kTimestamps);
  flow.sack = tcb.has(tcp::kSackPermitted);
  flow.opening = !tcp::synchronized(tcb.state);
  if (tcb.state == tcp::State::kSynSent) flow.rcv_nxt = flow.rcv_adv = {0xfffffff0U};
  return flow;
}

Fuzzer::Flow flow_of(const tcp::TimeWait& tw, Instant now) {
  Fuzzer::Flow flow;
  take_ends(flow, tw);
  flow.remote = tw.remote;
  flow.snd_una = flow.snd_nxt = tw.snd_nxt;
  flow.ts_echo = tcp::timestamp_clock(now) + tw.ts_offset;
  flow.timestamps = tw.timestamps;
  return flow;
}

}  // namespace

Fuzzer::Flow Fuzzer::pick_flow() {
  const auto& core = engine().impl();
  const std::size_t live = core.tcbs.size() + core.time_waits.count;
  if (live == 0 || chance(0.1)) return stranger();
  std::size_t chosen = below(live);
  std::optional<Flow> found;
  core.tcbs.for_each([&](const tcp::Tcb& tcb) {
    if (chosen-- == 0 && tcb.has(tcp::kInFlowTable)) found = flow_of(tcb, now_);
  });
  for (const tcp::TimeWait* tw = core.time_waits.newest; tw != nullptr; tw = tw->older)
    if (chosen-- == 0) found = flow_of(*tw, now_);
  return found ? *found : stranger();
}

// One of the edges, a number beside an edge, a number in between, or one half of the space away.
tcp::SeqNum Fuzzer::near(tcp::SeqNum low, tcp::SeqNum high) {
  switch (below(12)) {
    case 0:
      return low - 1;
    case 1:
      return low + 1;
    case 2:
      return high + 1;
    case 3:
      return high - 1;
    case 4:
      return high;
    case 5:
      return low + 0x80000000U + static_cast<std::uint32_t>(below(3)) - 1;
    case 6:
    case 7:
      return low + static_cast<std::uint32_t>(below(tcp::distance(low, high) + 1U));
    case 8:
      return low + static_cast<std::uint32_t>(below(4000));
    default:
      return low;
  }
}

void Fuzzer::add_options(const Flow& flow, bool syn, std::vector<std::uint8_t>& options) {
  if (syn) {
    const auto mss = static_cast<std::uint16_t>(chance(0.2) ? below(100) : 500 + below(1000));
    if (chance(0.9))
      options.insert(options.end(), {2, 4, static_cast<std::uint8_t>(mss >> 8), static_cast<std::uint8_t>(mss)});
    if (chance(0.7)) options.insert(options.end(), {4, 2});
    if (chance(0.7)) options.insert(options.end(), {3, 3, static_cast<std::uint8_t>(below(16))});
  }
  if (flow.timestamps != chance(0.05)) {
    options.insert(options.end(), {1, 1, 8, 10});
    put32(options, flow.ts_recent + static_cast<std::uint32_t>(chance(0.8) ? below(2000) : random_.next()));
    put32(options, flow.ts_echo - static_cast<std::uint32_t>(chance(0.9) ? below(500) : random_.next()));
  }
  if (flow.sack && chance(0.4)) {
    const std::size_t count = 1 + below(3);
    options.insert(options.end(), {1, 1, 5, static_cast<std::uint8_t>(2 + 8 * count)});
    for (std::size_t i = 0; i < count; i++) {
      const tcp::SeqNum begin = near(flow.snd_una, flow.snd_nxt);
      put32(options, begin.v);
      put32(options, chance(0.7) ? near(begin, flow.snd_nxt).v : near(flow.snd_una, flow.snd_nxt).v);
    }
  }
  if (chance(0.02)) options.insert(options.end(), {254, 4, 1, 2});
  if (options.size() > 40) options.resize(40);
  while (options.size() % 4 != 0) options.push_back(1);
}

sim::Bytes Fuzzer::segment() {
  static constexpr std::uint8_t kFlags[] = {tcp::kAck,
                                            tcp::kAck,
                                            tcp::kAck,
                                            tcp::kAck,
                                            tcp::kAck | tcp::kPsh,
                                            tcp::kAck | tcp::kFin,
                                            tcp::kAck | tcp::kFin,
                                            tcp::kRst,
                                            tcp::kSyn,
                                            tcp::kSyn | tcp::kAck};
  const Flow flow = pick_flow();
  std::uint8_t flags = kFlags[below(std::size(kFlags))];
  if (flags == tcp::kRst && chance(0.8)) flags = tcp::kAck;  // connections are to live for a while
  if (flow.opening && chance(0.8)) flags = chance(0.5) ? tcp::kSyn : chance(0.5) ? tcp::kAck : tcp::kSyn | tcp::kAck;
  if (chance(0.02)) flags = static_cast<std::uint8_t>(below(64));
  const bool syn = (flags & tcp::kSyn) != 0;
  std::vector<std::uint8_t> options;
  add_options(flow, syn, options);
  const std::size_t length = syn && chance(0.9) ? 0 : chance(0.5) ? 0 : chance(0.7) ? below(200) : below(1400);
  sim::Bytes l4(sizeof(tcp::TcpHeader) + options.size() + length);
  auto& h = *reinterpret_cast<tcp::TcpHeader*>(l4.data());
  h.source = flow.remote_port;
  h.destination = flow.local_port;
  const tcp::SeqNum seq = chance(0.5) ? flow.rcv_nxt : near(flow.rcv_nxt, flow.rcv_adv);
  h.seq = seq.v;
  h.ack = (flags & tcp::kAck) != 0 ? (chance(0.4) ? flow.snd_nxt : near(flow.snd_una, flow.snd_nxt)).v : 0;
  h.data_offset = static_cast<std::uint8_t>((sizeof(tcp::TcpHeader) + options.size()) / 4 << 4);
  h.flags = flags;
  h.window = static_cast<std::uint16_t>(chance(0.15) ? 0 : chance(0.2) ? below(3) : below(65536));
  std::ranges::transform(options, l4.begin() + sizeof(tcp::TcpHeader), [](std::uint8_t b) { return std::byte{b}; });
  for (std::size_t i = 0; i < length; i++)
    l4[l4.size() - length + i] = peer_byte(seq.v + (syn ? 1 : 0) + static_cast<std::uint32_t>(i));
  h.checksum.set_raw(
      checksum_finish(checksum(l4.data(), l4.size()) +
                      checksum_pseudo(flow.remote, kHost, wire::kProtocolTcp, static_cast<std::uint32_t>(l4.size()))));
  return as_frame(flow.remote, wire::kProtocolTcp, l4);
}

void Fuzzer::send_segments() {
  note("segments");
  for (std::uint64_t n = chance(0.7) ? 1 : 1 + below(6); n > 0; n--) world_.wire().inject(0, segment());
}

void Fuzzer::send_icmp() {
  note("ICMP");
  const Flow flow = pick_flow();
  sim::Bytes l4(sizeof(tcp::TcpHeader));
  auto& h = *reinterpret_cast<tcp::TcpHeader*>(l4.data());
  h.source = flow.local_port;
  h.destination = flow.remote_port;
  h.seq = near(flow.snd_una, flow.snd_nxt).v;
  sim::Bytes quote = ipv4_frame({.from = "10.9.0.1", .to = "10.9.0.2", .protocol = wire::kProtocolTcp}, l4);
  reinterpret_cast<wire::Ipv4*>(quote.data() + 14)->destination = flow.remote.v4();
  fix_ip_checksum(quote);
  quote.erase(quote.begin(), quote.begin() + 14);
  const std::uint32_t mtu = static_cast<std::uint32_t>(below(2000));
  world_.wire().inject(0, icmp_frame({.from_mac = mac(kPeerMac)}, chance(0.8) ? 3 : 11,
                                     static_cast<std::uint8_t>(chance(0.5) ? 4 : below(16)), mtu, quote));
}

// --- What the host sends

void Fuzzer::pump() {
  world_.wire().set_now(now_);
  host_.poll(now_);
  while (true) {
    std::array<Packet*, 32> packets;
    const std::size_t n = probe_.receive(0, packets);
    for (std::size_t i = 0; i < n; i++) {
      const Packet& packet = *packets[i];
      take_frame({packet.data, packet.data + packet.len});
    }
    probe_.free(std::span{packets}.first(n));
    if (n == 0) return;
  }
}

void Fuzzer::answer_arp(const sim::Bytes& frame) {
  const auto& arp = *reinterpret_cast<const wire::Arp*>(frame.data() + 14);
  if (is_announcement(frame) || !answers_) return;
  sim::Bytes reply = arp_frame(
      {.operation = 2, .to_mac = mac(1), .from_mac = mac(kPeerMac), .sender_mac = mac(kPeerMac), .target_mac = mac(1)});
  reinterpret_cast<wire::Arp*>(reply.data() + 14)->sender_ip = arp.target_ip;
  world_.wire().inject(0, reply);
}

void Fuzzer::take_frame(const sim::Bytes& frame) {
  const auto& ethernet = *reinterpret_cast<const wire::Ethernet*>(frame.data());
  if (ethernet.type == wire::kEtherTypeArp) return answer_arp(frame);
  const auto& header = *reinterpret_cast<const wire::Ipv4*>(frame.data() + 14);
  if (header.protocol != wire::kProtocolTcp) return;
  const std::span l4 = std::span{frame}.subspan(14 + header.header_len(), header.total_len - header.header_len());
  const auto& tcp = *reinterpret_cast<const tcp::TcpHeader*>(l4.data());
  const auto sum =
      checksum(l4.data(), l4.size()) + checksum_pseudo(kHost, IpAddress::from_v4(header.destination),
                                                       wire::kProtocolTcp, static_cast<std::uint32_t>(l4.size()));
  if (!checksum_is_good(sum)) fail("a checksum is wrong");
  if (tcp.flags == (tcp::kSyn | tcp::kAck)) {
    opening_ = Flow{.remote = IpAddress::from_v4(header.destination),
                    .local_port = tcp.source,
                    .remote_port = tcp.destination,
                    .rcv_nxt = {tcp.ack},
                    .rcv_adv = {tcp.ack + tcp.window},
                    .snd_una = {tcp.seq + 1},
                    .snd_nxt = {tcp.seq + 1},
                    .opening = true};
  }
  check_text(tcp, header.destination, l4.subspan(tcp.header_len()));
}

// If a connection has several incarnations, the first bytes of the latest one are known.
void Fuzzer::know(const tcp::Tcb& tcb) {
  auto& known = first_bytes_[{tcb.path.remote.v4(), tcb.flow.remote_port, tcb.flow.local_port}];
  std::shift_right(known.begin(), known.end(), 1);
  known[0] = tcb.seq_base.v;
}

void Fuzzer::check_text(const tcp::TcpHeader& header, std::uint32_t remote, std::span<const std::byte> text) {
  const auto& known = first_bytes_[{remote, header.destination, header.source}];
  const auto fits = [&](std::uint32_t first) {
    for (std::size_t i = 0; i < text.size(); i++)
      if (text[i] != host_byte(header.seq - first + i)) return false;
    return true;
  };
  if (!text.empty() && std::ranges::none_of(known, fits)) fail("what was sent is not what was written");
}

}  // namespace bypass::test
