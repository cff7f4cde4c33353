// A frame's way in: decides whether it is RoCE for this device and intact, and which queue pair it is for.
#include "softverbs/engine/engine.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma {
namespace {

// The IP and UDP headers of a RoCE packet to this device.
struct Outer {
  IpAddress source, destination;
  std::uint16_t udp = 0;  // offset
  std::size_t end = 0;    // offset after the UDP datagram: Ethernet padding does not belong to it
};

bool read_outer_ipv4(const Packet& frame, Outer& outer) {
  constexpr std::size_t at = sizeof(wire::Ethernet);
  if (!wire::fits<wire::Ipv4>(frame, at)) return false;
  const auto& ip = wire::at<wire::Ipv4>(frame, at);
  if (ip.version_ihl >> 4 != 4 || ip.header_len() < sizeof ip || ip.protocol != wire::kProtocolUdp) return false;
  if ((ip.fragment & (wire::kMoreFragments | wire::kFragmentOffset)) != 0) return false;
  outer = {IpAddress::from_v4(ip.source), IpAddress::from_v4(ip.destination),
           static_cast<std::uint16_t>(at + ip.header_len()), at + ip.total_len};
  return true;
}

bool read_outer_ipv6(const Packet& frame, Outer& outer) {
  constexpr std::size_t at = sizeof(wire::Ethernet);
  if (!wire::fits<Ipv6>(frame, at)) return false;
  const auto& ip = wire::at<Ipv6>(frame, at);
  if (ip.next_header != wire::kProtocolUdp) return false;
  outer.source.bytes = ip.source;
  outer.destination.bytes = ip.destination;
  outer.udp = at + sizeof ip;
  outer.end = outer.udp + ip.payload_len;
  return true;
}

bool read_outer(const Packet& frame, Outer& outer) {
  const std::uint16_t type = wire::at<wire::Ethernet>(frame, 0).type;
  if (type == wire::kEtherTypeIpv4) return read_outer_ipv4(frame, outer);
  return type == kEtherTypeIpv6 && read_outer_ipv6(frame, outer);
}

bool is_roce(const Engine& e, const Packet& frame, Outer& outer) {
  if (!read_outer(frame, outer) || !wire::fits<wire::Udp>(frame, outer.udp)) return false;
  if (wire::at<wire::Udp>(frame, outer.udp).destination != kRocePort) return false;
  return e.owns(outer.destination) || outer.destination.is_multicast();
}

bool service_fits(const Qp& qp, std::uint8_t service) {
  switch (qp.type) {
    case IBV_QPT_RC:
      return service == kServiceRc;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return service == kServiceXrc;
    case IBV_QPT_UC:
      return service == kServiceUc;
    case IBV_QPT_UD:
      return service == kServiceUd;
    default:
      return false;
  }
}

// Lengths are checked first: so everything that is read later lies in the frame's head, and the payload in the frame.
bool parse(Packet& frame, const Outer& outer, RocePacket& p) {
  const std::size_t bth_at = outer.udp + sizeof(wire::Udp);
  const auto& udp = wire::at<wire::Udp>(frame, outer.udp);
  if (outer.end > frame.frame_len || outer.udp + udp.length != outer.end || !wire::fits<Bth>(frame, bth_at))
    return false;
  const auto& bth = wire::at<Bth>(frame, bth_at);
  p.frame = &frame;
  p.source = outer.source;
  p.destination = outer.destination;
  p.service = bth.opcode & kServiceMask;
  p.op = static_cast<Op>(bth.opcode & ~kServiceMask);
  p.traits = traits(p.op);
  p.solicited = (bth.flags & kBthSolicited) != 0;
  p.ack_request = (bth.psn & kBthAckRequest) != 0;
  p.ours = (bth.psn & kBthMark) == kBthOurs;
  p.round = static_cast<std::uint8_t>(bth.psn >> kBthRoundShift & kRounds);
  p.qpn = bth.qpn & kQpnMask;
  p.psn = {bth.psn & kPsnMask};
  p.ip = sizeof(wire::Ethernet);
  p.extension = static_cast<std::uint16_t>(bth_at + sizeof bth);
  p.srqn = 0;
  if (p.service == kServiceXrc && (p.traits & kOpResponse) == 0) {
    if (!wire::fits<Xrceth>(frame, p.extension)) return false;
    p.srqn = p.at<Xrceth>(p.extension).srqn & kQpnMask;
    p.extension += sizeof(Xrceth);
  }
  const std::size_t deth = p.service == kServiceUd ? sizeof(Deth) : 0;
  const std::size_t payload = p.extension + deth + extension_bytes(p.op);
  const std::size_t pad = bth.flags >> 4 & 3U;
  p.payload = static_cast<std::uint16_t>(payload);
  if (payload > frame.len || payload + pad + kIcrcBytes > outer.end) return false;
  p.payload_len = static_cast<std::uint32_t>(outer.end - payload - pad - kIcrcBytes);
  const bool reliable = p.service == kServiceRc || p.service == kServiceXrc;
  if ((p.traits & kOpInv) != 0 && !reliable) return false;
  const bool takes_payload = (p.traits & kOpPayload) != 0 || p.payload_len == 0 || p.op == Op::kAcknowledge;
  return (p.traits & kOpValid) != 0 && takes_payload && (bth.flags & kBthVersion) == 0 &&
         ((bth.pkey ^ kDefaultPkey) & 0x7fff) == 0;
}

bool icrc_is_good(const Packet& frame, const Outer& outer) {
  const std::size_t end = outer.end - kIcrcBytes;
  std::uint32_t found;
  FrameReader(frame, end).copy(&found, sizeof found);
  return icrc_of(frame, {sizeof(wire::Ethernet), outer.udp}, end) == found;
}

void to_group(Engine& e, const RocePacket& p) {
  for (const Group& group : e.groups) {
    if (address_of(group.gid) == p.destination && service_fits(*group.qp, p.service)) on_datagram(e, *group.qp, p);
  }
}

void dispatch(Engine& e, Qp& qp, const RocePacket& p) {
  if (qp.type == IBV_QPT_UD) return on_datagram(e, qp, p);
  if (p.source != qp.path.peer) {
    e.counters.rx_wrong_peer++;
    return;
  }
  if (qp.type == IBV_QPT_UC) return on_unconnected(e, qp, p);
  // Not during a repair in the other way.
  if (p.ours && qp.req.nxt == qp.req.max) qp.peer_is_ours = true;
  const bool response = (p.traits & kOpResponse) != 0;
  if (qp.type == (response ? IBV_QPT_XRC_RECV : IBV_QPT_XRC_SEND)) {  // each of both has one direction
    e.counters.rx_wrong_state++;
    return;
  }
  if (response) return on_response(e, qp, p);
  on_request(e, qp, p);
}

/// A packet that neither writes to the program's memory nor reads from it.
bool is_plain_acknowledgement(const RocePacket& p) {
  return p.op == Op::kAcknowledge;
}

void on_roce(Engine& e, Packet& frame, const Outer& outer) {
  RocePacket p;
  e.counters.rx_packets++;
  if (!parse(frame, outer, p)) {
    e.counters.rx_malformed++;
    return;
  }
  const bool group = p.qpn == kMulticastQpn;
  Qp* qp = group ? nullptr : e.find_qp(p.qpn);
  if (!group && (qp == nullptr || !service_fits(*qp, p.service))) {
    e.counters.rx_unknown_qp++;
    return;
  }
  if (!icrc_is_good(frame, outer)) {
    e.counters.rx_bad_icrc++;
    return;
  }
  if (e.memory_gone && !is_plain_acknowledgement(p)) {
    e.counters.rx_wrong_state++;
    return;
  }
  if (group) return to_group(e, p);
  dispatch(e, *qp, p);
}

}  // namespace

bool on_frame(Engine& e, Packet& frame) {
  if (!wire::fits<wire::Ethernet>(frame, 0)) {
    e.counters.rx_malformed++;
    return false;
  }
  Outer outer;
  e.kept = false;
  if (is_roce(e, frame, outer)) {
    if (e.steering.has_sniffers() && !e.memory_gone) on_raw_frame(e, frame, true);
    on_roce(e, frame, outer);
    return e.kept;
  }
  on_neighbour_frame(e, frame);
  return !e.memory_gone && on_raw_frame(e, frame, false);
}

bool read_packet(Packet& frame, RocePacket& packet) {
  Outer outer;
  return read_outer(frame, outer) && parse(frame, outer, packet);
}

}  // namespace bypass::rdma
