#include "backends/verbs/flow_rules.h"

#include <cerrno>
#include <cstring>

#include "stack/wire.h"

namespace bypass::verbs {
namespace {

// What a card's driver finds one behind the other.
struct Request {
  ibv_flow_attr attributes;
  ibv_flow_spec_eth ethernet;
  ibv_flow_spec_ipv4 ip;
  ibv_flow_spec_tcp_udp ports;
};
static_assert(sizeof(Request) == sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv4) +
                                     sizeof(ibv_flow_spec_tcp_udp));

void match_address(const IpAddress& address, std::uint32_t& value, std::uint32_t& mask) {
  if (address.is_any()) return;
  value = host_to_be32(address.v4());
  mask = 0xffff'ffff;
}

void match_port(std::uint16_t port, std::uint16_t& value, std::uint16_t& mask) {
  if (port == 0) return;
  value = host_to_be16(port);
  mask = 0xffff;
}

ibv_flow* create(ibv_qp* queue, std::uint8_t number, const MacAddress& mac, const FlowSpec& flow) {
  Request request{};
  request.attributes.type = IBV_FLOW_ATTR_NORMAL;
  request.attributes.size = sizeof request;
  request.attributes.num_of_specs = 3;
  request.attributes.port = number;
  request.ethernet.type = IBV_FLOW_SPEC_ETH;
  request.ethernet.size = sizeof request.ethernet;
  std::memcpy(request.ethernet.val.dst_mac, mac.bytes.data(), mac.bytes.size());
  std::memset(request.ethernet.mask.dst_mac, 0xff, sizeof request.ethernet.mask.dst_mac);
  request.ethernet.val.ether_type = host_to_be16(wire::kEtherTypeIpv4);
  request.ethernet.mask.ether_type = 0xffff;
  request.ip.type = IBV_FLOW_SPEC_IPV4;
  request.ip.size = sizeof request.ip;
  match_address(flow.local.address, request.ip.val.dst_ip, request.ip.mask.dst_ip);
  match_address(flow.remote.address, request.ip.val.src_ip, request.ip.mask.src_ip);
  request.ports.type = flow.protocol == wire::kProtocolUdp ? IBV_FLOW_SPEC_UDP : IBV_FLOW_SPEC_TCP;
  request.ports.size = sizeof request.ports;
  match_port(flow.local.port, request.ports.val.dst_port, request.ports.mask.dst_port);
  match_port(flow.remote.port, request.ports.val.src_port, request.ports.mask.src_port);
  return ibv_create_flow(queue, &request.attributes);
}

// The kernel's answer to every call for a device that has been taken away or has failed; it may come before the event
// that tells of it.
bool is_lost(int error) {
  return error == EIO || error == ENODEV;
}

}  // namespace

bool FlowRules::add(ibv_qp* queue, std::uint8_t number, const MacAddress& mac, const FlowSpec& flow) {
  Rule& rule = rules_[flow];
  rule.users++;
  if (rule.made == nullptr) rule.made = create(queue, number, mac, flow);
  rule.refused = rule.made == nullptr && !is_lost(errno);
  return rule.made != nullptr;
}

bool FlowRules::remove(const FlowSpec& flow) {
  const auto found = rules_.find(flow);
  if (found == rules_.end()) return false;
  if (--found->second.users != 0) return true;
  if (found->second.made != nullptr) (void)ibv_destroy_flow(found->second.made);
  rules_.erase(found);
  return true;
}

void FlowRules::destroy() {
  for (auto& [flow, rule] : rules_) {
    if (rule.made != nullptr) (void)ibv_destroy_flow(rule.made);
    rule.made = nullptr;
  }
}

std::size_t FlowRules::remake(ibv_qp* queue, std::uint8_t number, const MacAddress& mac) {
  std::size_t lost = 0;
  for (auto& [flow, rule] : rules_) {
    rule.made = create(queue, number, mac, flow);
    if (rule.made == nullptr && !rule.refused) lost++;
    rule.refused = rule.made == nullptr;
  }
  return lost;
}

}  // namespace bypass::verbs
