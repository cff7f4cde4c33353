// A RoCE packet's way out: paths, headers, payload from registered memory, ICRC.
#include <cerrno>
#include <cstring>

#include "softverbs/engine/engine.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma {
namespace {

// Linux's default (net.ipv4.ip_default_ttl).
constexpr std::uint8_t kHopLimit = 64;

template <typename Header>
Header& place(std::byte* at) {
  return *reinterpret_cast<Header*>(at);
}

bool is_reliable(std::uint8_t service) {
  return service == kServiceRc || service == kServiceXrc;
}

// RFC 1112 §6.4, RFC 2464 §7.
MacAddress multicast_mac(const IpAddress& group) {
  const auto& b = group.bytes;
  if (group.is_v4()) return {{0x01, 0x00, 0x5e, static_cast<std::uint8_t>(b[13] & 0x7f), b[14], b[15]}};
  return {{0x33, 0x33, b[12], b[13], b[14], b[15]}};
}

// The source port distinguishes flows of two hosts (annex A17): it is a function of the queue pair.
std::uint16_t source_port(std::uint32_t qpn) {
  return static_cast<std::uint16_t>(0xc000 | ((qpn ^ qpn >> 14) & 0x3fff));
}

void write_ipv4(std::byte* at, const IpAddress& source, const IpAddress& destination, const ibv_global_route& grh) {
  auto& ip = place<wire::Ipv4>(at);
  ip.version_ihl = 0x45;
  ip.tos = grh.traffic_class;
  ip.fragment = wire::kDontFragment;
  ip.ttl = hop_limit(grh);
  ip.protocol = wire::kProtocolUdp;
  ip.source = source.v4();
  ip.destination = destination.v4();
}

void write_ipv6(std::byte* at, const IpAddress& source, const IpAddress& destination, const ibv_global_route& grh) {
  auto& ip = place<Ipv6>(at);
  ip.version_class_flow = 6U << 28 | std::uint32_t{grh.traffic_class} << 20 | (grh.flow_label & 0xfffff);
  ip.next_header = wire::kProtocolUdp;
  ip.hop_limit = hop_limit(grh);
  ip.source = source.bytes;
  ip.destination = destination.bytes;
}

int find_destination(Engine& e, const IpAddress& destination, Path& path) {
  path.local = e.owns(destination);
  if (path.local) return 0;
  if (destination.is_multicast()) {
    path.known_mac = true;
    place<wire::Ethernet>(path.header.data()).destination = multicast_mac(destination);
    return 0;
  }
  path.neighbour = e.neighbours.hold(next_hop(e, destination));
  return path.neighbour == Neighbours::kSize ? ENOMEM : 0;
}

}  // namespace

IpAddress next_hop(const Engine& e, const IpAddress& destination) {
  if (!destination.is_v4() || e.config.gateway.is_any()) return destination;
  for (const Prefix& prefix : e.config.addresses)
    if (prefix.contains(destination)) return destination;
  return e.config.gateway;
}

std::uint8_t hop_limit(const ibv_global_route& grh) {
  const bool named = address_of(grh.dgid).is_multicast() && grh.hop_limit != 0;
  return named ? grh.hop_limit : kHopLimit;
}

int make_path(Engine& e, const ibv_ah_attr& attr, std::uint32_t qpn, Path& path) {
  if (attr.is_global == 0 || attr.grh.sgid_index >= e.gids.size()) return EINVAL;
  const IpAddress source = address_of(e.gids[attr.grh.sgid_index]);
  path = Path{};
  path.peer = address_of(attr.grh.dgid);
  path.v6 = !source.is_v4();
  if (path.peer.is_any() || path.peer.is_v4() == path.v6) return EINVAL;
  if (const int error = find_destination(e, path.peer, path)) return error;

  auto& ethernet = place<wire::Ethernet>(path.header.data());
  ethernet.source = e.mac;
  ethernet.type = path.v6 ? kEtherTypeIpv6 : wire::kEtherTypeIpv4;
  std::byte* ip = path.header.data() + sizeof ethernet;
  if (path.v6) {
    write_ipv6(ip, source, path.peer, attr.grh);
  } else {
    write_ipv4(ip, source, path.peer, attr.grh);
    path.ip_sum = checksum(ip, sizeof(wire::Ipv4));
  }
  path.header_len =
      static_cast<std::uint8_t>(sizeof ethernet + (path.v6 ? sizeof(Ipv6) : sizeof(wire::Ipv4)) + sizeof(wire::Udp));
  auto& udp = place<wire::Udp>(path.header.data() + path.header_len - sizeof(wire::Udp));
  udp.source = source_port(qpn);
  udp.destination = kRocePort;
  return 0;
}

void hold_path(Engine& e, const Path& path) {
  if (path.header_len != 0 && !path.local && !path.known_mac) e.neighbours[path.neighbour].paths++;
}

void release_path(Engine& e, Path& path) {
  if (path.header_len != 0 && !path.local && !path.known_mac) e.neighbours.release(path.neighbour);
  path = Path{};
}

