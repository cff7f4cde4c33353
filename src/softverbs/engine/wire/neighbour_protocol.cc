// ARP (RFC 826) for IPv4 and neighbour discovery (RFC 4861 §4.3, §4.4, §7.2) for IPv6: requests and answers.
#include <cstring>

#include "softverbs/engine/engine.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma {
namespace {

struct NeighbourMessage {  // solicitation and advertisement, with one option: a link-layer address
  std::uint8_t type, code;
  wire::Be16 checksum;
  wire::Be32 flags;
  std::array<std::uint8_t, 16> target;
  std::uint8_t option_type, option_len;  // in units of 8 bytes
  MacAddress mac;
};
static_assert(sizeof(NeighbourMessage) == 32);
constexpr std::uint8_t kSolicitation = 135, kAdvertisement = 136;
constexpr std::uint8_t kSourceOption = 1, kTargetOption = 2;
constexpr std::uint32_t kSolicitedFlag = 0x40000000, kOverrideFlag = 0x20000000;
constexpr std::uint8_t kNdpHopLimit = 255;  // §7.1: proof that no router was on the way
constexpr std::size_t kNdpAt = sizeof(wire::Ethernet) + sizeof(Ipv6);

void send(Engine& e, const void* bytes, std::size_t len) {
  if (!e.tx.has_room()) return;
  FrameWriter writer(e.tx);
  writer.append(bytes, len);
  if (writer.ok()) e.tx.send(writer.take());
}

wire::Ethernet ethernet_to(const Engine& e, const MacAddress& destination, std::uint16_t type) {
  wire::Ethernet ethernet;
  ethernet.destination = destination;
  ethernet.source = e.mac;
  ethernet.type = type;
  return ethernet;
}

IpAddress own_address(const Engine& e, bool v4) {
  for (const ibv_gid& gid : e.gids) {
    const IpAddress address = address_of(gid);
    if (address.is_v4() == v4) return address;
  }
  return {};
}

void note_answer(Engine& e, const IpAddress& address) {
  if (NeighbourEntry* entry = e.neighbours.find(address)) entry->farewell = false;
}

// --- ARP

struct ArpFrame {
  wire::Ethernet ethernet;
  wire::Arp arp;
};

// A request with no MAC as target is broadcast.
void send_arp(Engine& e, std::uint16_t operation, const MacAddress& to, std::uint32_t from_ip, std::uint32_t to_ip) {
  ArpFrame frame;
  frame.ethernet = ethernet_to(e, to.is_zero() ? MacAddress::broadcast() : to, wire::kEtherTypeArp);
  frame.arp.hardware = 1;
  frame.arp.protocol = wire::kEtherTypeIpv4;
  frame.arp.hardware_len = 6;
  frame.arp.protocol_len = 4;
  frame.arp.operation = operation;
  frame.arp.sender_mac = e.mac;
  frame.arp.sender_ip = from_ip;
  frame.arp.target_mac = to;
  frame.arp.target_ip = to_ip;
  send(e, &frame, sizeof frame);
}

void on_arp(Engine& e, const Packet& frame) {
  if (!wire::fits<wire::Arp>(frame, sizeof(wire::Ethernet))) return;
  const auto& arp = wire::at<wire::Arp>(frame, sizeof(wire::Ethernet));
  const bool ours = arp.hardware == 1 && arp.protocol == wire::kEtherTypeIpv4 && arp.hardware_len == 6;
  if (!ours || arp.sender_mac.is_multicast() || arp.sender_mac.is_zero()) return;
  const IpAddress sender = IpAddress::from_v4(arp.sender_ip);
  const bool for_us = e.owns(IpAddress::from_v4(arp.target_ip));
  if (e.owns(sender)) return;
  if (for_us && arp.operation == wire::kArpReply) note_answer(e, sender);
  learn(e, sender, arp.sender_mac, for_us);
  if (for_us && arp.operation == wire::kArpRequest && e.config.answer_neighbours)
    send_arp(e, wire::kArpReply, arp.sender_mac, arp.target_ip, arp.sender_ip);
}

// --- Neighbour discovery

struct NdpFrame {
  wire::Ethernet ethernet;
  Ipv6 ip;
  NeighbourMessage message;
};

std::uint16_t icmpv6_checksum(const Ipv6& ip, const NeighbourMessage& message) {
  const PartialSum fixed = {std::uint64_t{host_to_be32(sizeof message)} + host_to_be32(kProtocolIcmpv6)};
  return checksum_finish(checksum(&ip.source, 32) + checksum(&message, sizeof message) + fixed);
}

struct NdpMessage {
  std::uint8_t type, option;
  std::uint32_t flags;
  IpAddress from, to, target;
  MacAddress to_mac;
};

void send_ndp(Engine& e, const NdpMessage& m) {
  NdpFrame frame;
  frame.ethernet = ethernet_to(e, m.to_mac, kEtherTypeIpv6);
  frame.ip.version_class_flow = 6U << 28;
  frame.ip.payload_len = sizeof frame.message;
  frame.ip.next_header = kProtocolIcmpv6;
  frame.ip.hop_limit = kNdpHopLimit;
  frame.ip.source = m.from.bytes;
  frame.ip.destination = m.to.bytes;
  frame.message.type = m.type;
  frame.message.code = 0;
  frame.message.checksum = 0;
  frame.message.flags = m.flags;
  frame.message.target = m.target.bytes;
  frame.message.option_type = m.option;
  frame.message.option_len = 1;
  frame.message.mac = e.mac;
  frame.message.checksum.set_raw(icmpv6_checksum(frame.ip, frame.message));
  send(e, &frame, sizeof frame);
}

// RFC 4291 §2.7.1: the multicast group to which the owner of this address listens.
IpAddress solicited_node(const IpAddress& target) {
  IpAddress group{{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0}};
  std::copy(target.bytes.begin() + 13, target.bytes.end(), group.bytes.begin() + 13);
  return group;
}

// Sends it to the address's group, or to a known MAC.
void send_solicitation(Engine& e, const IpAddress& target, const MacAddress& to_mac) {
  const IpAddress group = solicited_node(target);
  const auto& b = group.bytes;
  const bool to_group = to_mac.is_zero();
  send_ndp(e, {.type = kSolicitation,
               .option = kSourceOption,
               .flags = 0,
               .from = own_address(e, false),
               .to = to_group ? group : target,
               .target = target,
               .to_mac = to_group ? MacAddress{{0x33, 0x33, b[12], b[13], b[14], b[15]}} : to_mac});
}

void ask(Engine& e, const IpAddress& address, const MacAddress& to) {
  if (address.is_v4()) {
    send_arp(e, wire::kArpRequest, to, own_address(e, true).v4(), address.v4());
  } else {
    send_solicitation(e, address, to);
  }
}

// Whether the message is complete. Messages with other options before the address are not understood, and not needed.
bool valid(const Ipv6& ip, const NeighbourMessage& m) {
  return ip.hop_limit == kNdpHopLimit && m.code == 0 && ip.payload_len == sizeof m && m.option_len == 1 &&
         icmpv6_checksum(ip, m) == 0 && !m.mac.is_multicast();
}

void on_ndp(Engine& e, const Packet& frame) {
  if (!wire::fits<NeighbourMessage>(frame, kNdpAt)) return;
  const auto& ip = wire::at<Ipv6>(frame, sizeof(wire::Ethernet));
  const auto& m = wire::at<NeighbourMessage>(frame, kNdpAt);
  if (!valid(ip, m)) return;
  const IpAddress target{m.target}, sender{ip.source};
  if (m.type == kAdvertisement && m.option_type == kTargetOption) {
    note_answer(e, target);
    learn(e, target, m.mac, false);
  }
  if (m.type != kSolicitation || m.option_type != kSourceOption || !e.owns(target) || sender.is_any()) return;
  learn(e, sender, m.mac, true);
  if (!e.config.answer_neighbours) return;
  send_ndp(e, {.type = kAdvertisement,
               .option = kTargetOption,
               .flags = kSolicitedFlag | kOverrideFlag,
               .from = target,
               .to = sender,
               .target = target,
               .to_mac = m.mac});
}

bool is_ndp(const Packet& frame) {
  if (!wire::fits<Ipv6>(frame, sizeof(wire::Ethernet))) return false;
  return wire::at<Ipv6>(frame, sizeof(wire::Ethernet)).next_header == kProtocolIcmpv6;
}

void wake_waiting(Engine& e) {
  for (const auto& qp : e.qps) {
    if (qp == nullptr || !qp->waiting_neighbour) continue;
    qp->waiting_neighbour = false;
    wake(e, *qp);
  }
}

}  // namespace

