#include "softverbs/engine/steering.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "softverbs/engine/wire/roce.h"
#include "stack/frame/wire.h"

namespace bypass::rdma {
namespace {

using Key = FlowRule::Key;

// A key as words: the bytes of all fields, one after the other, without gaps.
constexpr std::size_t kWords = 7;
using Words = std::array<std::uint64_t, kWords>;

Words words_of(const Key& key) {
  Words words{};
  auto* to = reinterpret_cast<std::byte*>(words.data());
  const auto put = [&](const auto& field) {
    std::memcpy(to, &field, sizeof field);
    to += sizeof field;
  };
  put(key.destination);
  put(key.source);
  put(key.ether_type);
  put(key.ip_source);
  put(key.ip_destination);
  put(key.source_port);
  put(key.destination_port);
  put(key.protocol);
  return words;
}

template <std::size_t N>
std::array<std::uint8_t, N> both(const std::array<std::uint8_t, N>& a, const std::array<std::uint8_t, N>& b) {
  std::array<std::uint8_t, N> out;
  for (std::size_t i = 0; i < N; i++) out[i] = a[i] & b[i];
  return out;
}

// An address under a mask is IPv4 only together with the whole prefix.
void widen(const IpAddress& value, IpAddress& mask) {
  if (value.is_v4() && mask != IpAddress{}) std::fill_n(mask.bytes.begin(), 12, std::uint8_t{0xff});
}

void read_ports(const Packet& frame, std::size_t at, Key& key) {
  const bool has_ports = key.protocol == wire::kProtocolTcp || key.protocol == wire::kProtocolUdp;
  if (!has_ports || !wire::fits<wire::Udp>(frame, at)) return;
  const auto& udp = wire::at<wire::Udp>(frame, at);  // TCP's ports have the same offsets
  key.source_port = udp.source;
  key.destination_port = udp.destination;
}

void read_ipv4(const Packet& frame, Key& key) {
  if (!wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet))) return;
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  key.ip_source = IpAddress::from_v4(ip.source);
  key.ip_destination = IpAddress::from_v4(ip.destination);
  key.protocol = ip.protocol;
  if ((ip.fragment & wire::kFragmentOffset) == 0) read_ports(frame, sizeof(wire::Ethernet) + ip.header_len(), key);
}

void read_ipv6(const Packet& frame, Key& key) {
  if (!wire::fits<Ipv6>(frame, sizeof(wire::Ethernet))) return;
  const auto& ip = wire::at<Ipv6>(frame, sizeof(wire::Ethernet));
  key.ip_source.bytes = ip.source;
  key.ip_destination.bytes = ip.destination;
  key.protocol = ip.next_header;
  read_ports(frame, sizeof(wire::Ethernet) + sizeof(Ipv6), key);
}

}  // namespace

std::size_t Steering::Hash::operator()(const Key& key) const {
  std::uint64_t h = 0;
  for (const std::uint64_t word : words_of(key)) h = std::rotl((h ^ word) * 0x9e3779b97f4a7c15U, 29);
  return h;
}

Steering::Key Steering::key_of(const Packet& frame) {
  Key key;
  const auto& ethernet = wire::at<wire::Ethernet>(frame, 0);
  key.destination = ethernet.destination;
  key.source = ethernet.source;
  key.ether_type = ethernet.type;
  if (key.ether_type == wire::kEtherTypeIpv4) read_ipv4(frame, key);
  if (key.ether_type == kEtherTypeIpv6) read_ipv6(frame, key);
  return key;
}

Steering::Key Steering::masked(const Key& key, const Key& mask) {
  Key out;
  out.destination.bytes = both(key.destination.bytes, mask.destination.bytes);
  out.source.bytes = both(key.source.bytes, mask.source.bytes);
  out.ip_source.bytes = both(key.ip_source.bytes, mask.ip_source.bytes);
  out.ip_destination.bytes = both(key.ip_destination.bytes, mask.ip_destination.bytes);
  out.ether_type = key.ether_type & mask.ether_type;
  out.source_port = key.source_port & mask.source_port;
  out.destination_port = key.destination_port & mask.destination_port;
  out.protocol = key.protocol & mask.protocol;
  return out;
}

Steering::Key Steering::mask_of(const FlowRule& rule) {
  if (rule.type != IBV_FLOW_ATTR_NORMAL) return {};
  Key mask = rule.mask;
  widen(rule.value.ip_source, mask.ip_source);
  widen(rule.value.ip_destination, mask.ip_destination);
  return mask;
}

Steering::Table& Steering::table_for(const FlowRule& rule) {
  const Key mask = mask_of(rule);
  const bool multicast_only = is_multicast_default(rule);
  const auto same = [&](const Table& t) {
    return t.priority == rule.priority && t.mask == mask && t.multicast_only == multicast_only;
  };
  if (const auto it = std::ranges::find_if(tables_, same); it != tables_.end()) return *it;
  unsigned bits = 0;
  for (const std::uint64_t word : words_of(mask)) bits += static_cast<unsigned>(std::popcount(word));
  const auto behind = [&](const Table& t) {
    return t.priority > rule.priority || (t.priority == rule.priority && t.bits < bits);
  };
  return *tables_.insert(std::ranges::find_if(tables_, behind), Table{rule.priority, bits, multicast_only, mask, {}});
}

void Steering::add(Flow& flow) {
  rules_++;
  if (flow.rule.type == IBV_FLOW_ATTR_SNIFFER) {
    sniffers_.push_back(&flow);
    return;
  }
  Table& table = table_for(flow.rule);
  table.rules[masked(flow.rule.value, table.mask)].push_back(&flow);
}

void Steering::remove(Flow& flow) {
  rules_--;
  if (flow.rule.type == IBV_FLOW_ATTR_SNIFFER) {
    std::erase(sniffers_, &flow);
    return;
  }
  Table& table = table_for(flow.rule);
  const auto place = table.rules.find(masked(flow.rule.value, table.mask));
  std::erase(place->second, &flow);
  if (place->second.empty()) table.rules.erase(place);
  if (table.rules.empty()) std::erase_if(tables_, [&](const Table& t) { return &t == &table; });
}

}  // namespace bypass::rdma
