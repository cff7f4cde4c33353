// Steering rules of raw-packet queue pairs: converts ibv_create_flow's attribute and the specifications after it to the
// engine's form.
#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"

namespace bypass::softverbs {
namespace {

using rdma::FlowRule;

void read_ethernet(const ibv_flow_eth_filter& from, FlowRule::Key& to) {
  std::memcpy(to.destination.bytes.data(), from.dst_mac, sizeof from.dst_mac);
  std::memcpy(to.source.bytes.data(), from.src_mac, sizeof from.src_mac);
  to.ether_type = ntohs(from.ether_type);
}

// `prefix`: the first 96 bits of a v4-mapped address, or their mask.
IpAddress ipv4(std::uint32_t network_order, bool is_mask) {
  IpAddress address{};
  if (is_mask && network_order == 0) return address;
  std::memset(address.bytes.data(), is_mask ? 0xff : 0, 12);
  address.bytes[10] = address.bytes[11] = 0xff;
  std::memcpy(&address.bytes[12], &network_order, sizeof network_order);
  return address;
}

template <typename Filter>
void read_ipv4(const Filter& from, FlowRule::Key& to, bool is_mask) {
  to.ip_source = ipv4(from.src_ip, is_mask);
  to.ip_destination = ipv4(from.dst_ip, is_mask);
  // Set even if both addresses may be any: the packet must be IPv4.
  to.ether_type = is_mask ? 0xffff : 0x0800;
}

void read_ipv6(const ibv_flow_ipv6_filter& from, FlowRule::Key& to, bool is_mask) {
  std::memcpy(to.ip_source.bytes.data(), from.src_ip, sizeof from.src_ip);
  std::memcpy(to.ip_destination.bytes.data(), from.dst_ip, sizeof from.dst_ip);
  to.protocol = from.next_hdr;
  to.ether_type = is_mask ? 0xffff : 0x86dd;
}

void read_ports(const ibv_flow_tcp_udp_filter& from, FlowRule::Key& to) {
  to.source_port = ntohs(from.src_port);
  to.destination_port = ntohs(from.dst_port);
}

// False: the device cannot match this field.
bool add(const ibv_flow_spec& spec, FlowRule& rule) {
  switch (spec.hdr.type) {
    case IBV_FLOW_SPEC_ETH:
      if (spec.eth.mask.vlan_tag != 0) return false;
      read_ethernet(spec.eth.val, rule.value);
      read_ethernet(spec.eth.mask, rule.mask);
      return true;
    case IBV_FLOW_SPEC_IPV4:
      read_ipv4(spec.ipv4.val, rule.value, false);
      read_ipv4(spec.ipv4.mask, rule.mask, true);
      return true;
    case IBV_FLOW_SPEC_IPV4_EXT:
      if (spec.ipv4_ext.mask.tos != 0 || spec.ipv4_ext.mask.ttl != 0 || spec.ipv4_ext.mask.flags != 0) return false;
      read_ipv4(spec.ipv4_ext.val, rule.value, false);
      read_ipv4(spec.ipv4_ext.mask, rule.mask, true);
      rule.value.protocol = spec.ipv4_ext.val.proto;
      rule.mask.protocol = spec.ipv4_ext.mask.proto;
      return true;
    case IBV_FLOW_SPEC_IPV6: {
      const ibv_flow_ipv6_filter& mask = spec.ipv6.mask;
      if (mask.flow_label != 0 || mask.traffic_class != 0 || mask.hop_limit != 0) return false;
      read_ipv6(spec.ipv6.val, rule.value, false);
      read_ipv6(mask, rule.mask, true);
      return true;
    }
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      read_ports(spec.tcp_udp.val, rule.value);
      read_ports(spec.tcp_udp.mask, rule.mask);
      rule.value.protocol = spec.hdr.type == IBV_FLOW_SPEC_TCP ? IPPROTO_TCP : IPPROTO_UDP;
      rule.mask.protocol = 0xff;
      return true;
    case IBV_FLOW_SPEC_ACTION_TAG:
      rule.flow_tag = spec.flow_tag.tag_id;
      return true;
    case IBV_FLOW_SPEC_ACTION_DROP:
      rule.drop = true;
      return true;
    default:
      return false;
  }
}

// Specifications follow each other by their own sizes, without alignment. False: the size is not valid.
bool read_spec(const std::byte* at, ibv_flow_spec& spec) {
  std::memcpy(&spec.hdr, at, sizeof spec.hdr);
  if (spec.hdr.size < sizeof spec.hdr || spec.hdr.size > sizeof spec) return false;
  std::memcpy(&spec, at, spec.hdr.size);
  return true;
}

// Returns 0, EINVAL or EOPNOTSUPP.
int read_rule(const ibv_flow_attr& attr, FlowRule& rule) {
  if (attr.comp_mask != 0 || attr.port != 1 ||
      (attr.flags & ~static_cast<std::uint32_t>(IBV_FLOW_ATTR_FLAGS_DONT_TRAP)) != 0)
    return EINVAL;
  if ((attr.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP) != 0) return EOPNOTSUPP;
  std::underlying_type_t<ibv_flow_attr_type> type = 0;
  std::memcpy(&type, &attr.type, sizeof type);  // the program may have stored any value there
  if (type > IBV_FLOW_ATTR_SNIFFER) return EINVAL;
  rule.type = attr.type;
  rule.priority = attr.priority;
  const auto* at = reinterpret_cast<const std::byte*>(&attr + 1);
  for (int i = 0; i < attr.num_of_specs; i++) {
    ibv_flow_spec spec{};
    if (!read_spec(at, spec)) return EINVAL;
    if (!add(spec, rule)) return EOPNOTSUPP;
    at += spec.hdr.size;
  }
  return 0;
}

}  // namespace

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr) {
  FlowRule rule;
  if (const int error = read_rule(*attr, rule); error != 0) return refuse<ibv_flow>(error);
  Context& ours = Context::of(qp->context);
  Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<ibv_flow>(EIO);
  const auto made = turn->create_flow(*QueuePair::of(qp).engine, rule);
  if (made.error != 0) return refuse<ibv_flow>(made.error);
  auto* const flow = new SteeringRule;
  flow->engine = made.object;
  flow->comp_mask = 0;
  flow->context = qp->context;
  flow->handle = 0;
  ours.flows.push_back(*flow);
  return flow;
}

int destroy_flow(ibv_flow* flow) {
  Adapter::Turn turn(*Context::of(flow->context).adapter);
  SteeringRule* const rule = &SteeringRule::of(flow);
  const int error = turn ? turn->destroy_flow(*rule->engine) : 0;
  if (error == 0) delete rule;
  return error;
}

}  // namespace bypass::softverbs