bool reachable(Engine& e, const Path& path) {
  if (path.local || path.known_mac) return true;
  NeighbourEntry& entry = e.neighbours[path.neighbour];
  if (entry.state == NeighbourEntry::State::kKnown) return true;
  e.neighbours.want(entry, e.now);
  return false;
}

RoceWriter::RoceWriter(Engine& e, const Path& path, const Start& start)
    : e_(e), path_(path), writer_(e.tx), payload_(start.payload), len_(path.header_len + sizeof(Bth)) {
  std::byte* const at = first_.data();
  std::memcpy(at, path.header.data(), path.header.size());
  auto& ethernet = place<wire::Ethernet>(at);
  if (path.local) {
    ethernet.destination = e.mac;
  } else if (!path.known_mac) {
    NeighbourEntry& entry = e.neighbours[path.neighbour];
    entry.used = true;
    ethernet.destination = entry.mac;
  }
  auto& bth = place<Bth>(at + path.header_len);
  bth.opcode = static_cast<std::uint8_t>(start.service | static_cast<std::uint8_t>(start.op));
  bth.flags = static_cast<std::uint8_t>((start.solicited ? kBthSolicited : 0) | pad() << 4);
  bth.pkey = kDefaultPkey;
  bth.qpn = start.qpn;
  const std::uint32_t ours = is_reliable(start.service) ? kBthOurs | std::uint32_t{start.round} << kBthRoundShift : 0;
  bth.psn = start.psn.v | ours | (start.ack_request ? kBthAckRequest : 0);
}

void RoceWriter::fill_lengths(std::size_t frame_len) {
  std::byte* const ip_at = first_.data() + sizeof(wire::Ethernet);
  const std::size_t ip_len = frame_len - sizeof(wire::Ethernet);
  const std::size_t header_len = path_.v6 ? sizeof(Ipv6) : sizeof(wire::Ipv4);
  if (path_.v6) {
    place<Ipv6>(ip_at).payload_len = static_cast<std::uint16_t>(ip_len - header_len);
  } else {
    auto& ip = place<wire::Ipv4>(ip_at);
    wire::Be16 total, id;
    if (++e_.ip_id == 0) e_.ip_id = 1;
    ip.total_len = total = static_cast<std::uint16_t>(ip_len);
    ip.id = id = e_.ip_id;
    ip.checksum.set_raw(checksum_finish(path_.ip_sum + PartialSum{std::uint64_t{total.raw()} + id.raw()}));
  }
  place<wire::Udp>(ip_at + header_len).length = static_cast<std::uint16_t>(ip_len - header_len);
}

// Writes the assembled bytes into the frame and into the CRC; `behind` bytes will follow.
void RoceWriter::write_first(std::size_t behind) {
  written_ = true;
  fill_lengths(len_ + behind);
  std::byte* const to = writer_.append_raw(len_);
  if (to == nullptr) return;
  std::memcpy(to, first_.data(), len_);
  crc_ = icrc_first(first_.data() + sizeof(wire::Ethernet), path_.v6 ? sizeof(Ipv6) : sizeof(wire::Ipv4),
                    len_ - sizeof(wire::Ethernet));
}

void RoceWriter::payload(const void* bytes, std::size_t len) {
  if (len == 0) return;
  if (payload_ <= kShort) return put(bytes, len);
  if (!written_) write_first(payload_ + pad() + kIcrcBytes);
  writer_.append_summing(bytes, len, crc_);
}

bool RoceWriter::finish() {
  constexpr std::array<std::byte, 3> kZeros{};
  if (written_) {
    writer_.append_summing(kZeros.data(), pad(), crc_);
  } else {
    put(kZeros.data(), pad());
    write_first(kIcrcBytes);
  }
  const std::uint32_t icrc = icrc_finish(crc_);
  writer_.append(&icrc, sizeof icrc);
  if (!writer_.ok()) {
    e_.counters.no_buffer++;
    return false;
  }
  e_.counters.tx_packets++;
  if (path_.local) {
    e_.tx.loop_back(writer_.take());
  } else {
    e_.tx.send(writer_.take());
  }
  return true;
}

bool append_message(Engine& e, Qp& qp, std::uint32_t wqe, std::uint64_t offset, std::size_t len, RoceWriter& writer) {
  const SendWqe& w = qp.sq.at(wqe);
  if ((w.flags & IBV_SEND_INLINE) != 0) {
    writer.payload(qp.sq.inlined(wqe) + offset, len);
    return true;
  }
  return for_each_piece(e.memory, *qp.pd, {qp.sq.sges(wqe), w.sges}, 0, offset, len,
                        [&](const std::byte* at, std::size_t n) { writer.payload(at, n); });
}

bool scatter(Engine& e, const Pd& pd, std::span<const ibv_sge> sges, std::uint64_t offset, const RocePacket& packet) {
  FrameReader reader(*packet.frame, packet.payload);
  return for_each_piece(e.memory, pd, sges, IBV_ACCESS_LOCAL_WRITE, offset, packet.payload_len,
                        [&](std::byte* at, std::size_t n) { reader.copy(at, n); });
}

}  // namespace bypass::rdma