bool on_neighbour_frame(Engine& e, const Packet& frame) {
  const std::uint16_t type = wire::at<wire::Ethernet>(frame, 0).type;
  if (type == wire::kEtherTypeArp) {
    on_arp(e, frame);
    return true;
  }
  if (type != kEtherTypeIpv6 || !is_ndp(frame)) return false;
  on_ndp(e, frame);
  return true;
}

void learn(Engine& e, const IpAddress& address, const MacAddress& mac, bool wanted) {
  NeighbourEntry* entry = wanted ? e.neighbours.find_or_add(address) : e.neighbours.find(address);
  if (entry == nullptr) return;
  const bool news = entry->state != NeighbourEntry::State::kKnown;
  e.neighbours.learn(*entry, mac, e.now);
  if (news) wake_waiting(e);
}

void ask_due_neighbours(Engine& e) {
  bool failed = false;
  e.neighbours.expire(e.now, e.config.resolve_retry, [&](const NeighbourEntry& entry) {
    if (entry.state == NeighbourEntry::State::kFailed) {
      failed = true;
      return;
    }
    ask(e, entry.address, MacAddress{});
  });
  if (failed) wake_waiting(e);
}

std::size_t ask_for_farewell(Engine& e) {
  std::size_t silent = 0;
  for (NeighbourEntry& entry : e.neighbours.entries()) {
    if (entry.used && entry.state == NeighbourEntry::State::kKnown) {
      ask(e, entry.address, entry.mac);
      entry.used = false;
      entry.farewell = true;
    }
    if (entry.farewell) silent++;
  }
  return silent;
}

}  // namespace bypass::rdma
